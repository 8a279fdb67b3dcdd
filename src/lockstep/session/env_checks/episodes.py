"""Checks by stepping an environment: seeds, repeatability, episode ends, and `state`/`restore`."""

import re
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from gymnasium.utils.env_checker import data_equivalence

from lockstep.envs import wrapper_state
from lockstep.envs.spec import ActionSpec
from lockstep.record.checkpoint import check_state as check_serializable
from lockstep.record.checkpoint import snapshot
from lockstep.session.env_checks.report import Report
from lockstep.world import stream_seed

SEEDS = tuple(stream_seed(0, "check", i) for i in range(12))
_STEPS = 20
"""Steps compared between two runs of an episode."""
_LONGER = 4
"""By how much a check may exceed the time that there is for all."""
_ENOUGH = 200
"""Steps without an episode end that cause a warning, if there was no time for more."""
_ENOUGH_ENDS = 10
"""Ends of episodes without an agent that cause a warning."""


@dataclass(frozen=True, slots=True)
class Limits:
    """Bounds of a check; the first `reset` and `step` are always made."""

    steps: int = 2_000
    seconds: float = 0.15


class Outcome(NamedTuple):
    """The result of a step."""

    observation: Any
    """A copy."""
    reward: Any
    ended: np.ndarray
    """[B] whether the environment's episode ended; it has been reset."""


class EnvDriver(ABC):
    """Drives environments of any kind and checks every returned value.

    Args:
        env: the environments.
        limit: steps after which an episode is truncated, if known.
        report: receives the findings.
    """

    vectorized = True
    """Whether a reset returns the first observations of several environments."""

    def __init__(self, env: Any, limit: int | None, report: Report) -> None:
        self.report = report
        self.limit = limit
        self._env = env

    @abstractmethod
    def reset(self, seed: int) -> Any:
        """Start new episodes; returns a copy of the first observation."""

    @abstractmethod
    def act(self, generator: np.random.Generator) -> Any:
        """A random action, for each environment if there are several."""

    @abstractmethod
    def step(self, action: Any) -> Outcome:
        """One step."""

    def idle_agents(self) -> list[int]:
        """Of several agents, those that took part in no step so far."""
        return []

    def can_save(self) -> bool:
        """Whether every layer can be saved."""
        return wrapper_state.savable(self._env)

    def state(self) -> dict[str, Any]:
        """The state of all layers."""
        return wrapper_state.save(self._env)

    def restore(self, state: dict[str, Any]) -> None:
        """Load the state of all layers."""
        wrapper_state.restore(self._env, state)

    def close(self) -> None:
        """Close the environments."""
        self._env.close()


def check_episodes(driver: EnvDriver, another: Callable[[], EnvDriver], limits: Limits) -> None:
    """Run all checks, the most important first, within the limits; those for which no time is left are reported.

    The first reset and step do not count: they may start a simulator, or compile.

    Args:
        driver: of the environments.
        another: makes a second driver of new, equal environments.
        limits: of steps and time.
    """
    first = driver.reset(SEEDS[0])
    generator = np.random.default_rng(0)
    driver.step(driver.act(generator))
    begun = time.monotonic()
    deadline = begun + limits.seconds
    driver.step(driver.act(generator))
    step_s = time.monotonic() - begun
    checks: dict[str, tuple[int, Callable[[], object]]] = {
        "seeds": (0, lambda: _check_seeds(driver, first, deadline)),
        "repetition": (2 * _STEPS, lambda: _check_repeatable(driver)),
        "state and restore": (2 * _STEPS, lambda: _check_state(driver, another)),
        "ends of episodes": (0, lambda: _check_episode_ends(driver, limits.steps, deadline)),
    }
    left_out: list[str] = []
    for name, (steps, check) in checks.items():
        if time.monotonic() > deadline or steps * step_s > _LONGER * limits.seconds:
            left_out.append(name)
        else:
            check()
    if left_out:
        driver.report.facts.append(f"not checked, as the environment is too slow: {', '.join(left_out)}")


def _check_seeds(driver: EnvDriver, first: Any, deadline: float) -> None:
    report = driver.report
    firsts = [first]
    while len(firsts) < len(SEEDS) and _same(firsts[-1], first) and report.finite:
        firsts.append(driver.reset(SEEDS[len(firsts)]))
        if time.monotonic() > deadline:  # a simulator whose every reset takes seconds
            return
    again = driver.reset(SEEDS[0])
    if not report.finite:
        return
    how = "draw from self.np_random after super().reset(seed=seed)" if not driver.vectorized else "draw from the seeds"
    if not _same(first, again):
        report.repeatable = False
        report.warn(
            f"reset(seed={SEEDS[0]}) gave two different first observations: no run can be repeated, nor continue as if "
            f"it had not stopped; {how} alone{_of_wrappers(report)}"
        )
    elif _same(firsts[-1], first):
        report.warn(
            f"reset gave the same first observation for {len(SEEDS)} seeds; if episodes are to begin differently, {how}"
        )
    elif driver.vectorized and all(map(_rows_alike, firsts)):
        report.warn(f"reset gave all environments the same first observation; if they are to differ, {how}")


