"""What can be typed, and what is said about what cannot."""

import collections
import importlib
import inspect
import json
import os
import runpy
import shlex
import subprocess
import sys
import types
from pathlib import Path

import pytest

import lockstep.train  # noqa: F401  # first imported beside a replacement of `train`, it would keep that
from empty_policies import write_empty
from lockstep import recipes
from lockstep.cli import main as cli
from lockstep.cli.chaos.faults import KINDS
from lockstep.cli.command_help import COMMANDS, FAULTS
from lockstep.cli.parser import parser
from lockstep.errors import ConfigError
from lockstep.launch import gpus
from lockstep.run import Run, dump, load, override
from lockstep.session import policy_file
from lockstep.session.task_defaults import task_defaults

pytestmark = pytest.mark.usefixtures("here")


ROOT = Path(__file__).parents[3]
OF_SUITES = ("ant_brax", "cartpole_gymnax", "go1_mjlab", "go1_playground", "pong_envpool")
"""Recipes of tasks whose packages have an environment of their own: tests/suites makes them."""


def requested(trained, *arguments):
    assert cli.main(["train", *arguments]) == 0
    return trained[-1].run


def test_help_answers_without_loading_anything_heavy():
    code = """
import sys
from lockstep.cli.main import main
try:
    main(["--help"])
except SystemExit as stop:
    assert stop.code == 0
heavy = {"torch", "jax", "gymnasium", "numpy", "yaml", "msgspec", "rich", "tensorboard"} & set(sys.modules)
assert not heavy, heavy
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
    commands = (
        "train",
        "launch",
        "submit",
        "evaluate",
        "play",
        "tasks",
        "check",
        "report",
        "runs",
        "sweep",
        "watch",
        "recipe",
        "doctor",
        "offline",
        "export",
    )
    for word in (*commands, "examples:"):
        assert word in done.stdout


def test_target_is_a_recipe_before_a_task(trained):
    assert requested(trained, "cartpole") == recipes.load("cartpole")
    with pytest.raises(ConfigError, match=r"there is no recipe cartpolee; did you mean cartpole"):
        recipes.load("cartpolee")
    assert requested(trained, "cartpole-isaac") == recipes.load("cartpole_isaac")
    assert requested(trained, "CartPole-v1") == task_defaults("CartPole-v1", {})
    assert requested(trained, "--task=CartPole-v1") == task_defaults("CartPole-v1", {})
    assert requested(trained, "cartpole", "--task=CartPole-v0").task == "CartPole-v0"
    with pytest.raises(ConfigError, match="there is no recipe None; recipes: ant_brax, cartpole"):
        recipes.load(None)


def test_every_recipe_makes_its_environment_and_divides_among_two_ranks():
    from lockstep.envs.make import env_spec
    from lockstep.world import World

    assert recipes.names() == [
        *("ant_brax", "cartpole", "cartpole_dqn", "cartpole_gymnax", "cartpole_isaac", "cartpole_jax", "go1_mjlab"),
        *("go1_playground", "pendulum", "pendulum_sac", "pong", "pong_envpool", "pong_ppo", "pong_small"),
    ]
    for name in recipes.names():
        run = recipes.load(name)
        if name not in OF_SUITES:
            env_spec(run.task, run.env)
        for ranks in (1, 2, 4):
            run.algorithm.minibatch_rows(World(size=ranks).shard_size(run.num_envs, "num_envs"), ranks)


def test_flags_and_settings_reach_the_run(trained):
    run = requested(
        trained, "CartPole-v1", "--algo", "ppo", "--seed", "3", "--num-envs", "16", "--device=cpu",
        "--set", "learning_rate=1e-3", "--set=network.hidden=[8, 8]", "--set", "kwargs.sutton_barto_reward=true",
    )  # fmt: skip
    expected = override(
        task_defaults("CartPole-v1", {}), {"seed": 3, "num_envs": 16, "device": "cpu", "learning_rate": 1e-3}
    )
    assert run == override(expected, {"hidden": [8, 8], "env.kwargs": {"sutton_barto_reward": True}})


def test_dqn_on_a_task_of_its_own(trained):
    run = requested(trained, "CartPole-v1", "--algo", "dqn", "--set", "double=false", "--set", "algorithm.gamma=0.9")
    assert run == override(task_defaults("CartPole-v1", {"algo": "dqn"}), {"double": False, "gamma": 0.9})
    run = requested(trained, "--algo=dqn", "--task=CartPole-v1", "--max_iterations=10", "--set", "num_steps=4")
    assert run.total_steps == 10 * run.num_envs * 4


NODES = ["--nnodes", "2", "--nproc-per-node", "2", "--node-rank", "0", "--master-addr", "localhost"]


def test_a_replay_is_asked_to_fit_before_ranks_start(launched, here, monkeypatch):
    asked = []
    monkeypatch.setattr("lockstep.session.host_checks.check_host", lambda run, spec, world, **_: asked.append(world))
    monkeypatch.setattr("lockstep.launch.commands.train_on_nodes", lambda *args: 0)
    assert cli.main(["train", "CartPole-v1", "--algo", "dqn", "--ranks", "2"]) == 7
    assert cli.main(["train", "CartPole-v1", "--algo", "dqn", *NODES]) == 0
    assert [(world.size, world.local_size) for world in asked] == [(2, 2)], "ranks on nodes ask themselves"
    assert cli.main(["train", "CartPole-v1", "--ranks", "2"]) == 7
    assert len(asked) == 1, "nothing to keep"


def test_a_node_may_have_fewer_ranks_than_the_others(launched, here, monkeypatch):
    monkeypatch.setattr("lockstep.launch.commands.train_on_nodes", lambda *args: 0)
    # Of 3 + 1 ranks; 8 environments would not divide among 6.
    assert cli.main(["train", "CartPole-v1", "--set", "num_envs=8", *NODES, "--nproc-per-node", "3"]) == 0


def test_every_node_has_gpus_of_its_own(launched, here, monkeypatch, capsys):
    monkeypatch.setattr("lockstep.launch.commands.train_on_nodes", lambda *args: 0)
    monkeypatch.setattr("lockstep.launch.gpus.installed_gpus", lambda *_: 2)
    assert cli.main(["train", "CartPole-v1", "--device", "cuda", *NODES]) == 0
    assert cli.main(["train", "CartPole-v1", "--device", "cuda", *NODES, "--nproc-per-node", "3"]) == 2
    assert (
        "--nproc-per-node 3 is more than the 2 GPUs of this machine; use --nproc-per-node 2" in capsys.readouterr().err
    )
    assert cli.main(["train", "CartPole-v1", "--device", "cuda", "--ranks", "4"]) == 2
    assert "--ranks 4 is more than the 2 GPUs of this machine" in capsys.readouterr().err


def test_robot_learning_spelling(trained):
    run = requested(
        trained, "--local-rank=0", "--task=CartPole-v1", "--headless", "--num_envs=32", "--max_iterations", "10",
        "--ml_framework=torch", "--set", "num_steps=64",
    )  # fmt: skip
    assert (run.num_envs, run.total_steps) == (32, 10 * 32 * 64)


def test_a_config_file_and_a_run_directory_can_be_trained(trained, here):
    (here / "mine.yaml").write_text("task: CartPole-v1\nseed: 9\n")
    assert requested(trained, "mine.yaml") == Run(task="CartPole-v1", seed=9)
    (here / "run").mkdir()
    (here / "mine.yaml").rename(here / "run" / "run.yaml")
    assert requested(trained, "run").seed == 9


def test_file_without_settings_of_its_algorithm_is_told_which_defaults_it_has(trained, here, capsys):
    """A task alone begins with others, with which it learns more; a complete config of that run says nothing."""
    (here / "mine.yaml").write_text("task: Pendulum-v1\ntotal_steps: 4096\n")
    requested(trained, "mine.yaml")
    said = capsys.readouterr().err
    assert "note: mine.yaml sets nothing below algorithm" in said and "\n" not in said.strip()
    assert "not the default ppo settings for continuous actions on a vector; lockstep train Pendulum-v1 --set" in said
    for complete in (dump(Run(task="Pendulum-v1")), "task: Pendulum-v1\nalgorithm: {gamma: 0.9}\n"):
        (here / "mine.yaml").write_text(complete)
        requested(trained, "mine.yaml")
        assert capsys.readouterr().err == ""


def test_run_directory_as_a_target_starts_a_new_run_and_says_so(trained, here, capsys):
    (here / "a run").mkdir()
    (here / "a run" / "run.yaml").write_text(dump(Run(task="CartPole-v1")))
    requested(trained, "a run")
    assert "note: a new run with the settings of 'a run'; --resume 'a run' continues" in capsys.readouterr().err


@pytest.mark.parametrize("name", recipes.names())
def test_a_printed_recipe_is_complete_and_equal(name, trained, here, capsys):
    assert cli.main(["recipe", name]) == 0
    text = capsys.readouterr().out
    (here / "my_own.py").write_text(text)
    if name in OF_SUITES:
        assert recipes.load_file("my_own.py") == recipes.load(name)
    else:
        assert requested(trained, "my_own.py:recipe") == recipes.load(name)
        assert requested(trained, str(here / "my_own.py")) == recipes.load(name)
    own, other = {
        "ppo": ("gae_lambda=", "DQNConfig"),
        "dqn": ("epsilon_end=", "PPOConfig"),
        "sac": ("target_entropy=", "PPOConfig"),
    }[recipes.load(name).algo]
    for setting in ("num_shards=None", own, "vectorization=", "initial_log_std=", "startup_timeout_s="):
        assert setting in text
    assert other not in text, "imports what is used, and no more"
    in_jax = recipes.load(name).ml_framework == "jax"
    launcher = "lockstep.launch.jax" if in_jax else "torch.distributed.launch --nproc_per_node=2 --master_port=29501"
    assert f"python -m {launcher}" in text and ("torch" in text.split("import sys")[0]) is not in_jax
    printed, packaged = (
        runpy.run_path("my_own.py")["recipe"],
        importlib.import_module(f"lockstep.recipes.{name}").recipe,
    )
    assert inspect.getdoc(printed) == inspect.getdoc(packaged), "where its numbers come from, and what differs"
    assert "# Discount per step." in text
    for line in text.splitlines():
        assert len(line) <= 120


@pytest.mark.parametrize("name", ["cartpole", "cartpole_dqn", "pong"])
def test_a_printed_recipe_is_well_formatted(here, name):
    pytest.importorskip("ruff")
    (here / "my_own.py").write_text(recipes.source(name))
    isolated = ["--line-length", "120", "--isolated", "my_own.py"]
    for command in (["format", "--check"], ["check", "--select", "F,I"]):  # nothing imported for nothing, in order
        done = subprocess.run([sys.executable, "-m", "ruff", *command, *isolated], capture_output=True, text=True)
        assert done.returncode == 0, done.stdout


def test_a_printed_recipe_runs_as_a_script(here):
    (here / "my_own.py").write_text(recipes.source("cartpole").replace("lockstep.train", "fake_train"))
    (here / "fake_train.py").write_text("def main(words):\n    print(words)\n    return 5\n")
    done = subprocess.run([sys.executable, "my_own.py", "--ranks", "2"], capture_output=True, text=True)
    assert done.returncode == 5
    assert done.stdout.strip().endswith("my_own.py:recipe', '--ranks', '2']")


@pytest.mark.parametrize("name", ["cartpole", "cartpole_dqn", "pendulum", "pendulum_sac"])
def test_recipes_with_small_networks_need_no_gpu_per_rank(name):
    assert recipes.load(name).device == "cpu"


def test_recipes_are_listed(capsys):
    assert cli.main(["recipe"]) == 0
    assert [line.split()[0] for line in capsys.readouterr().out.splitlines()] == recipes.names()


def test_version(capsys):
    assert cli.main(["--version"]) == 0
    assert capsys.readouterr().out.startswith("lockstep 0.")


@pytest.fixture
def policy(tmp_path_factory):
    """A policy file without parameters."""
    path = tmp_path_factory.mktemp("earlier") / policy_file.POLICY_FILE
    write_empty(path)
    return path


def test_one_rank_trains_in_this_process(trained, launched, policy, here):
    assert cli.main(["train", "cartpole", "--run-dir", "here", "--init-from", str(policy)]) == 0
    (call,) = trained
    assert (str(call.run_dir), call.init_from, call.started_by_lockstep) == ("here", policy, False)
    assert launched == []
    assert os.listdir(here) == []


def test_checkpoint_is_another_word_for_init_from(trained, policy):
    assert cli.main(["train", "cartpole", "--checkpoint", str(policy.parent)]) == 0
    assert trained[0].init_from == policy.parent


def test_launched_run_keeps_the_path_of_its_first_policy(here, launched, policy):
    cli.main(["train", "cartpole", "--ranks", "2", "--init-from", str(policy), "--run-dir", "here"])
    assert launched[0].command[-2:] == ["--init-from", str(policy)]
    assert (here / "here" / "init_from.txt").read_text() == f"{policy.absolute()}\n"


def test_several_ranks_get_one_run_directory_and_one_command(launched, trained, policy, here, monkeypatch):
    monkeypatch.setenv("PYTHONPATH", "/mine")
    (here / "beside").mkdir()
    (here / "beside" / "own.py").write_text(
        "from lockstep.recipes import load\ndef recipe(): return load('cartpole')\n"
    )
    code = cli.main(["train", "beside/own.py", "--ranks", "2", "--seed", "5", "--init-from", str(policy), "--debug"])
    assert code == 7
    assert trained == []
    (call,) = launched
    assert call.ranks == 2
    assert load(call.run_dir / "run.yaml") == override(recipes.load("cartpole"), {"seed": 5})
    file, folder = str(call.run_dir / "run.yaml"), str(call.run_dir)
    assert call.command[1:7] == ["-m", "lockstep.train", file, "--run-dir", folder, "--started-by-lockstep"]
    assert call.command[7:] == ["--debug", "--init-from", str(policy)]
    assert call.restart_policy.max_restarts == 0
    search = call.environment["PYTHONPATH"].split(":")
    assert {str(here), str(here / "beside"), "/mine"} <= set(search)


def test_the_launched_command_is_understood(launched, trained, monkeypatch):
    cli.main(["train", "cartpole", "--ranks", "2"])
    for name, value in {"RANK": "1", "WORLD_SIZE": "2", "LOCAL_RANK": "1", "MASTER_PORT": "1"}.items():
        monkeypatch.setenv(name, value)
    assert cli.main(["train", *launched[0].command[3:]]) == 0
    assert trained[0].started_by_lockstep
    assert trained[0].run == recipes.load("cartpole")
    assert trained[0].run_dir == launched[0].run_dir


def test_under_a_launcher_this_process_joins(trained, launched, monkeypatch, capsys):
    for name, value in {"RANK": "1", "WORLD_SIZE": "2", "LOCAL_RANK": "1", "MASTER_PORT": "1"}.items():
        monkeypatch.setenv(name, value)
    for ranks in ([], ["--ranks", "2"], ["--ranks", "auto"]):
        assert cli.main(["train", "--task=CartPole-v1", "--headless", "--distributed", "--local_rank=1", *ranks]) == 0
    assert len(trained) == 3
    assert launched == []
    assert cli.main(["train", "cartpole", "--ranks", "4"]) == 2
    assert "torchrun started 2 processes" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("status", "error", "code"),
    [
        ("finished", None, 0),
        ("solved", None, 0),
        ("failed", "x", 1),
        ("interrupted", "interrupted by SIGINT", 130),
        ("interrupted", "interrupted by SIGTERM", 143),
    ],
)
def test_exit_codes(status, error, code, monkeypatch):
    monkeypatch.setattr("lockstep.launch.train.train_checked", lambda run, **_: {"status": status, "error": error})
    assert cli.main(["train", "cartpole"]) == code


def test_recipes_are_suggested_for_unknown_tasks_alone(capsys):
    assert cli.main(["train", "CartPole-v1", "--set", "env.kwargs=3"]) == 2
    assert "recipes:" not in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ("", ["nothing to train"]),
        ("--set task=CartPole-v1", ["nothing to train; name the task by --task CartPole-v1"]),
        ("cartpole --set gamma =0.9", ["did you mean --set gamma=0.9?"]),
        ("cartpole --set gamma = 0.9", ["unexpected argument =; did you mean --set gamma=0.9?"]),
        ("cartpole --run-dir=", ["--run-dir", "is empty"]),
        ("cartpol", ["cartpol", "CartPole-v1", "recipes: cartpole"]),
        ("CartPole-v9", ["CartPole-v9", "CartPole-v1"]),
        ("CartPole-v1 --task=Pendulum-v1", ["two tasks"]),
        ("CartPole-v1 --set task=Pendulum-v1", ["two tasks", "CartPole-v1", "Pendulum-v1"]),
        ("Pendulum-v1 --algo sac --set algo=td3", ["--algo sac", "--set algo=td3", "give one"]),
        ("cartpole --num-envs 8 --set num-envs=16", ["--num-envs 8", "--set num_envs=16", "give one"]),
        ("cartpole --video --set evaluate_video=false", ["--video", "--set evaluate_video=false", "give one"]),
        ("cartpole --set num_env=3", ["num_env", "num_envs"]),
        ("cartpole --set learning_rate=-1", ["learning_rate=-1", "greater than 0"]),
        ("CartPole-v1 --set env.kwargs=3", ["env.kwargs=3 must be a mapping"]),
        (
            "lockstep/Cartpole-v0 --algo sac --set env.placement=device",
            ["env.placement=device", "algo=sac", "on the host"],
        ),
        ("cartpole --set learning_rate", ["--set learning_rate", "=VALUE"]),
        ("cartpole --set gamma:0.9", ["write --set gamma=0.9"]),
        ("cartpole --set gamma 0.9", ["did you mean --set gamma=0.9?"]),
        ("cartpole --set =5", ["--set =5 names no setting"]),
        ("cartpole --set hidden=64,64", ["network.hidden='64,64' must be a list", ": write [64,64]"]),
        ("cartpole --set hidden=abc", ["each item a whole number\n"]),
        ("cartpole --set network.module=Net", ["network.module=Net names nothing; write module:Name"]),
        ("cartpole --set network.module=nowhere:Net", ["network.module=nowhere:Net: no module 'nowhere'"]),
        ("cartpole --set symmetry=nowhere.py:mirror", ["symmetry=nowhere.py:mirror: there is no file"]),
        ("cartpole --num-env 3", ["--num-env", "--num-envs"]),
        ("cartpole gamma=3", ["--set gamma=3"]),
        ("cartpole --ranks 3", ["num_envs=32 does not divide among 3 shards; use 30 or 33"]),
        ("cartpole --ranks 64", ["num_envs=32 does not divide among 64 shards; use 64"]),
        ("cartpole --set num_shards=3", ["num_envs=32"]),
        ("cartpole --ranks 4 --set num_shards=2", ["num_shards=2", "4 ranks"]),
        ("cartpole --set num_minibatches=7", ["num_minibatches=7"]),
        ("cartpole --ranks 0", ["--ranks 0"]),
        ("cartpole --ranks many", ["--ranks many", "auto"]),
        ("cartpole --max-iterations 0", ["--max-iterations 0"]),
        ("cartpole --max-iterations 3 --set total_steps=5", ["--max-iterations", "total_steps"]),
        ("cartpole --ml_framework jax --set compile=true", ["compile=true", "ml_framework=jax"]),
        ("cartpole --ml_framework tf", ["ml_framework='tf'", "torch, jax"]),
        ("cartpole --algo a2c", ["algo='a2c'", "one of ppo, dqn, sac, td3"]),
        ("cartpole --algo dqn", ["algo=dqn", "would be lost", "lockstep train CartPole-v1 --algo dqn"]),
        ("cartpole_dqn --set algo=ppo", ["algo=ppo", "trains with dqn", "lockstep train CartPole-v1 --algo ppo"]),
        ("CartPole-v1 --algo dqn --set num_epochs=3", ["num_epochs is a setting of ppo", "algo=dqn"]),
        ("CartPole-v1 --set epsilon_end=0.1", ["epsilon_end is a setting of dqn", "algo=ppo"]),
        ("CartPole-v1 --algo dqn --set epsilon_nd=0.1", ["unknown setting epsilon_nd", "algorithm.epsilon_end"]),
        # before an environment is made, which would fail
        ("NoSuchTask-v5 --set leanring_rate=1", ["unknown setting leanring_rate", "algorithm.learning_rate"]),
        ("NoSuchTask-v5 --algo sac --set num_epochs=3", ["num_epochs is a setting of ppo", "algo=sac"]),
        ("CartPole-v1 --algo dqn --set batch_size=33 --ranks 2", ["batch_size=33 does not divide among 2 shards"]),
        ("cartpole --distributed", ["--distributed", "torch.distributed.run", "--ranks 2"]),
        ("cartpole --distributed --ml_framework jax", ["--distributed", "-m lockstep.launch.jax --nproc", "--ranks 2"]),
        ("cartpole --device cuda", ["device=cuda", "lockstep doctor"]),
        ("CartPole-v1 --ranks 2 --set backend=nccl", ["backend=nccl", "lockstep doctor"]),
        ("cartpole --max-restarts -1", ["--max-restarts -1", "at least 0"]),
        ("cartpole --max-restarts many", ["--max-restarts many", "a number"]),
        ("--task=lockstep/Reach-v0 --video", ["a video was asked for", "lockstep/Reach-v0 cannot be rendered"]),
        ("cartpole --init-from nowhere", ["--init-from nowhere", "does not exist"]),
        ("cartpole --init-from .", ["--init-from .: . has no policy.safetensors and no checkpoint", "when it ends"]),
        ("cartpole --init-from broken.py", ["--init-from broken.py", "not a Lockstep policy file"]),
        ("cartpole --ranks 2 --run-dir /proc/nowhere/a", ["run_dir=/proc/nowhere/a", "--run-dir"]),
        ("nothing.yaml", ["nothing.yaml"]),
        ("nothing.py:recipe", ["nothing.py"]),
        ("broken.py:recipe", ["broken.py", "TypeError"]),
        ("broken.py:other", ["broken.py", "other"]),
        ("broken.py:number", ["broken.py:number", "must return a lockstep.run.Run, not int"]),
        ("broken.py:text", ["num_envs='8'", "a whole number"]),
        ("broken.py:env", ["gymnasium.register(", "entry_point=env) to broken.py", "train broken.py:My-v0"]),
        ("broken:env", ["task=broken:env is not a class", "entry_point=env) in broken", "the task broken:My-v0"]),
        ("broken.py:None-v0", ["broken.py has no None-v0"]),
        ("module_nowhere:Env", ["module_nowhere"]),
    ],
)
def test_bad_input_is_one_line_and_leaves_nothing(arguments, words, trained, launched, here, capsys):
    (here / "broken.py").write_text(
        "from lockstep.run import Run, EnvConfig\n"
        "def recipe():\n    return Run(task='CartPole-v1', wrong=1)\n"
        "def number():\n    return 3\n"
        "def text():\n    run = Run(task='CartPole-v1')\n    object.__setattr__(run, 'num_envs', '8')\n    return run\n"
        "def env():\n    import gymnasium\n    return gymnasium.make('CartPole-v1')\n"
    )
    before = set(os.listdir(here)) | {"__pycache__"}
    assert cli.main(["train", *arguments.split()]) == 2
    said = capsys.readouterr()
    assert said.out == ""
    assert said.err.count("\n") == 1
    assert said.err.startswith("lockstep: error: ")
    for word in words:
        assert word in said.err
    assert trained == launched == []
    assert set(os.listdir(here)) <= before


@pytest.mark.parametrize(
    ("flag", "answer", "num_made"),
    [
        ("--num-enves 4", "unknown argument --num-enves; did you mean --num-envs?", 0),
        ("--entropy-coeficient 3", "did you mean --set entropy_coef=VALUE?", 0),
        ("--batch-size 512", "--set num_minibatches=4", 1),  # of the rollout that the task's defaults make
    ],
)
def test_mistyped_flag_is_refused_before_an_environment_is_made(flag, answer, num_made, trained, here, capsys):
    (here / "counted_env.py").write_text(
        "from gymnasium.envs.classic_control import CartPoleEnv\n"
        "class Counted(CartPoleEnv):\n"
        "    def __init__(self, render_mode=None):\n"
        "        super().__init__()\n"
        "        open('made', 'a').write('1')\n"
    )
    assert cli.main(["train", "counted_env:Counted", *flag.split()]) == 2
    assert answer in capsys.readouterr().err
    made = here / "made"
    assert len(made.read_text() if made.exists() else "") == num_made
    assert trained == []


def test_file_is_imported_for_an_id_that_it_registers(trained, here):
    (here / "registers.py").write_text(
        "import gymnasium\ngymnasium.register('Wrapped-v0', lambda **kwargs: gymnasium.make('CartPole-v1', **kwargs))\n"
    )
    assert requested(trained, "registers.py:Wrapped-v0").task == str(here / "registers.py:Wrapped-v0")


def test_run_shorter_than_a_rollout_is_told_of(trained, capsys):
    for steps, told in ((2047, 1), (2048, 0)):
        requested(trained, "cartpole", "--set", f"total_steps={steps}")
        said = capsys.readouterr().err
        assert said.count("is less than one rollout, which is collected whole: 2048 steps") == told


def test_num_shards_allows_what_the_ranks_alone_would_not(launched):
    assert cli.main(["train", "cartpole", "--ranks", "3", "--set", "num_shards=4"]) == 7
    assert launched[0].ranks == 3


@pytest.mark.parametrize(
    ("num_gpus", "arguments", "ranks"),
    [
        (2, "--ranks auto", 2),
        (2, "--ranks auto --ml-framework jax", 4),
        (2, "--ranks 2", 2),
        (1, "--ranks 2 --device cpu", 2),
        (1, "--ranks 2", None),
    ],
)
def test_ranks_and_gpus(num_gpus, arguments, ranks, monkeypatch, launched, trained, capsys):
    monkeypatch.setattr(gpus, "installed_gpus", lambda framework="torch": num_gpus)
    monkeypatch.setattr(gpus, "visible_gpus", lambda framework="torch": num_gpus if framework == "torch" else 4)
    code = cli.main(["train", "CartPole-v1", *arguments.split()])
    if ranks is None:
        assert code == 2
        assert "--ranks 2 is more than the 1 GPU of this machine; use --ranks 1" in capsys.readouterr().err
        assert launched == []
    else:
        assert launched[0].ranks == ranks


def test_two_ranks_of_the_first_command_need_no_gpus(monkeypatch, launched):
    """`make train`, on a machine with one GPU."""
    monkeypatch.setattr(gpus, "installed_gpus", lambda framework="torch": 1)
    assert cli.main(["train", "cartpole", "--ranks", "2"]) == 7
    assert launched[0].ranks == 2


def test_ranks_auto_without_gpus_is_one(trained, launched):
    assert cli.main(["train", "cartpole", "--ranks", "auto"]) == 0
    assert len(trained) == 1


def test_debug_of_a_script_is_its_own(capsys, here):
    assert cli.main(["launch", "missing.py", "--debug"]) == 2
    assert capsys.readouterr().err.startswith("lockstep: error: script missing.py does not exist")
    assert cli.main(["launch", "--debug", "missing.py"]) == 2
    assert "Traceback" in capsys.readouterr().err


@pytest.mark.parametrize(
    "words", [["train", "cartpole"], ["sweep", "my.yaml"], ["bench", "--list"], ["scale", "cartpole"]]
)
def test_empty_run_dir_is_refused(words, capsys):
    assert cli.main([*words, "--run-dir", ""]) == 2
    assert "--run-dir: is empty; name a directory, or leave it out" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("command", "flag", "default"),
    [
        ("train", "--ranks N|auto", "per GPU (default: 1)"),
        ("chaos", "--ranks N|auto", "per GPU (default: 2)"),
        ("scale", "--ranks N,N,...", "such as 1,2,4 (required)"),
    ],
)
def test_help_tells_what_ranks_means(command, flag, default, capsys):
    with pytest.raises(SystemExit):
        cli.main([command, "--help"])
    shown = " ".join(capsys.readouterr().out.split())
    assert default in shown[shown.index(f" {flag} ", shown.index("options:")) :][:120]


def test_every_command_says_what_it_does_with_an_example_that_is_understood(capsys):
    top = parser(collections.defaultdict(lambda: print))
    for name, text in COMMANDS.items():
        with pytest.raises(SystemExit):
            cli.main([*name.split(), "--help"])
        shown = " ".join(capsys.readouterr().out.split())
        assert " ".join(text.description.split()) in shown and f"example: {text.example}" in shown, name
        assert text.page is None or (f"page: {text.page}" in shown and (ROOT / text.page).is_file()), name
        typed = shlex.split(text.example.replace('eval "$(', "").removesuffix(')"').partition(">")[0].partition("&")[0])
        args, unknown = top.parse_known_args(typed[1:])
        assert unknown == [] and typed[0] == "lockstep" and args.command == name.split()[0], name


def test_help_of_chaos_names_all_faults():
    assert FAULTS.split(", ") == list(KINDS)


def test_debug_shows_the_traceback_and_keeps_the_code(capsys):
    assert cli.main(["train", "cartpole", "--set", "gama=1", "--debug"]) == 2
    said = capsys.readouterr().err
    assert "Traceback" in said
    assert said.splitlines()[-1].startswith("lockstep: error: unknown setting gama")


@pytest.mark.parametrize(
    "arguments", [["trian"], ["evaluate"], ["evaluate", "x", "--episodes", "no"], ["recipe", "--x"]]
)
def test_other_bad_usage_is_one_line(arguments, capsys):
    assert cli.main(arguments) == 2
    assert capsys.readouterr().err.count("\n") == 1


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        (["--debug", "runs"], "--debug belongs to the command: write it after runs"),
        (["--json", "runs"], "--json belongs to the command: write it after runs"),
        (["offline", "--debug", "train", "data"], "--debug belongs to the command: write it after offline train"),
        (["runs", "--jsn"], "unknown argument --jsn; did you mean --json?"),
        (["launch"], "the following arguments are required: SCRIPT\n"),
        (["offline", "train", "data", "--agent", "x"], "unknown argument --agent; see lockstep offline train --help"),
    ],
)
def test_flag_before_its_command_is_told_where_to_go(arguments, error, capsys):
    assert cli.main(arguments) == 2
    assert f"lockstep: error: {error}" in capsys.readouterr().err


def test_a_recipe_name_that_is_nearly_right(capsys):
    assert cli.main(["recipe", "cartpol"]) == 2
    assert "did you mean cartpole" in capsys.readouterr().err


def test_evaluate_passes_on_and_prints_the_result(monkeypatch, here, capsys):
    calls = []

    def evaluate_run(path, **kwargs):
        calls.append((path, kwargs))
        told = {
            "task": "a",
            "eval_return_mean": 1.0,
            "eval_return_std": 0.5,
            "eval_episodes": kwargs["episodes"],
            "rank": 0,
        }
        return told | {"policy": "the best policy", "video": "videos/evaluate.gif" if kwargs["video"] else None}

    fake = types.SimpleNamespace(evaluate_run=evaluate_run)
    monkeypatch.setitem(sys.modules, "lockstep.cli.evaluate", fake)
    assert cli.main(["evaluate", str(here), "--episodes", "7", "--sampled"]) == 0
    asked = {"episodes": 7, "greedy": False, "seed": None, "video": False, "ml_framework": None, "ranks": 1}
    assert calls == [(here, asked | {"best": False, "last": False, "step": None})]
    assert capsys.readouterr().out == "a: return 1.000 +- 0.5000 over 7 episodes, played by the best policy\n"
    assert cli.main(["evaluate", str(here), "--episodes", "1"]) == 0
    assert "over 1 episode, played" in capsys.readouterr().out
    assert cli.main(["evaluate", str(here), "--video", "--ml-framework", "jax", "--best", "--seed=3", "--ranks=2"]) == 0
    told = calls[-1][1]
    assert [told[name] for name in ("ml_framework", "best", "seed", "ranks")] == ["jax", True, 3, 2]
    assert capsys.readouterr().out.endswith("the best policy\nvideo: videos/evaluate.gif\n")
    assert cli.main(["play", str(here), "--video"]) == 0
    assert (calls[-1][1]["episodes"], calls[-1][1]["video"]) == (3, True)
    assert cli.main(["evaluate", str(here), "--checkpoint", "4096"]) == 0
    assert calls[-1][1]["step"] == "4096"
    for bad in ("--episodes 0", "--episodes x", "--seed -1", "--seed x", "--ranks 0"):
        assert cli.main(["evaluate", str(here), *bad.split()]) == 2
        assert f"lockstep: error: {bad} must be a number" in capsys.readouterr().err


def test_a_command_of_a_backend_that_is_not_installed_is_one_line(monkeypatch, here, capsys):
    def evaluate_run(path, **kwargs):
        raise ModuleNotFoundError("No module named 'torch.nn'", name=missing)

    monkeypatch.setitem(sys.modules, "lockstep.cli.evaluate", types.SimpleNamespace(evaluate_run=evaluate_run))
    missing = "torch.nn"
    assert cli.main(["evaluate", str(here)]) == 2
    said = capsys.readouterr().err
    assert said == "lockstep: error: this command needs the package torch: pip install 'lockstep-rl[torch]'\n"
    missing = "lockstep.of_ours"
    with pytest.raises(ModuleNotFoundError):
        cli.main(["evaluate", str(here)])


def test_run_yaml_is_json_comparable(launched):
    cli.main(["train", "cartpole", "--ranks", "2"])
    json.dumps(recipes.to_dict(load(launched[0].run_dir / "run.yaml")), allow_nan=False)
