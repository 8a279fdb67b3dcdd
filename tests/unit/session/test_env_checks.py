"""What is said about environments with faults: one line each, that names the method and says what to return."""

import random
import subprocess
import sys
import time
from pathlib import Path

import faulty_envs
import gymnasium
import numpy as np
import pytest

from lockstep.cli import main as cli
from lockstep.envs.vector import BUILT_IN
from lockstep.errors import ConfigError
from lockstep.run import EnvConfig, Run
from lockstep.session.env_checks.before_run import check_before_run
from lockstep.session.env_checks.episodes import Limits
from lockstep.session.env_checks.report import Report
from lockstep.session.env_checks.task import check_env_of_task
from quick import others_slow

ENVS = str(Path(faulty_envs.__file__))
TIME_ENOUGH = Limits(seconds=30.0)
QUICK = ("Grid", "Rows", "RowsWithNanElsewhere", "Board", "CartPole-v1")


def checked(name, config=EnvConfig(), limits=TIME_ENOUGH, **kwargs):  # noqa: B008
    report = Report(**kwargs)
    check_env_of_task(name if "/" in name or "-" in name else f"{ENVS}:{name}", config, report, limits)
    return report


@pytest.mark.parametrize("name", others_slow([*QUICK, *BUILT_IN, "Pendulum-v1"], *QUICK))
def test_nothing_is_said_where_there_is_no_fault(name):
    report = checked(name)
    assert (report.faults, report.warnings) == ([], [])
    assert len(report.facts) >= 3 and report.facts[0].startswith("observations: ")


