"""The batch script: what it says, that a shell understands it, and what it does where SLURM's programs stand in."""

import json
import re
import shutil
import signal
import subprocess

import pytest
from submitting import program, refusal, text_of

from empty_policies import write_empty
from lockstep.cli import main as cli

pytestmark = pytest.mark.usefixtures("here")
GIVEN = (
    "cartpole",
    "--on",
    "slurm",
    "--nnodes",
    "2",
    "--nproc-per-node",
    "2",
    "--name",
    "cp",
    "--lockstep",
    "lockstep",
)
SRUN = """
import json, os, subprocess, sys
words = [w for w in sys.argv[1:]]
options = []
while words[0].startswith("--"):
    options.append(words.pop(0))
print("srun", json.dumps(options))
codes = []
for node in range(2):
    environment = os.environ | {"SLURM_NODEID": str(node), "SLURM_PROCID": str(node), "SLURM_STEP_ID": "0"}
    codes.append(subprocess.run(words, env=environment).returncode)
sys.exit(max(codes))
"""
SCONTROL = """
import pathlib, sys
if sys.argv[1:3] == ["show", "hostnames"]:
    assert sys.argv[3] == "node[7-8]"
    print("node7\\nnode8")
else:
    pathlib.Path("requeued").write_text(" ".join(sys.argv[1:]))
"""
LOCKSTEP = """
import json, os, pathlib, sys
code = pathlib.Path("code")
print("lockstep", json.dumps([sys.argv[1:], os.environ["LOCKSTEP_TOKEN"]]))
sys.exit(int(code.read_text()) if code.exists() else 0)
"""


@pytest.fixture
def cluster(programs):
    for name, source in (("srun", SRUN), ("scontrol", SCONTROL), ("lockstep", LOCKSTEP)):
        program(programs, name, source)
    return programs


def run(text, restarts=None):
    """The script as SLURM runs it; what the launchers were called with, and the exit code."""
    environment = {"PATH": __import__("os").environ["PATH"], "SLURM_JOB_ID": "4711", "SLURM_JOB_NODELIST": "node[7-8]"}
    environment |= {"SLURM_CPUS_PER_TASK": "2"} | ({"SLURM_RESTART_COUNT": str(restarts)} if restarts else {})
    done = subprocess.run(["bash"], input=text, env=environment, capture_output=True, text=True, timeout=60)
    assert done.stderr == ""
    lines = [line.partition(" ") for line in done.stdout.splitlines()]
    calls = [json.loads(rest) for name, _, rest in lines if name == "lockstep"]
    options = [json.loads(rest) for name, _, rest in lines if name == "srun"]
    return calls, options, done.returncode


def test_each_node_runs_one_launcher(capsys, cluster):
    calls, options, code = run(text_of(capsys, *GIVEN, "--set", "env.kwargs={sutton_barto_reward: true}"))
    assert code == 0
    assert options == [["--export=ALL", "--kill-on-bad-exit=0", "--wait=0", "--cpus-per-task=2"]]
    for node, (words, _) in enumerate(calls):
        what, _, rest = " ".join(words).partition(" --nnodes ")
        assert what == "train cartpole --set env.kwargs={sutton_barto_reward: true} --run-dir runs/cp-4711"
        assert (
            rest == f"2 --nproc-per-node 2 --grace-s 120 --rdzv-endpoint node7:24711 --rdzv-id 4711 --node-rank {node}"
        )
    (first, second) = [token for _, token in calls]
    assert first == second and len(first) == 32 and int(first, 16)


def test_tokens_differ_from_job_to_job(capsys, cluster):
    text = text_of(capsys, *GIVEN)
    assert run(text)[0][0][1] != run(text)[0][0][1]


def test_a_token_of_the_users_stays_out_of_the_script(capsys, here, cluster):
    (here / "secret").write_text("hush\n")
    text = text_of(capsys, *GIVEN, "--token-file", "secret")
    assert "hush" not in text and "LOCKSTEP_TOKEN" not in text and "--token-file secret" in text


