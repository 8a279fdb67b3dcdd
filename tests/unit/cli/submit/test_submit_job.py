"""What may be submitted: everything is checked as `lockstep train` would, before anything is printed."""

import collections
import shlex
import types

import pytest
from submitting import refusal, text_of

from lockstep.cli import main as cli
from lockstep.cli.request import requested_run

pytestmark = pytest.mark.usefixtures("here")
SLURM = ("--on", "slurm")
KUBERNETES = ("--on", "kubernetes", "--image", "a/b:1", "--claim", "runs")
SSH = ("--on", "ssh", "--hosts", "alpha,beta")
ON_JAX = ("--ml-framework", "jax", "--gpus-per-node", "4", "--set", "devices_per_process=2")


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["cartpool", *SLURM], "cartpool"),
        ([*SLURM], "nothing to train"),
        (["cartpole", *SLURM, "--set", "num_env=4"], "num_env"),
        (["cartpole", *SLURM, "--set", "learning_rate=fast"], "learning_rate"),
        (["cartpole", *SLURM, "--init-from", "nowhere"], "--init-from nowhere does not exist"),
        (["cartpole", *SLURM, "--lockstep", "conda run 'x"], "--lockstep conda run 'x: No closing quotation"),
        (["cartpole", *SLURM, "--resume", "nowhere"], "leave out cartpole"),
        ([*SLURM, "--resume", "nowhere"], "--resume nowhere does not exist; give runs/NAME"),
        (["cartpole", *SLURM, "--nnodes", "0"], "--nnodes 0 must be"),
        (["cartpole", *SLURM, "--nnodes", "two"], "--nnodes two must be"),
        (["cartpole", *SLURM, "--nnodes", "4:2"], "use 2:4"),
        (["cartpole", *SLURM, "--nproc-per-node", "0"], "--nproc-per-node 0"),
        (["cartpole", *SLURM, "--nnodes", "3", "--nproc-per-node", "3"], "num_envs=32"),
        (["cartpole", *SLURM, "--nnodes", "3", "--set", "num_shards=2"], "more than num_shards=2"),
        (["cartpole", *SLURM, "--nnodes", "2:8", "--set", "num_shards=4"], "--nnodes 8 with"),
        (["cartpole", *SLURM, "--nnodes", "1:2", "--nproc-per-node", "4"], "add --set num_shards=8"),
        (["cartpole", *SLURM, "--max-restarts", "few"], "--max-restarts few"),
        (["cartpole", *SLURM, "--nproc-per-node", "auto", "--set", "num_shards=5"], "num_envs=32"),
        (["cartpole"], "--on is missing; name the kind of cluster: --on slurm, kubernetes, ssh or ray"),
        (["cartpole", *SLURM, "--ranks", "4"], "--nproc-per-node"),
        (["cartpole", *SLURM, "--name", "Big_Run"], "lower-case"),
        (["cartpole", *SLURM, "--port", "80"], "--port 80"),
        (["cartpole", *SLURM, "--grace-s", "5"], "--grace-s 5"),
        (["cartpole", *SLURM, "--device", "cuda"], "add --gpus-per-node"),
        (["cartpole", *SLURM, "--gpus-per-node", "2"], "device=cpu leaves them idle"),
        (["CartPole-v1", *SLURM, "--gpus-per-node", "2", "--nproc-per-node", "4"], "use --nproc-per-node 2"),
        (["CartPole-v1", *SLURM, *ON_JAX, "--nproc-per-node", "4"], "a process takes 2 GPUs: use --nproc-per-node 2"),
        (["CartPole-v1", *SLURM, *ON_JAX[:-1], "devices_per_process=8"], "use at most 4"),
        (["cartpole", *SLURM, "--run-dir", "a\nb"], "line break"),
        (["cartpole", *SLURM, "--token-file", "nowhere"], "--token-file nowhere does not exist"),
        (["cartpole", *SLURM, "--lockstep", " "], "--lockstep is empty"),
        (["cartpole", *SLURM, "--image", "a/b"], "--image is for --on kubernetes"),
        (["cartpole", *SLURM, "--hosts", "a"], "--hosts is for --on ssh"),
        (["cartpole", *KUBERNETES, "--slurm", "exclusive"], "--slurm is for --on slurm"),
        (["cartpole", *SSH, "--job-restarts", "3"], "nothing starts a job again with --on ssh; use --max-restarts"),
        (
            ["cartpole", "--on", "ray", "--address", "http://a:8265", "--job-restarts", "0"],
            "again with --on ray; use --max-restarts",
        ),
        (["cartpole", *SSH, "--gpus-per-node", "2"], "--nproc-per-node 2"),
        (["cartpole", "--on", "moon"], "moon"),
        (["cartpole"], "--on"),
        (["cartpole", *SLURM, "--nodes", "4"], "--nodes"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_invalid_job_is_one_error_line(capsys, words, says):
    assert says in refusal(capsys, *words)


def test_a_resumed_run_is_named_by_its_directory(capsys, here):
    (here / "runs/one").mkdir(parents=True)
    (here / "runs/one/run.yaml").write_text("task: CartPole-v1\nml_framework: torch\n")
    text = text_of(capsys, *SLURM, "--resume", "runs/one", "--set", "total_steps=4096", "--lockstep", "lockstep")
    assert "what=(--resume runs/one --set total_steps=4096)\n" in text
    assert "run_dir" not in text


def test_resume_of_a_single_checkpoint_is_refused(capsys, here, monkeypatch):
    found = types.SimpleNamespace(exact=here, run_dir="runs/one", run=None, num_shards=2)
    monkeypatch.setattr("lockstep.cli.submit.job.resumption", lambda _: found)
    assert "use --resume runs/one" in refusal(capsys, *SLURM, "--resume", "runs/one/checkpoints/step_8")


def test_job_arguments_parse_to_the_same_run(capsys, here):
    """Typed again as `lockstep train` they mean what was typed after `lockstep submit`."""
    (here / "my run.yaml").write_text("task: CartPole-v1\nnum_envs: 16\n")
    given = ["my run.yaml", "--seed=3", "--set", "env.kwargs={sutton_barto_reward: true}", "--set", "gamma=0.9"]
    given += ["--max-iterations", "4", "--device", "cpu", "--headless", "--algo", "ppo"]
    text = text_of(capsys, *given, "--on", "ssh", "--hosts", "alpha", "--lockstep", "lockstep")
    (command,) = [line for line in text.splitlines() if line.startswith("ssh ")]
    remote = shlex.split(shlex.split(command)[-1])[-1]
    launcher = shlex.split(remote.partition("lockstep train ")[2])
    words = launcher[: launcher.index("--nnodes")]
    assert requested(*words) == requested(*given)


def requested(*words):
    from lockstep.cli.parser import parser

    return requested_run(parser(COMMANDS).parse_args(["train", *words]))


COMMANDS = collections.defaultdict(lambda: lambda _: 0)


def test_gpus_decide_how_many_ranks(capsys):
    assert "--nproc-per-node 4" in text_of(capsys, "CartPole-v1", *SLURM, "--gpus-per-node", "4")
    assert "--nproc-per-node 1" in text_of(capsys, "cartpole", *SLURM)
    assert "--nproc-per-node 2" in text_of(capsys, "CartPole-v1", *SLURM, *ON_JAX)


def test_max_restarts_is_passed_only_if_given(capsys):
    elastic = ("cartpole", *SLURM, "--nnodes", "1:2", "--set", "num_shards=2")
    assert "--max-restarts" not in text_of(capsys, *elastic)
    assert "--max-restarts 0" in text_of(capsys, *elastic, "--max-restarts", "0")


def test_hyphens_and_underscores_are_alike(capsys):
    words = ["cartpole", "--on=slurm", "--nproc_per_node=2", "--dry_run", "--name=x"]
    assert cli.main(["submit", *words]) == 0
    assert "--nproc-per-node 2" in capsys.readouterr().out
