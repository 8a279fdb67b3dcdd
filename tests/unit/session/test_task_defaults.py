"""The default settings of a task that is named alone: which kind it is, and what goes before them."""

import dataclasses

import gymnasium
import pytest

import lockstep.launch.train as launch
from lockstep.algorithms.ppo import PPOConfig
from lockstep.algorithms.task_defaults import BY_ALGORITHM, BY_TASK, PPO
from lockstep.cli import main as cli
from lockstep.config.env import EnvConfig
from lockstep.envs.spec import ActionSpec, EnvSpec
from lockstep.errors import ConfigError
from lockstep.record.run_dir import RunDir
from lockstep.run import Run, load, override
from lockstep.session import resume
from lockstep.session.task_defaults import defaults_note, kind_of, task_defaults
from lockstep.world import World

CHOICES = ActionSpec("discrete", (2,))
NUMBERS = ActionSpec("continuous", (3,), (-1.0,) * 3, (1.0,) * 3)
VECTOR = EnvSpec(4, CHOICES, "same_step", True)
ROBOT = dataclasses.replace(VECTOR, action=NUMBERS)
IMAGE = dataclasses.replace(VECTOR, observation_size=3 * 8 * 8, image=(3, 8, 8))


@pytest.mark.parametrize(
    ("task", "env", "spec", "kind"),
    [
        ("My-v0", {}, VECTOR, "discrete"),
        ("My-v0", {}, dataclasses.replace(VECTOR, action=ActionSpec("multi_discrete", (3, 5))), "discrete"),
        ("My-v0", {}, ROBOT, "continuous"),
        ("My-v0", {}, IMAGE, "pixels"),
        ("My-v0", {}, dataclasses.replace(IMAGE, action=NUMBERS), "pixels"),
        ("jax/CartPole-v1", {}, VECTOR, "discrete"),
        ("gymnax/Pendulum-v1", {}, ROBOT, "continuous"),
        ("brax/ant", {}, ROBOT, "device"),
        ("brax/ant", {"placement": "host"}, ROBOT, "continuous"),
        ("Mjlab-Velocity", {}, ROBOT, "device"),
        ("envpool/Hopper-v4", {}, ROBOT, "continuous"),
        ("lockstep/Cartpole-v0", {}, ROBOT, "continuous"),
        ("lockstep/Cartpole-v0", {"placement": "device"}, ROBOT, "device"),
    ],
)
def test_the_spec_decides_the_kind(task, env, spec, kind):
    for framework in ("torch", "jax"):
        found, reason = kind_of(Run(task=task, ml_framework=framework, env=EnvConfig(**env)), spec)
        assert (found, bool(reason)) == (kind, True)


def test_one_number_is_not_called_numbers():
    single = dataclasses.replace(ROBOT, observation_size=1)
    assert kind_of(Run(task="My-v0"), single)[1] == "actions are 3 real numbers, observations 1 number"
    alone = dataclasses.replace(single, action=ActionSpec("discrete", (1,)))
    assert kind_of(Run(task="My-v0"), alone)[1] == "actions are 1 choice, observations 1 number"


@pytest.mark.parametrize(("algo", "kind"), [(algo, kind) for algo, kinds in BY_ALGORITHM.items() for kind in kinds])
def test_all_defaults_are_settings_and_divide_among_ranks(algo, kind):
    run = override(Run(task="any", algo=algo), BY_ALGORITHM[algo][kind])
    for ranks in (1, 2, 4):
        assert run.minibatch_rows(World(size=ranks)) > 0


@pytest.mark.parametrize("task", list(BY_TASK["ppo"]))
def test_a_task_with_settings_of_its_own(task):
    own = BY_TASK["ppo"][task]
    alike = override(Run(task="any"), {**PPO["continuous"], **own})
    assert min(alike.minibatch_rows(World(size=ranks)) for ranks in (1, 2, 4)) > 0
    pytest.importorskip("mujoco")
    for name in (f"{task}-v5", f"{task}-v4"):
        run = task_defaults(name, {})
        assert (run.algorithm, run.network, run.num_envs) == (alike.algorithm, alike.network, alike.num_envs)
        assert (
            defaults_note(run, ROBOT) == f"default ppo settings for {name} (tuned for this task by RL Baselines3 Zoo)"
        )
    assert task_defaults(f"{task}-v5", {"algo": "sac"}).network == Run(task="any", algo="sac").network
    assert "tuned" not in (defaults_note(Run(task=f"My{task}-v5"), ROBOT) or "")