def test_the_report_has_the_sizes_of_the_policy_s_and_of_the_critic_s_observation():
    report = checked("TwoKeys", EnvConfig(critic_keys=("steps",)))
    assert report.faults == []
    assert report.facts[0].endswith(", a vector of 51 for the policy, a vector of 21 for the critic")


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("NoObservationSpace", "observation_space is not set; set self.observation_space = gymnasium.spaces.Box("),
        ("ActionSpaceIsANumber", "action_space is 2; set self.action_space = gymnasium.spaces.Discrete(n)"),
        ("ActionsAreWords", "the task has the action space Text(1, 3, charset="),
        ("ResetWithoutInfo", "reset returned an array of shape (2,) and type float32; return two values, observation"),
        ("ResetWithoutSeed", "reset takes no argument seed and no options; write def reset(self, *, seed=None, opt"),
        ("ResetRaises", "reset raised ZeroDivisionError: division by zero ("),
        ("ResetNeedsASeed", "reset raised TypeError: unsupported operand"),
        ("OldStep", "step returned 4 values; return 5: observation, reward, terminated, truncated, info (done of"),
        ("StepReturnsNothing", "step returned None; return 5: observation, reward, terminated, truncated, info"),
        ("WrongShape", "reset returned an observation of shape (3,), and observation_space says (2,); return an array"),
        ("WordsSeen", "reset returned a str as observation; return an array of shape (2,) and type float32"),
        ("FractionsOfBytes", "reset returned an observation of type float64, and observation_space says uint8: fract"),
        ("ChoiceOutOfRange", "reset returned 7 as observation, which Discrete(5) does not hold"),
        ("KeysAreMissing", "reset returned a dict of cell as observation; return a dict of cell, steps"),
        ("KeysOfTwoTypes", "reset returned a dict of 1, cell as observation; return a dict of cell, steps"),
        ("NanSeen", "reset returned an observation that holds nan at index 1; return finite numbers"),
        ("NanReward", "step returned nan as reward; return a finite number"),
        ("HugeReward", "step returned 1e+300 as reward; return a number that float32 can hold"),
        ("RewardIsText", "step returned a str as reward; return a number: float(reward)"),
        ("RewardIsAnArray", "step returned an array of shape (2,) and type float64 as reward; return a number"),
        ("FlagIsNone", "step returned None as truncated; return True or False"),
        ("StateIsASet", "state returned what no checkpoint can hold: cells is a set"),
        ("StateIsComplex", "state returned what no checkpoint can hold: cells is an array of complex64; a state holds"),
        ("ForgetsTheCell", "restore does not bring back what state returned: step 1 after it gave something else"),
        ("RowsResetWithInfo", "reset returned a tuple of 2; return the observations alone, an array of shape (3, 2)"),
        ("RowsShareASeed", "spec says separately_seedable=True, but the same seeds in another order gave reset other"),
        ("RowsLoseTheFinal", "step returned the same array as observation and as final observation in a step that"),
        ("RowsWithoutFinal", "step returned None as final observation, and spec says autoreset=same_step; return"),
        ("RowsWithAFinalTooMany", "as final observation, and spec says autoreset=next_step, with which there is none"),
        ("RowsOfFlags", "step returned an array of shape (3,) and type int64 as terminated; return an array of bools"),
        ("RowsOfOneReward", "step returned 1.0 as reward; return an array of shape (3,), one per row"),
        ("CriticIsAbsent", "spec has critic_size=3, and there is no method critic_observation; return the critic's"),
        ("CriticIsAlone", "critic_observation returned an array of shape (3, 3) and type float32; return the critic's"),
        (
            "CriticOfTwo",
            "critic_observation (after reset) returned an observation of shape (3, 2), and spec says (3",
        ),
        (
            "CriticWithNan",
            "critic_observation (after step) returned a final observation that holds nan at index (0",
        ),
        (
            "CriticWithoutFinal",
            "critic_observation (after step) returned None as final observation; return the",
        ),
        ("CriticLosesTheFinal", "the same array as observation and as final observation of the critic in a step that"),
        ("BoardWithoutAMode", "metadata says autoreset_mode None; let the class reset ended environments itself and"),
        ("BoardWithoutFinals", "step ended an episode and info has no final_obs, which autoreset_mode SAME_STEP"),
        (
            "BoardLosesTheFinal",
            'same array as observation and as info["final_obs"] in a step that truncated an episode',
        ),
        ("BoardOfOne", "reset returned an observation of shape (1,), and observation_space says (3, 1)"),
    ],
)
def test_a_fault_is_one_line(name, words):
    report = checked(name)
    assert len(report.faults) == 1, report.faults
    assert words in report.faults[0]
    assert "\n" not in report.faults[0]


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("SeedIgnored", "gave two different first observations: no run can be repeated"),
        ("AlwaysTheSame", "reset gave the same first observation for 12 seeds; if episodes are to begin differently"),
        ("RowsAlike", "reset gave all environments the same first observation; if they are to differ, draw from"),
        ("StepDrawsElsewhere", "gave something else the second time, with the same actions: no run can be repeated"),
        (
            "NeverEnds",
            "in 2000 random steps, and no limit is known: an evaluation waits for ends; return terminated=True "
            "or truncated=True some time, or --set env.max_episode_steps=1000",
        ),
        ("RowsNeverEnd", "or give the class an argument max_episode_steps, truncate there, and --set env.max_episode"),
        ("LiveBuffer", "step changed the observation that was returned before: Lockstep copies each"),
        ("OutOfBounds", "is not in [0.0, 1.0]; widen the bounds, or clip"),
        (
            "Doubles",
            "and observation_space says float32, to which it is converted; return float32",
        ),
        ("Numbers", "step returned 0 as terminated; return bool(terminated)"),
        ("NoInfo", "step returned None as info, which is not read; return a dict"),
        ("Masked", "step returned an action_mask in info, which is not read: a policy chooses among all actions"),
        ("OneAction", "Discrete(1) holds one action: there is nothing to learn"),
        ("HalfAState", "state is there and restore(state) is not: both are needed"),
    ],
)
def test_a_warning_is_one_line_and_no_fault(name, words):
    report = checked(name)
    assert report.faults == []
    assert any(words in warning for warning in report.warnings), report.warnings
    assert not any("\n" in warning for warning in report.warnings)


def test_a_limit_that_a_vector_environment_ignores_is_told():
    report = checked("BoardBeyondItsLimit", EnvConfig(max_episode_steps=3))
    assert report.faults == []
    assert any("an episode went on after 3 steps, the limit of the task; return" in text for text in report.warnings)
    assert checked("BoardBeyondItsLimit", EnvConfig(max_episode_steps=5)).warnings == checked("Board").warnings


def test_an_observation_of_the_critic_is_reported():
    report = checked("RowsWithACritic")
    assert report.faults == []
    assert report.facts[:2] == ["observations: a vector of 2", "observations of the critic alone: a vector of 3"]


def test_a_class_that_is_no_environment_is_told_what_it_lacks():
    with pytest.raises(
        ConfigError, match=r"no gymnasium.Env, and __init__ takes no num_envs; write class NoBase\(gymn"
    ):
        checked("NoBase")
    with pytest.raises(ConfigError, match=r"of the old package gym; derive it from gymnasium.Env"):
        checked("OldGym")