def _check_repeatable(driver: EnvDriver) -> None:
    report = driver.report
    if not report.repeatable:
        return
    played = [_play(driver, lambda: driver.reset(SEEDS[1])) for _ in range(2)]
    if report.finite and (step := _first_difference(*played)) is not None:
        report.repeatable = False
        report.warn(
            f"step {step} after reset(seed={SEEDS[1]}) gave something else the second time, with the same actions: no "
            "run can be repeated; draw what is random in step from the generator that reset seeds"
            f"{_of_wrappers(report)}"
        )


def _of_wrappers(report: Report) -> str:
    """What else may be the cause where the user's wrappers are around the environment."""
    return "; or one of env.wrappers keeps something from earlier episodes" if report.wrapped else ""


def _check_state(driver: EnvDriver, another: Callable[[], EnvDriver]) -> None:
    report = driver.report
    report.savable = driver.can_save()
    if not report.savable:
        return
    report.facts.append("can be saved in mid-episode")
    generator = np.random.default_rng(1)
    driver.reset(SEEDS[2])
    for _ in range(3):
        driver.step(driver.act(generator))
    saved = report.call("state", driver.state)
    try:
        check_serializable(saved)
    except (TypeError, ValueError) as error:
        what = re.sub(r"^layers/\d+/state/", "", " ".join(str(error).split()))
        report.fatal(f"state returned what no checkpoint can hold: {what}")
    saved = snapshot(saved)
    if not report.repeatable:
        return
    whole = _play(driver, lambda: None)
    other = another()
    try:
        other.reset(SEEDS[3])
        report.call("restore", lambda: other.restore(saved))
        after = _play(other, lambda: None)
    finally:
        other.close()
    if report.finite and (step := _first_difference(whole, after)) is not None:
        report.fault(
            f"restore does not bring back what state returned: step {step} after it gave something else; state must "
            "return everything that decides what comes next, generators of your own included, and restore must set it"
        )


def _check_episode_ends(driver: EnvDriver, most: int, deadline: float) -> None:
    generator = np.random.default_rng(2)
    driver.reset(SEEDS[0])
    steps, ends, longest = 0, 0, 0
    length = np.zeros(1, np.int64)
    while steps < most and time.monotonic() < deadline:
        ended = driver.step(driver.act(generator)).ended
        length = np.where(ended, 0, length + 1)  # a step that only resets counts, too
        longest = max(longest, int(length.max()))
        ends += int(ended.sum())
        steps += 1
    limit = "" if driver.limit is None else f", truncated after {driver.limit} steps"
    driver.report.facts.append(f"episodes: {ends} ended in {steps} random steps{limit}")
    if ends >= _ENOUGH_ENDS and (idle := driver.idle_agents()):
        driver.report.warn(
            f"agent {idle[0]} took no part in {steps} random steps: the first evaluation would wait for its episodes; "
            "leave an agent that never acts out of possible_agents"
        )
    if driver.limit is not None and longest > driver.limit:
        driver.report.warn(
            f"an episode went on after {driver.limit} steps, the limit of the task; return truncated=True there, or "
            "leave env.max_episode_steps out"
        )
    if not ends and driver.limit is None and steps >= min(most, _ENOUGH):
        # Of many environments the setting is an argument of the class, which truncates them itself.
        argument = "give the class an argument max_episode_steps, truncate there, and " if driver.vectorized else ""
        driver.report.warn(
            f"step ended no episode in {steps} random steps, and no limit is known: an evaluation waits for ends; "
            f"return terminated=True or truncated=True some time, or {argument}--set env.max_episode_steps=1000"
        )


def random_action(spec: ActionSpec, generator: np.random.Generator, batch: tuple[int, ...] = ()) -> Any:
    """A random action, or a batch of them, in the format of a policy."""
    if spec.kind == "discrete":
        return (
            np.int64(generator.integers(spec.sizes[0])) if not batch else generator.integers(spec.sizes[0], size=batch)
        )
    if spec.kind == "multi_discrete":
        return generator.integers(spec.sizes, size=(*batch, len(spec.sizes)))
    noise = generator.standard_normal((*batch, spec.width)).astype(np.float32)
    return np.clip(noise, np.array(spec.low, np.float32), np.array(spec.high, np.float32))


def _play(driver: EnvDriver, begin: Callable[[], object]) -> list[Outcome]:
    """The outcomes of some steps, with the same actions in every call."""
    generator = np.random.default_rng(3)
    begin()
    return [driver.step(driver.act(generator)) for _ in range(_STEPS)]


def _first_difference(one: Sequence[Outcome], other: Sequence[Outcome]) -> int | None:
    """The number of the first step that differs, or None."""
    for number, (a, b) in enumerate(zip(one, other, strict=True), 1):
        if not (_same(a.observation, b.observation) and _same(a.reward, b.reward) and _same(a.ended, b.ended)):
            return number
    return None


def _same(one: Any, other: Any) -> bool:
    return data_equivalence(one, other, exact=True)


def _rows_alike(rows: np.ndarray) -> bool:
    return len(rows) > 1 and bool((rows == rows[:1]).all())
