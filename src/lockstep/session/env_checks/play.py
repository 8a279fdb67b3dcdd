"""Checks that play: seeds, episodes that come again, episodes that end, and states that bring back what they saved."""

import re
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

import numpy as np
from gymnasium.utils.env_checker import data_equivalence

from lockstep.envs.spec import ActionSpec
from lockstep.record.checkpoint import check_state as check_that_files_hold
from lockstep.record.checkpoint import snapshot
from lockstep.session.env_checks.report import Report
from lockstep.world import stream_seed

SEEDS = tuple(stream_seed(0, "check", i) for i in range(12))
_STEPS = 20
"""Of an episode that is played twice."""
_ENOUGH = 200
"""Steps without an end that are worth a word, if there was time for no more."""


@dataclass(frozen=True, slots=True)
class Limits:
    """How much a check may play; the first `reset` and `step` are always made."""

    steps: int = 2_000
    seconds: float = 0.15


class Outcome(NamedTuple):
    """What a step gave."""

    observation: Any
    """A copy."""
    reward: Any
    ended: np.ndarray
    """Which environments ended an episode; they have begun another."""


class Player(Protocol):
    """Environments of any kind, whose every answer is checked when it comes."""

    report: Report
    limit: int | None
    """Steps after which an episode is truncated, if that is known."""
    first_rows: bool
    """Whether one reset shows several first observations, that of each environment."""

    def reset(self, seed: int) -> Any:
        """A copy of the first observation."""
        ...

    def act(self, generator: np.random.Generator) -> Any:
        """A random action."""
        ...

    def step(self, action: Any) -> Outcome:
        """One step."""
        ...

    def can_save(self) -> bool:
        """Whether there are methods for it."""
        ...

    def state(self) -> dict[str, Any]:
        """As the environment tells it."""
        ...

    def restore(self, state: dict[str, Any]) -> None:
        """Give it back."""
        ...

    def close(self) -> None:
        """Close the environment."""
        ...


def check_play(player: Player, another: Callable[[], Player], limits: Limits) -> None:
    """Everything that can be found out by playing, most important things first, as long as there is time.

    Args:
        player: to play with.
        another: makes the same environments anew.
        limits: of the time.
    """
    deadline = time.monotonic() + limits.seconds
    first = player.reset(SEEDS[0])
    generator = np.random.default_rng(0)
    player.step(player.act(generator))
    checks: list[Callable[[], object]] = [
        lambda: _check_seeds(player, first),
        lambda: _check_again(player),
        lambda: _check_state(player, another),
        lambda: _check_ends(player, limits.steps, deadline),
    ]
    for check in checks:
        if time.monotonic() > deadline:
            return
        check()


def _check_seeds(player: Player, first: Any) -> None:
    """Whether `reset` heeds its seed."""
    report = player.report
    firsts = [first]
    while len(firsts) < len(SEEDS) and _same(firsts[-1], first) and report.finite:
        firsts.append(player.reset(SEEDS[len(firsts)]))
    again = player.reset(SEEDS[0])
    if not report.finite:
        return
    how = "draw from self.np_random after super().reset(seed=seed)" if not player.first_rows else "draw from the seeds"
    if not _same(first, again):
        report.warn(
            f"reset(seed={SEEDS[0]}) gave two different first observations: no run can be repeated, nor go on as if it "
            f"had not stopped; {how} alone"
        )
    elif _same(firsts[-1], first):
        report.warn(
            f"reset gave the same first observation for {len(SEEDS)} seeds; if episodes are to begin differently, {how}"
        )
    elif player.first_rows and all(map(_rows_alike, firsts)):
        report.warn(f"reset gave all environments the same first observation; if they are to differ, {how}")