def test_a_limit_that_is_known_is_an_end():
    report = checked("NeverEnds", EnvConfig(max_episode_steps=50))
    assert (report.faults, report.warnings) == ([], [])
    assert "episodes: 40 ended in 2000 random steps, truncated after 50 steps" in report.facts


def test_a_number_that_is_not_finite_is_no_fault_where_such_steps_are_skipped():
    report = checked("NanReward", skip_non_finite=True)
    assert report.faults == []
    assert report.warnings == ["step returned nan as reward; return a finite number"]


def test_the_task_is_blamed_before_its_wrappers():
    """Gymnasium's own time limit would say that there are not enough values to unpack."""
    for config in (EnvConfig(max_episode_steps=10), EnvConfig(wrappers=("faulty_envs:Forgetful",))):
        assert checked("OldStep", config).faults == checked("OldStep").faults
    assert checked("Grid", EnvConfig(wrappers=("faulty_envs:Forgetful",))).savable is False
    assert checked("Grid").savable is True


def test_a_group_that_is_left_out_need_not_be_supported():
    config = EnvConfig(policy_keys=("seen",), max_episode_steps=10)
    assert checked("WithText", config).faults == []
    (fault,) = checked("WithText", EnvConfig(max_episode_steps=10)).faults
    assert "Text(" in fault


def test_faults_and_facts_of_chosen_groups_have_the_names_of_the_task():
    config = EnvConfig(policy_keys=("seen", "count"), critic_keys=("cells",))
    report = checked("GroupOfDoubles", config)
    assert report.warnings[0].startswith("reset returned an observation['count'] of type float64, and observation_spa")
    assert report.facts[0].startswith("observations: Dict('seen': Box(")
    assert "'count': Box(" in report.facts[0] and "'cells': Box(" in report.facts[0]
    alone = checked("GroupOfDoubles", EnvConfig(policy_keys=("count",))).warnings
    assert alone[0].startswith("reset returned an observation['count'] of type float64")


@pytest.mark.slow
def test_a_game_with_wrappers_is_checked_as_it_is_played():
    pytest.importorskip("ale_py")
    config = EnvConfig(kwargs={"stack_num": 4}, wrappers=("faulty_envs:NeedsFourFrames",))
    report = Report()
    check_env_of_task("PongNoFrameskip-v4", config, report, Limits(seconds=1))
    assert report.faults == []


def test_registered_ids_of_a_module_are_checked(monkeypatch):
    monkeypatch.setitem(gymnasium.registry, "Old-v0", gymnasium.envs.registration.EnvSpec("Old-v0", f"{__name__}:Old"))
    report = checked("faulty_envs:Old-v0")
    assert report.faults == checked("OldStep").faults


Old = faulty_envs.OldStep


def test_every_environment_that_was_made_is_closed():
    assert checked("Counted").faults == []
    (module,) = (module for name, module in sys.modules.items() if name == f"lockstep_file_{ENVS}")
    assert module.Counted.made == module.Counted.closed == 2


def test_a_check_is_short_and_leaves_no_trace():
    """Also where a step takes its time; and drawing goes on as if nothing had been drawn."""
    random.seed(3)
    np.random.seed(3)
    expected = random.getstate(), np.random.get_state()[1].tolist()
    begun = time.monotonic()
    checked("SeedIgnored", limits=Limits())
    checked("Slow", limits=Limits(seconds=0.05))
    assert time.monotonic() - begun < 2.0
    assert (random.getstate(), np.random.get_state()[1].tolist()) == expected


def test_a_slow_start_takes_no_time_from_the_checks():
    """A simulator that starts, or a function that compiles: nothing was checked then, without a word."""
    report = checked("SlowStart", limits=Limits(seconds=0.3))
    assert any(fact.startswith("episodes: ") for fact in report.facts), report.facts
    assert not any("not checked" in fact for fact in report.facts)


def test_what_is_not_checked_for_lack_of_time_is_told():
    report = checked("Slow", limits=Limits(seconds=0.01))
    assert "ends of episodes" in report.facts[-1] and report.facts[-1].startswith("not checked"), report.facts