def test_a_requeued_job_goes_on(capsys, here, cluster):
    (here / "runs/cp-4711").mkdir(parents=True)
    (here / "runs/cp-4711/run.yaml").write_text("task: CartPole-v1\n")
    calls, _, _ = run(text_of(capsys, *GIVEN, "--set", "gamma=0.9"), restarts=1)
    assert [words[:4] for words, _ in calls] == [["train", "--resume", "runs/cp-4711", "--nnodes"]] * 2


@pytest.mark.parametrize("policy", [False, True])
def test_a_job_with_a_directory_goes_on_with_its_own_run_only(capsys, here, cluster, policy):
    """Another job's run, with other settings, is left to the launcher, which refuses to start in its directory."""
    write_empty(here / "earlier.safetensors")
    text = text_of(capsys, *GIVEN, "--run-dir", "a b", *(["--init-from", "earlier.safetensors"] if policy else []))

    def trained(restarts=None):
        words = run(text, restarts)[0][0][0]
        return words[1 : words.index("--nnodes")]

    (here / "a b/checkpoints").mkdir(parents=True)
    (here / "a b/run.yaml").write_text("task: CartPole-v1\n")
    (here / "a b/checkpoints/LATEST").write_text("step_1\n")
    assert trained()[0] == "cartpole" and trained()[-2:] == ["--run-dir", "a b"]
    assert trained(1) == ["--resume", "a b"]


@pytest.mark.parametrize("chdir", [[], ["--chdir", "there"]])
def test_a_directory_that_holds_a_run_is_refused(capsys, here, chdir):
    folder = here / (chdir[1] if chdir else ".") / "one"
    folder.mkdir(parents=True)
    text_of(capsys, *GIVEN, *chdir, "--run-dir", "one")
    (folder / "run.yaml").write_text("task: CartPole-v1\n")
    said = refusal(capsys, *GIVEN, *chdir, "--run-dir", "one")
    assert "--run-dir one already holds a run; continue it by --resume one" in said


@pytest.mark.parametrize("limit", ["2", "02:15", "00:02:15", "0-0:2:15"])
def test_a_time_limit_that_ends_a_job_at_its_start_is_refused(capsys, limit):
    said = refusal(capsys, *GIVEN, "--slurm", f"time={limit}")
    assert f"--slurm time={limit}: SLURM tells the ranks 135 s before the end to stop" in said
    text_of(capsys, *GIVEN, "--slurm", f"time={limit}", "--grace-s", "60")


@pytest.mark.parametrize("limit", ["3", "0:136", "00:02:16", "1:00:00", "0-1", "1-0", "1-0:00", "0", "UNLIMITED"])
def test_other_time_limits_are_taken(capsys, limit):
    assert f"#SBATCH --time={limit}" in text_of(capsys, *GIVEN, "--slurm", f"time={limit}")


def test_relative_paths_are_checked_where_the_job_starts(capsys, here):
    """What lies beside the user is not found by the job."""
    (here / "there").mkdir()
    (here / "mine.yaml").write_text("task: CartPole-v1\n")
    words = ["mine.yaml", *GIVEN[1:], "--chdir", "there"]
    assert "mine.yaml" in refusal(capsys, *words)
    (here / "mine.yaml").rename(here / "there/mine.yaml")
    assert "mine.yaml" in text_of(capsys, *words)
    write_empty(here / "earlier.safetensors")
    words = [*GIVEN, "--chdir", "there", "--init-from", "earlier.safetensors"]
    assert "earlier.safetensors" in refusal(capsys, *words)
    (here / "earlier.safetensors").rename(here / "there/earlier.safetensors")
    assert "earlier.safetensors" in text_of(capsys, *words)