def test_both_frameworks_have_the_same_defaults():
    torch, jax = (task_defaults("lockstep/Reach-v0", {"ml_framework": name}) for name in ("torch", "jax"))
    assert torch == jax
    assert torch.algorithm.num_epochs == PPO["continuous"]["num_epochs"] != PPOConfig().num_epochs


@pytest.mark.parametrize(
    ("task", "alone", "whole"),
    [
        ("lockstep/Cartpole-v0", {"env.placement": "device"}, {"env": "{placement: device}"}),
        ("CartPole-v1", {"network.recurrent": "gru"}, {"network": "{recurrent: gru}"}),
    ],
)
def test_a_whole_section_decides_as_its_settings_do(task, alone, whole):
    assert task_defaults(task, alone) == task_defaults(task, whole) != task_defaults(task, {})


def test_settings_of_the_environment_decide_too():
    assert task_defaults("lockstep/Cartpole-v0", {}).num_envs == PPO["continuous"]["num_envs"]
    for name in ("placement", "env.placement"):
        assert task_defaults("lockstep/Cartpole-v0", {name: "device"}).num_envs == PPO["device"]["num_envs"]


def test_a_default_that_contradicts_a_given_setting_is_left_out():
    for name in ("recurrent", "network.recurrent"):
        assert (
            task_defaults("lockstep/Reach-v0", {name: "gru"}).algorithm.num_minibatches == PPOConfig().num_minibatches
        )
    assert task_defaults("lockstep/Reach-v0", {"recurrent": "none"}).algorithm.num_minibatches == 32


OWN_ENV = """
from gymnasium.envs.classic_control import PendulumEnv

class Env(PendulumEnv):
    def __init__(self, learning_rate=0.5, render_mode=None):
        super().__init__(render_mode)
"""


def test_an_argument_of_the_environment_rules_no_default_out(tmp_path):
    (tmp_path / "own.py").write_text(OWN_ENV)
    found = task_defaults(f"{tmp_path}/own.py:Env", {"algo": "sac", "env.kwargs.learning_rate": 0.3})
    assert found.algorithm.critic_learning_rate == 1e-3


def test_critics_of_sac_learn_faster_unless_a_learning_rate_is_given():
    sac = {"algo": "sac"}
    default = task_defaults("Pendulum-v1", sac).algorithm
    assert (default.learning_rate, default.critic_learning_rate) == (3e-4, 1e-3)
    assert task_defaults("Pendulum-v1", {**sac, "learning_rate": "1e-4"}).algorithm.critic_learning_rate is None


def test_an_algorithm_without_a_table_has_the_defaults_of_its_class(monkeypatch):
    monkeypatch.setattr("lockstep.session.task_defaults.BY_ALGORITHM", {})
    assert task_defaults("lockstep/Reach-v0", {}) == Run(task="lockstep/Reach-v0")
    assert defaults_note(Run(task="any"), VECTOR) is None


@pytest.fixture
def trained(monkeypatch, tmp_path):
    """The runs that would be trained."""
    runs = []

    def record(run, *args, **kwargs):
        runs.append(run)
        return {"status": "finished"}

    monkeypatch.setattr(launch, "_train_here", record)
    monkeypatch.chdir(tmp_path)
    return runs


def test_settings_that_are_given_go_before_the_defaults(trained, capsys):
    given = ("--num-envs", "4", "--set", "normalize_return=false", "--set", "total_steps=9")
    assert cli.main(["train", "lockstep/Reach-v0", *given]) == 0
    run = trained[0]
    assert (run.num_envs, run.total_steps, run.algorithm.normalize_return) == (4, 9, False)
    assert run.algorithm.num_epochs == PPO["continuous"]["num_epochs"]
    notes = [line for line in capsys.readouterr().err.splitlines() if "default" in line]
    assert len(notes) == 1
    assert notes[0].startswith("lockstep: note: default ppo settings for continuous actions on a vector (actions are ")


