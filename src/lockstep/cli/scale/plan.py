"""The runs of a scaling measurement: which, in which order, and with which config."""

import math
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any, Literal

from lockstep.algorithms.replay import ReplayConfig
from lockstep.errors import ConfigError
from lockstep.launch.flags import number
from lockstep.record.text import counted
from lockstep.run import Run, override

Mode = Literal["strong", "weak", "return"]
LOG_LINES = 5
"""Lines of the metrics of a measured run. What comes before the first is warm-up."""
OWN_SETTINGS = ("log_every", "evaluate_every", "evaluate_episodes", "evaluate_video", "checkpoint_every")
"""Settings that measured runs have from the measurement, and runs until a return from the user."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What to measure; `scale.yaml`."""

    ranks: tuple[int, ...]
    modes: tuple[Mode, ...] = ("weak", "strong")
    updates: int = 40
    """Measured in each run, after the warm-up."""
    repetitions: int = 3
    target_return: float | None = None
    seeds: tuple[int, ...] = (0, 1, 2)
    """Of the runs until the return."""

    def jobs(self) -> Iterator["Job"]:
        """All runs in their order: each repetition has one of each, so that a busy hour slows all alike."""
        for repetition in range(self.repetitions):
            for i, ranks in enumerate(self.ranks):
                if i == 0:  # strong and weak scaling start from the same run
                    yield Job("strong" if "strong" in self.modes else "weak", ranks, repetition)
                    continue
                for mode in self.modes:
                    yield Job(mode, ranks, repetition)
        if self.target_return is not None:
            for seed in self.seeds:
                for ranks in self.ranks:
                    yield Job("return", ranks, seed)

    def tree(self) -> dict[str, Any]:
        """Plain values, for `scale.yaml` and `scale.json`."""
        return asdict(self) | {"ranks": list(self.ranks), "modes": list(self.modes), "seeds": list(self.seeds)}

    @classmethod
    def of(cls, tree: Mapping[str, Any]) -> "Plan":
        """The plan of the result of `tree`."""
        lists: dict[str, Any] = {name: tuple(tree[name]) for name in ("ranks", "modes", "seeds")}
        return cls(**{**tree, **lists})


@dataclass(frozen=True, slots=True)
class Job:
    """One run."""

    mode: Mode
    ranks: int
    number: int
    """Of the repetition; the seed of a run until a return."""

    @property
    def name(self) -> str:
        """`strong_ranks_2_repetition_0`, the name of its directory."""
        return f"{self.mode}_ranks_{self.ranks}_{'seed' if self.mode == 'return' else 'repetition'}_{self.number}"


def run_of(run: Run, plan: Plan, job: Job) -> Run:
    """The config of one run.

    Args:
        run: as the user asked for it: `num_envs` is that of the smallest number of ranks.
        plan: of all runs.
        job: the run.
    """
    if job.mode == "return":
        settings = {"seed": job.number, "stop_return": plan.target_return, "stop_when_solved": True}
        return override(run, settings)
    if job.mode == "weak":
        run = _weak(run, job.ranks / plan.ranks[0])
    batch = run.num_envs * run.algorithm.num_steps
    settings: dict[str, Any] = {}
    before = 0
    if isinstance(run.algorithm, ReplayConfig):
        before = min(run.algorithm.learning_starts, max(4 * run.algorithm.batch_size, 2 * batch))
        settings["learning_starts"] = before
    every = batch * math.ceil(plan.updates / (LOG_LINES - 1))
    return override(
        run,
        {
            **settings,
            "seed": run.seed + job.number,
            "total_steps": batch * math.ceil(before / batch) + LOG_LINES * every,
            "log_every": every,
            "evaluate_every": None,
            "evaluate_episodes": run.num_shards or job.ranks,
            "evaluate_video": False,
            "checkpoint_every": None,
            "stop_when_solved": False,
        },
    )


def _weak(run: Run, factor: float) -> Run:
    """The same work for each rank: more environments, and with a replay buffer larger minibatches, not more."""
    settings: dict[str, Any] = {"num_envs": round(run.num_envs * factor)}
    if isinstance(run.algorithm, ReplayConfig):
        settings["batch_size"] = round(run.algorithm.batch_size * factor)
        settings["updates_per_step"] = run.algorithm.updates_per_step / factor
    return override(run, settings)


def check_plan(plan: Plan, run: Run) -> None:
    """Raise `ConfigError` if one of the runs cannot work; names the run."""
    from lockstep.launch.world_checks import check_world
    from lockstep.world import World

    if run.num_shards is not None and "weak" in plan.modes:
        raise ConfigError(
            f"num_shards={run.num_shards} fixes the shards, and in weak scaling their number grows with the ranks; "
            "use --modes strong, or leave num_shards out"
        )
    if plan.target_return is not None and run.evaluate_every is None:
        raise ConfigError(
            f"--return {plan.target_return:g} is the return of an evaluation, and evaluate_every is null; "
            "use --set evaluate_every=N"
        )
    for job in dict.fromkeys(replace(job, number=0) for job in plan.jobs()):
        try:
            found = run_of(run, plan, job)
            check_world(found, World(size=job.ranks))
        except ConfigError as error:
            what = "until a return" if job.mode == "return" else f"{job.mode} scaling"
            raise ConfigError(f"the run on {counted(job.ranks, 'rank')} ({what}) cannot work: {error}") from None


def parse_ranks(text: str | None, target: str | None = None) -> tuple[int, ...]:
    """`1,2,4`: at least two different numbers, returned in ascending order; `target` is what is to be measured."""
    if text is None:
        no_folder = f", and {target} holds no measurement to continue" if target and "/" in target else ""
        raise ConfigError(f"--ranks is missing{no_folder}; give the numbers of ranks to compare, such as --ranks 1,2,4")
    kind = "a list of numbers such as 1,2,4"
    ranks = sorted(number(part.strip(), "--ranks", kind) for part in text.split(","))
    if len(set(ranks)) < len(ranks):
        raise ConfigError(f"--ranks {text} has a number twice; --repetitions N repeats each measurement")
    if len(ranks) < 2:
        several = f"1,{ranks[0]}" if ranks[0] > 1 else "1,2"
        raise ConfigError(
            f"--ranks {text} is a single number, with nothing to compare it with; give two or more: {several}"
        )
    return tuple(ranks)


def parse_modes(text: str) -> tuple[Mode, ...]:
    """`weak,strong`, `weak` or `strong`."""
    known: Mapping[str, Mode] = {"weak": "weak", "strong": "strong"}
    given = [part.strip() for part in text.split(",")]
    if not given or any(part not in known for part in given) or len(set(given)) < len(given):
        raise ConfigError(f"--modes {text} must be weak, strong or weak,strong")
    return tuple(known[part] for part in given)