def test_a_job_begins_with_a_policy_until_it_has_a_checkpoint(capsys, here, cluster):
    policy = here / "earlier.safetensors"
    write_empty(policy)
    text = text_of(capsys, *GIVEN, "--init-from", str(policy))

    def trained(restarts=None):
        words = run(text, restarts)[0][0][0]
        return words[1 : words.index("--nnodes")]

    anew = ["cartpole", "--init-from", str(policy), "--run-dir"]
    assert trained() == [*anew, "runs/cp-4711"]
    (here / "runs/cp-4711").mkdir(parents=True)
    (here / "runs/cp-4711/run.yaml").write_text("task: CartPole-v1\n")
    assert trained(1) == [*anew, "runs/cp-4711.1"]
    (here / "runs/cp-4711.1/checkpoints").mkdir(parents=True)
    (here / "runs/cp-4711.1/run.yaml").write_text("task: CartPole-v1\n")
    (here / "runs/cp-4711.1/checkpoints/LATEST").write_text("step_1\n")
    assert trained(2) == ["--resume", "runs/cp-4711.1"]


@pytest.mark.parametrize(
    ("code", "restarts", "words", "requeued"),
    [
        (128 + signal.SIGUSR1, 0, [], True),
        (128 + signal.SIGUSR1, 9, [], True),
        (128 + signal.SIGUSR1, 10, [], False),
        (128 + signal.SIGUSR1, 0, ["--job-restarts", "0"], False),
        (128 + signal.SIGUSR1, 0, ["--slurm", "no-requeue"], False),
        (128 + signal.SIGTERM, 0, [], False),
        (1, 0, [], False),
        (2, 0, [], False),
        (0, 0, [], False),
    ],
)
def test_only_a_job_whose_time_is_up_queues_again(capsys, here, cluster, code, restarts, words, requeued):
    (here / "code").write_text(str(code))
    assert run(text_of(capsys, *GIVEN, *words), restarts)[2] == code
    assert (here / "requeued").exists() == requeued
    if requeued:
        assert (here / "requeued").read_text() == "requeue 4711"


@pytest.mark.parametrize("setup", ["export A=1;", "export A=1 # our own", "true & export A=1"])
def test_a_setup_may_end_as_any_line_of_a_shell(capsys, cluster, setup):
    calls, _, code = run(text_of(capsys, *GIVEN, "--setup", setup, "--setup", '[ "$A" = 1 ]'))
    assert calls and code == 0


def test_a_setup_that_fails_ends_the_job(capsys, cluster):
    calls, _, code = run(text_of(capsys, *GIVEN, "--setup", "export A=1", "--setup", "false"))
    assert (calls, code) == ([], 2)


def test_nodes_that_come_and_go_have_no_fixed_rank(capsys, cluster):
    text = text_of(capsys, *GIVEN, "--nnodes", "1:2", "--set", "num_shards=4")
    assert "#SBATCH --nodes=1-2\n" in text and "#SBATCH --no-kill\n" in text
    calls, options, _ = run(text)
    assert "--no-kill" in options[0]
    assert all("--node-rank" not in words and "1:2" in words for words, _ in calls)


def test_a_folder_with_a_blank_is_one_word(capsys):
    assert '#SBATCH --chdir="/data/my dir"' in text_of(capsys, *GIVEN, "--chdir", "/data/my dir").splitlines()


def test_flags_of_sbatch(capsys):
    text = text_of(
        capsys,
        *GIVEN,
        "--slurm",
        "partition=gpu",
        "--slurm",
        "exclusive",
        "--slurm",
        "comment=a b",
        "--device",
        "cuda",
        "--gpus-per-node",
        "2",
    )
    directives = [line.removeprefix("#SBATCH --") for line in text.splitlines() if line.startswith("#SBATCH")]
    assert {"partition=gpu", "exclusive", 'comment="a b"', "gpus-per-node=2", "nodes=2", "signal=USR1@135"} <= set(
        directives
    )
    assert {"ntasks-per-node=1", "cpus-per-task=2", "requeue", "open-mode=append"} <= set(directives)
    assert "cpus-per-task=7" in text_of(capsys, *GIVEN, "--slurm", "cpus-per-task=7")
    assert text_of(capsys, *GIVEN, "--slurm", "cpus-per-task=7").count("#SBATCH --cpus-per-task") == 1
    by_gpu = text_of(capsys, *GIVEN, "--slurm", "cpus-per-gpu=4")
    assert "#SBATCH --cpus-per-gpu=4" in by_gpu and "#SBATCH --cpus-per-task" not in by_gpu, "sbatch takes one of them"


