"""What is said about environments in JAX with faults, found without computing anything."""

from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest

pytest.importorskip("jax")

import jax
import jax.numpy as jnp

from lockstep.envs.spec import ActionSpec, EnvSpec
from lockstep.run import EnvConfig, Run
from lockstep.session.env_checks.before_run import check_before_run
from lockstep.session.env_checks.episodes import Limits
from lockstep.session.env_checks.report import Report
from lockstep.session.env_checks.task import check_env_of_task


class State(NamedTuple):
    place: jax.Array
    steps: jax.Array


class Walk:
    """Without a fault."""

    on_device = True

    def __init__(self):
        self.spec = EnvSpec(2, ActionSpec("discrete", (2,)), "same_step", True, max_episode_steps=20)

    def reset(self, key):
        return State(jax.random.normal(key), jnp.zeros((), jnp.int32))

    def observe(self, state):
        return jnp.stack([state.place, state.steps.astype(jnp.float32)])

    def step(self, state, action, key):
        after = State(state.place + 0.1 * action, state.steps + 1)
        return after, self.observe(after), after.place, after.place > 3, after.steps >= 20


class PlainNumbers(Walk):
    def reset(self, key):
        return State(jax.random.normal(key), 0)


class WrongShape(Walk):
    def observe(self, state):
        return jnp.zeros(3)


class StepReturnsFour(Walk):
    def step(self, state, action, key):
        return super().step(state, action, key)[:4]


class RewardPerAction(Walk):
    def step(self, state, action, key):
        after, seen, _, *rest = super().step(state, action, key)
        return after, seen, jnp.zeros(2), *rest


class DecidesByIf(Walk):
    def step(self, state, action, key):
        if state.place > 0:
            return super().step(state, action, key)
        return super().step(state, 1 - action, key)


class UsesNumpy(Walk):
    def observe(self, state):
        return np.array([state.place, state.steps])


class KeepsInSelf(Walk):
    def reset(self, key):
        self.start = jax.random.normal(key)
        return super().reset(key)

    def observe(self, state):
        return super().observe(state) - self.start


class StateGrows(Walk):
    def step(self, state, action, key):
        after, *rest = super().step(state, action, key)
        return {"place": after.place, "steps": after.steps}, *rest


class StateGetsLonger(Walk):
    def reset(self, key):
        return {"place": jnp.zeros(()), "steps": jnp.zeros((), jnp.int32)}

    def observe(self, state):
        return super().observe(State(state["place"].reshape(-1)[0], state["steps"]))

    def step(self, state, action, key):
        longer = jnp.concatenate([state["place"].reshape(-1), jnp.zeros(1)])
        return {"place": longer, "steps": state["steps"] + 1}, jnp.zeros(2), 0.0, False, False


class FractionsLost(Walk):
    def step(self, state, action, key):
        after, *rest = super().step(state, action, key)
        return after._replace(place=after.place.astype(jnp.int32)), *rest


class TextInState(Walk):
    def reset(self, key):
        return "start"


class WithoutArrays(Walk):
    def reset(self, key):
        return ()

    def observe(self, state):
        return jnp.zeros(2)

    def step(self, state, action, key):
        return (), jnp.zeros(2), 1.0, jax.random.bernoulli(key), False


class HalfPrecision(Walk):
    def reset(self, key):
        return State(jax.random.normal(key, dtype=jnp.bfloat16), jnp.zeros((), jnp.int32))

    def step(self, state, action, key):
        after, *rest = super().step(state, action, key)
        return after._replace(place=after.place.astype(jnp.bfloat16)), *rest


class OwnGenerator(Walk):
    """Keeps a key of another kind than Lockstep's."""

    def reset(self, key):
        return {"walk": super().reset(key), "key": jax.random.key(0, impl="rbg")}

    def observe(self, state):
        return super().observe(state["walk"])

    def step(self, state, action, key):
        key, drawn = jax.random.split(state["key"])
        walk = State(state["walk"].place + jax.random.normal(drawn), state["walk"].steps + 1)
        after = {"walk": walk, "key": key}
        return after, self.observe(after), 1.0, False, walk.steps >= 20