def _check_again(player: Player) -> None:
    """Whether the same seed and the same actions give the same episode."""
    report = player.report
    if any("two different first observations" in warning for warning in report.warnings):
        return
    played = [_played(player, lambda: player.reset(SEEDS[1])) for _ in range(2)]
    if report.finite and (step := _differ(*played)) is not None:
        report.warn(
            f"step {step} after reset(seed={SEEDS[1]}) gave something else the second time, with the same actions: no "
            "run can be repeated; draw what is random in step from the generator that reset seeds"
        )


def _check_state(player: Player, another: Callable[[], Player]) -> None:
    """Whether `restore` brings back what `state` told."""
    report = player.report
    report.savable = player.can_save()
    if not report.savable:
        return
    report.facts.append("can be saved in mid-episode")
    generator = np.random.default_rng(1)
    player.reset(SEEDS[2])
    for _ in range(3):
        player.step(player.act(generator))
    saved = report.call("state", player.state)
    try:
        check_that_files_hold(saved)
    except (TypeError, ValueError) as error:
        what = re.sub(r"^layers/\d+/state/", "", " ".join(str(error).split()))
        report.fatal(f"state returned what no checkpoint can hold: {what}")
    saved = snapshot(saved)
    whole = _played(player, lambda: None)
    if any("the same actions" in warning or "two different" in warning for warning in report.warnings):
        return
    other = another()
    try:
        other.reset(SEEDS[3])
        report.call("restore", lambda: other.restore(saved))
        after = _played(other, lambda: None)
    finally:
        other.close()
    if report.finite and (step := _differ(whole, after)) is not None:
        report.fault(
            f"restore does not bring back what state told: step {step} after it gave something else; state must return "
            "everything that decides what comes next, generators of your own included, and restore must set it"
        )


def _check_ends(player: Player, most: int, deadline: float) -> None:
    """Whether episodes end."""
    generator = np.random.default_rng(2)
    player.reset(SEEDS[0])
    steps, ends = 0, 0
    while steps < most and time.monotonic() < deadline:
        ends += int(player.step(player.act(generator)).ended.sum())
        steps += 1
    limit = "" if player.limit is None else f", truncated after {player.limit} steps"
    player.report.facts.append(f"episodes: {ends} ended in {steps} random steps{limit}")
    if not ends and player.limit is None and steps >= min(most, _ENOUGH):
        player.report.warn(
            f"step ended no episode in {steps} random steps, and no limit is known: an evaluation waits for ends; "
            "return terminated=True or truncated=True some time, or --set env.max_episode_steps=1000"
        )


def drawn_action(spec: ActionSpec, generator: np.random.Generator, batch: tuple[int, ...] = ()) -> Any:
    """A random action, or a batch of them, as a policy would give it."""
    if spec.kind == "discrete":
        return (
            np.int64(generator.integers(spec.sizes[0])) if not batch else generator.integers(spec.sizes[0], size=batch)
        )
    if spec.kind == "multi_discrete":
        return generator.integers(spec.sizes, size=(*batch, len(spec.sizes)))
    noise = generator.standard_normal((*batch, spec.width)).astype(np.float32)
    return np.clip(noise, np.array(spec.low, np.float32), np.array(spec.high, np.float32))


def _played(player: Player, begin: Callable[[], object]) -> list[Outcome]:
    """The outcomes of some steps, always with the same actions."""
    generator = np.random.default_rng(3)
    begin()
    return [player.step(player.act(generator)) for _ in range(_STEPS)]


def _differ(one: Sequence[Outcome], other: Sequence[Outcome]) -> int | None:
    """The number of the first step that differs."""
    for number, (a, b) in enumerate(zip(one, other, strict=True), 1):
        if not (_same(a.observation, b.observation) and _same(a.reward, b.reward) and _same(a.ended, b.ended)):
            return number
    return None


def _same(one: Any, other: Any) -> bool:
    return data_equivalence(one, other, exact=True)


def _rows_alike(rows: np.ndarray) -> bool:
    return len(rows) > 1 and bool((rows == rows[:1]).all())