def test_gpus_may_be_asked_for_in_the_words_of_sbatch(capsys):
    """Some sites give GPUs by their kind only."""
    on_gpus = [*GIVEN, "--device", "cuda"]
    assert "#SBATCH --gres=gpu:a100:2" in text_of(capsys, *on_gpus, "--slurm", "gres=gpu:a100:2")
    assert "no GPU is asked for" in refusal(capsys, *on_gpus, "--slurm", "partition=gpu")


@pytest.mark.parametrize(
    "flag", ["nodes=3", "signal=TERM@5", "job-name=x", "Bad=1", "time=", "a b=1", "x=\n#SBATCH --y"]
)
def test_flags_of_sbatch_that_cannot_be(capsys, flag):
    assert "--slurm" in refusal(capsys, *GIVEN, "--slurm", flag)


@pytest.mark.parametrize(
    "words", [[], ["--nnodes", "1:2", "--set", "num_shards=4"], ["--setup", "echo 'a b'"], ["--run-dir", "a b'c"]]
)
def test_a_shell_understands_it(capsys, words):
    text = text_of(capsys, *GIVEN, *words)
    assert subprocess.run(["bash", "-n"], input=text, text=True, capture_output=True).stderr == ""
    if shutil.which("shellcheck"):
        left_out = "SC2016,SC1091"  # what is meant for the task's shell; files that are not here
        done = subprocess.run(["shellcheck", "-e", left_out, "-"], input=text, text=True, capture_output=True)
        assert done.stdout == ""


def test_sbatch_gets_what_the_dry_run_prints(capfd, here, programs):
    program(programs, "sbatch", 'import sys, pathlib; pathlib.Path("got").write_text(sys.stdin.read()); sys.exit(3)')
    assert cli.main(["submit", *GIVEN]) == 3
    assert (here / "got").read_text() == text_of(capfd, *GIVEN)


def test_without_sbatch(capsys, monkeypatch):
    monkeypatch.setattr("shutil.which", lambda _: None)
    assert "--dry-run" in refusal(capsys, *GIVEN, dry_run=False)


@pytest.mark.skipif(shutil.which("sinfo") is None, reason="SLURM is not installed here")
def test_slurm_itself_takes_it(capsys, tmp_path):
    if subprocess.run(["sinfo"], capture_output=True, timeout=60).returncode:
        pytest.skip("SLURM's controller does not answer")
    text = text_of(capsys, *GIVEN)
    done = subprocess.run(["sbatch", "--test-only"], input=text, text=True, capture_output=True, timeout=60)
    assert done.returncode == 0, done.stderr


def test_a_job_with_a_policy_is_submitted_again(capsys, here, cluster):
    """A second job of the same run directory, which SLURM has not requeued."""
    policy = here / "earlier.safetensors"
    write_empty(policy)
    text = text_of(capsys, *GIVEN, "--init-from", str(policy))
    for attempt in ("runs/cp-4711", "runs/cp-4711.1"):
        (here / attempt).mkdir(parents=True)
        (here / attempt / "run.yaml").write_text("task: CartPole-v1\n")
    words = run(text)[0][0][0]
    assert words[words.index("--run-dir") + 1] == "runs/cp-4711.2"


@pytest.mark.parametrize(("words", "directive"), [([], "requeue"), (["--job-restarts", "0"], "no-requeue")])
def test_whether_the_cluster_may_start_the_job_again(capsys, words, directive):
    directives = re.findall(r"^#SBATCH --(.*requeue)$", text_of(capsys, *GIVEN, *words), re.MULTILINE)
    assert directives == [directive]