class KeysOfTwoKinds(OwnGenerator):
    def reset(self, key):
        return super().reset(key) | {"key": key}

    def step(self, state, action, key):
        after, *rest = super().step(state, action, key)
        return after | {"key": jax.random.key(0, impl="rbg")}, *rest


class FlagsAreNumbers(Walk):
    def step(self, state, action, key):
        *rest, cut = super().step(state, action, key)
        return *rest, cut.astype(jnp.float32)


def checked(name, **kwargs):
    report = Report()
    check_env_of_task(f"{Path(__file__)}:{name}", EnvConfig(), report, Limits(), **kwargs)
    return report


@pytest.mark.parametrize("name", ["Walk", "PlainNumbers"])
def test_nothing_is_said_where_there_is_no_fault(name):
    report = checked(name, trace_only=True)
    assert (report.faults, report.warnings) == ([], [])


def test_a_state_may_hold_keys_of_any_kind():
    report = checked("OwnGenerator")
    assert (report.faults, report.warnings) == ([], [])


def test_a_whole_check_plays_it_too():
    report = checked("Walk")
    assert (report.faults, report.warnings) == ([], [])
    assert report.facts[:2] == ["observations: a vector of 2", "actions: discrete, 2"]


@pytest.mark.parametrize(
    ("name", "words"),
    [
        (
            "WrongShape",
            "observe returned an observation of shape (3,), and spec says (2,); return an array of shape (2,)",
        ),
        ("StepReturnsFour", "step returned a tuple of 4; return 5: state, observation, reward, terminated, truncated"),
        (
            "RewardPerAction",
            "step returned an array of shape (2,) and type float32 as reward; return a float32 of shape",
        ),
        ("DecidesByIf", "use jnp.where or jax.lax.cond"),
        ("UsesNumpy", "use jax.numpy"),
        ("KeepsInSelf", "reset keeps an array in self.start; put it into the state, and settings alone into self"),
        ("StateGrows", "step returned a state of another structure than reset: "),
        (
            "StateGetsLonger",
            "step returned state['place'] of shape (2,), and reset of shape (); shapes must not change",
        ),
        ("FractionsLost", "step returned state.place of type int32, and reset of type float32, which would be cut off"),
        ("WithoutArrays", "reset returned a state without arrays; return at least one, such as the number of steps"),
        ("HalfPrecision", "step returned state.place of type bfloat16, which no checkpoint can hold; keep it as bool"),
        ("KeysOfTwoKinds", "step returned state['key'] of type key<rbg>, and reset of type key<fry>; return the same"),
        ("TextInState", "reset raised TypeError: "),
    ],
)
def test_a_fault_is_one_line(name, words):
    report = checked(name, trace_only=True)
    assert words in report.faults[0]
    assert not any("\n" in fault for fault in report.faults)
    if name == "DecidesByIf":
        assert f"step decides by the value of an array ({__file__}:" in report.faults[0]


def test_a_flag_that_is_a_number_is_a_warning():
    report = checked("FlagsAreNumbers", trace_only=True)
    assert report.warnings == ["step returned float32 as truncated; return a bool, such as steps >= limit"]


def test_before_a_run_nothing_is_computed(monkeypatch):
    """The run chooses devices and threads, and JAX can be told of them only until it is used."""
    monkeypatch.setattr("lockstep.session.env_checks.task._check_protocol", None)
    check_before_run(Run(task=f"{__file__}:Walk"))


def test_training_refuses_a_fault_before_anything_starts(tmp_path, monkeypatch, capsys):
    from lockstep.cli import main as cli

    monkeypatch.chdir(tmp_path)
    assert cli.main(["train", f"{__file__}:StepReturnsFour", "--ml-framework", "jax"]) == 2
    assert "StepReturnsFour: step returned a tuple of 4; return 5: state, observ" in capsys.readouterr().err
    assert not list(tmp_path.iterdir())