@pytest.mark.parametrize("target", ["mine.yaml", "mine.py:recipe", "pendulum"])
def test_a_file_or_a_recipe_is_not_changed(target, trained, tmp_path, capsys):
    (tmp_path / "mine.yaml").write_text("task: lockstep/Reach-v0\n")
    recipe = "def recipe():\n    return Run(task='lockstep/Reach-v0')\n"
    (tmp_path / "mine.py").write_text(f"from lockstep.run import Run\n\n\n{recipe}")
    assert cli.main(["train", target]) == 0
    assert trained[0].algorithm.num_epochs == (10 if target == "pendulum" else PPOConfig().num_epochs)
    assert not trained[0].algorithm.normalize_observation
    notes = [line for line in capsys.readouterr().err.splitlines() if "default" in line]
    # Only a file without any setting of its algorithm may have been meant to begin with those of its kind of task.
    assert len(notes) == (1 if target == "mine.yaml" else 0)


def test_python_trains_what_the_command_trains(trained, tmp_path):
    import lockstep

    (tmp_path / "mine.yaml").write_text("task: lockstep/Reach-v0\nseed: 4\n")
    for target in ("cartpole-dqn", "mine.yaml"):
        lockstep.train(target, num_envs=16)
        assert cli.main(["train", target, "--num-envs", "16"]) == 0
        assert trained[-2] == trained[-1]


@pytest.mark.parametrize(
    ("run", "options", "wanted"),
    [
        ({"task": "CartPole-v1"}, {}, "run is a dict, and must be a lockstep.Run, or the name of a task"),
        (Run, {}, "run is Run, and must be"),
        (None, {}, "run is a NoneType, and must be"),
        (gymnasium.Env, {}, r"run is Env, and must be .*: lockstep.train\(\"path/to/file.py:Env\"\)"),
        (Run(task="CartPole-v1"), {"ranks": "auto"}, "ranks='auto' must be a whole number"),
    ],
)
def test_python_is_told_what_to_call(trained, run, options, wanted):
    import lockstep

    with pytest.raises(ConfigError, match=wanted):
        lockstep.train(run, **options)


def test_python_is_told_of_an_unknown_setting_before_an_environment_is_made():
    import lockstep

    with pytest.raises(ConfigError, match="unknown setting leanring_rate; did you mean"):
        lockstep.train("NoSuchTask-v5", leanring_rate=1)


def test_python_has_the_defaults_for_the_name_of_a_task_and_changes_no_run(trained, capsys):
    import lockstep

    lockstep.train("lockstep/Reach-v0", num_envs=4, seed=3)
    lockstep.train(Run(task="lockstep/Reach-v0", algorithm=PPOConfig()))
    lockstep.train(Run(task="lockstep/Reach-v0"))
    by_name, explicit, implicit = (dataclasses.replace(run, env=EnvConfig()) for run in trained)
    assert by_name == override(task_defaults("lockstep/Reach-v0", {}), {"num_envs": 4, "seed": 3})
    assert explicit == implicit == Run(task="lockstep/Reach-v0")
    assert capsys.readouterr().err.count("default ppo settings") == 1


def test_a_resumed_run_has_the_settings_of_its_file(tmp_path, monkeypatch):
    run = task_defaults("lockstep/Reach-v0", {})
    path = RunDir.create(tmp_path / "run", run).path
    assert load(path / "run.yaml") == run, "the file has all of them"
    changed = {kind: {"num_epochs": 1} for kind in PPO}
    monkeypatch.setattr("lockstep.session.task_defaults.BY_ALGORITHM", {"ppo": changed})
    assert resume.prepare(path, {}).run == run


def test_check_reports_the_kind(capsys):
    assert cli.main(["check", "lockstep/Reach-v0"]) == 0
    assert "  default ppo settings for continuous actions on a vector" in capsys.readouterr().out