# -- the command, and before a first run ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "code", "end"),
    [
        ("Grid", 0, "no faults, no warnings"),
        ("OldStep", 2, "1 fault, no warnings; docs/environments.md says what is expected"),
        ("OutOfBounds", 0, "no faults, 1 warning; docs/environments.md says what is expected"),
    ],
)
def test_the_command_says_what_it_found(name, code, end, capsys):
    assert cli.main(["check", f"{ENVS}:{name}"]) == code
    out = capsys.readouterr().out.splitlines()
    assert out[0] == f"{ENVS}:{name}"
    assert out[-1] == end
    assert sum(line.startswith(("fault: ", "warning: ")) for line in out) == (name != "Grid")


def test_the_command_takes_settings_and_recipes(capsys):
    assert cli.main(["check", f"{ENVS}:NeverEnds", "--set", "env.max_episode_steps=50"]) == 0
    assert "truncated after 50 steps" in capsys.readouterr().out
    assert cli.main(["check", "cartpole"]) == 0
    assert capsys.readouterr().out.startswith("CartPole-v1\n")
    assert cli.main(["check", "CartPol-v1"]) == 2
    assert "did you mean CartPole-v1" in capsys.readouterr().err
    assert cli.main(["check", "Pendulum-v1", "--set", "algo=dqn"]) == 2


@pytest.mark.parametrize("ranks", ["1", "2"])
def test_training_refuses_a_fault_before_anything_starts(ranks, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert cli.main(["train", f"{ENVS}:OldStep", "--ranks", ranks]) == 2
    said = capsys.readouterr().err
    assert said.startswith(f"lockstep: error: task={ENVS}:OldStep: step returned 4 values; return 5: ")
    assert said.count("\n") == 1
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("vectorization", ["auto", "async"])
def test_training_from_python_refuses_it_too(vectorization, tmp_path):
    from lockstep.train import train

    run = Run(task=f"{ENVS}:OldStep", env=EnvConfig(vectorization=vectorization))
    with pytest.raises(ConfigError, match="step returned 4 values"):
        train(run, run_dir=tmp_path / "run")
    assert not list(tmp_path.iterdir())


def test_warnings_are_said_once_and_tasks_of_others_are_trusted(capsys, monkeypatch):
    run = Run(task=f"{ENVS}:OutOfBounds", env=EnvConfig(kwargs={}))
    check_before_run(run)
    assert capsys.readouterr().err.count("lockstep: warning: task=") == 1
    check_before_run(run)
    monkeypatch.setattr("lockstep.session.env_checks.task.check_env_of_task", None)
    check_before_run(Run(task="CartPole-v1"))
    assert capsys.readouterr().err == ""


def test_an_environment_that_cannot_be_saved_is_told_of_when_checkpoints_are_wanted(tmp_path, capsys):
    from lockstep.train import train

    small = {"num_envs": 4, "num_steps": 8, "num_minibatches": 2, "total_steps": 32, "evaluate_episodes": 1}
    for name, every, times in (("Grid", 100, 0), ("Rows", 100, 1), ("Rows", None, 0)):
        run = Run(task=f"{ENVS}:{name}", evaluate_every=None, checkpoint_every=every)
        train(run, run_dir=tmp_path / f"{name} {every}", **small)
        said = capsys.readouterr().out
        assert said.count("cannot be saved: a resumed run begins new episodes") == times
        assert said.count("state() and restore(state), as docs/environments.md shows") == times


def test_a_file_without_a_class_suggests_those_it_has(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    Path("my_grid.py").write_text("import gymnasium\nfrom gymnasium import Env\nclass Grid(Env):\n    pass\n")
    for command in ("train", "check"):
        assert cli.main([command, "my_grid.py"]) == 2
        said = capsys.readouterr().err
        assert said == "lockstep: error: my_grid.py has no function recipe; did you mean my_grid.py:Grid?\n"
    Path("nothing.py").write_text("x = 1\n")
    assert cli.main(["train", "nothing.py"]) == 2
    assert "name one of its own: nothing.py:FUNCTION" in capsys.readouterr().err


def test_an_environment_that_hangs_is_named_and_ends_the_command():
    command = [sys.executable, "-m", "lockstep.cli", "check", f"{ENVS}:Hangs", "--set", "startup_timeout_s=0.5"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.returncode == 1
    assert "Hangs: reset takes more than 0.5 s" in done.stderr
    assert done.stderr.endswith("Hangs: reset did not return within startup_timeout_s=0.5\n")


def test_an_environment_that_ends_its_worker_is_refused():
    with pytest.raises(ConfigError, match="Leaves ended its process with code 4"):
        check_before_run(Run(task=f"{ENVS}:Leaves", env=EnvConfig(vectorization="async")))
