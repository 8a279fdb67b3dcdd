"""Explain where the time of a run went: what would make it faster, and which rank the others wait for."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any, cast

from lockstep.cli.report.runs import FoundRun, ranks_of
from lockstep.distributed.timers import PHASES
from lockstep.record.file_numbers import number_of, whole_number_of
from lockstep.record.follow import last_line, read_json
from lockstep.record.run_dir import METRICS_FILE, RANKS_FILE, SUMMARY_FILE
from lockstep.session.profile import PROFILE_FILE

_NOTABLE_WAIT = 0.05
"""A straggler waits less than half as long as the others, and less by this fraction of the training time."""
_WHAT = {
    "env": "env.step",
    "act": "choosing actions",
    "learn": "learning",
    "sync": "exchanging numbers between ranks",
    "wait": "waiting for other ranks",
    "evaluate": "evaluation",
    "checkpoint": "checkpoints",
    "other": "work outside the named phases",
}
_SHARED = ("env", "act", "learn")
"""Phases whose work is divided among ranks."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TimeUse:
    """The time of one run, and what the advice depends on."""

    found: FoundRun
    summary: Mapping[str, Any]
    preflight: Mapping[str, Any]
    phases: Mapping[str, float]
    """Seconds in each phase, mean over ranks; empty if unknown."""
    phases_of_ranks: Sequence[Mapping[str, float]]
    """Seconds in each phase on each rank; empty if unknown. One entry per process where that drives several devices."""

    @property
    def num_ranks(self) -> int | None:
        """The number of ranks, also of a run without a result; None if unknown."""
        if self.found.ranks is not None:
            return self.found.ranks
        return ranks_of(self.preflight.get("world_size"), self.found.settings.get("devices_per_process"))

    @property
    def by_process(self) -> bool:
        """Whether `phases_of_ranks` has an entry per process, as each drives several devices."""
        return (whole_number_of(self.found.settings.get("devices_per_process")) or 1) > 1

    @property
    def ranks(self) -> list[Mapping[str, Any]]:
        """The entry of each rank in `summary.json`."""
        ranks = self.summary.get("ranks")
        return [rank for rank in cast(list[Any], ranks) if isinstance(rank, Mapping)] if isinstance(ranks, list) else []


@dataclass(frozen=True, slots=True)
class Bottleneck:
    """The largest phase of a run, and what would shorten it."""

    share: float
    """Of the training time."""
    what: str
    helps: str
    helps_not: str
    saved: float | None
    """Largest share of the time that twice as many ranks would save; None for a phase that they do not divide."""

    @property
    def sentence(self) -> str:
        """As text: "62% of the time is env.step on one core: more ranks would help; a faster network would not"."""
        return sentence_of([self])


def sentence_of(alike: Sequence[Bottleneck]) -> str:
    """One sentence about bottlenecks that differ only in their shares."""
    low, high = (f"{pick(one.share for one in alike):.0%}" for pick in (min, max))
    first, share = alike[0], low if low == high else f"{low} to {high}"
    sentence = f"{share} of the time is {first.what}: {first.helps} would help; {first.helps_not} would not."
    saved = [one.saved for one in alike if one.saved is not None]
    if saved:
        sentence += f" Twice as many ranks with cores of their own would save at most {max(saved):.0%}."
    return sentence


def read_time_use(found: FoundRun, summary: Mapping[str, Any] | None = None) -> TimeUse:
    """The time of a run; missing, truncated or damaged files are skipped."""
    path = found.path
    summary = read_json(path / SUMMARY_FILE) if summary is None else summary
    return TimeUse(
        found=found,
        summary=summary,
        preflight=read_json(path / "preflight.json"),
        phases=_phases(path, summary),
        phases_of_ranks=_phases_of_ranks(path),
    )


def bottleneck(run: TimeUse) -> Bottleneck | None:
    """The largest phase, what would shorten it, and what would not; None without phases."""
    total = sum(run.phases.values())
    if not total:
        return None
    phase = max(run.phases, key=lambda name: run.phases[name])
    helps, helps_not = _remedies(run, phase)
    saved = sum(run.phases.get(name, 0.0) for name in _SHARED) / total / 2 if phase in _SHARED else None
    return Bottleneck(run.phases[phase] / total, f"{_what(run, phase)}{_where(run, phase)}", helps, helps_not, saved)


def straggler(run: TimeUse) -> str | None:
    """One sentence that names the rank or process that waits least, which the others wait for, if any."""
    slowest = _slowest(run)
    if slowest is None:
        return None
    waited, mean = run.phases_of_ranks[slowest]["wait"], _mean_of_others(run, slowest, "wait")
    name = rank_name(run, slowest)
    return (
        f"{name[:1].upper()}{name[1:]} is the slowest: it waited {waited:.1f} s, the others "
        f"{mean:.1f} s on average, {mean / sum(run.phases.values()):.0%} of their time."
    )


def _slowest(run: TimeUse) -> int | None:
    """The rank that waits much less than the others; None if there is none."""
    waits = [phases["wait"] for phases in run.phases_of_ranks]
    total = sum(run.phases.values())
    if len(waits) < 2 or not total:
        return None
    slowest = min(range(len(waits)), key=waits.__getitem__)
    mean = _mean_of_others(run, slowest, "wait")
    return None if mean - waits[slowest] < max(_NOTABLE_WAIT * total, mean / 2) else slowest


def _waited_for(run: TimeUse) -> str | None:
    """`evaluate` or `checkpoint`, if the others wait for the slowest rank mostly because of that; else None."""
    slowest = _slowest(run)
    if slowest is None:
        return None
    own = run.phases_of_ranks[slowest]
    more = {phase: own[phase] - _mean_of_others(run, slowest, phase) for phase in ("evaluate", "checkpoint")}
    phase = max(more, key=lambda name: more[name])
    return phase if 2 * more[phase] > _mean_of_others(run, slowest, "wait") - own["wait"] else None


def _mean_of_others(run: TimeUse, rank: int, phase: str) -> float:
    return fmean(phases[phase] for i, phases in enumerate(run.phases_of_ranks) if i != rank)


def rank_name(run: TimeUse, index: int) -> str:
    """`rank 3 on host`; without the host if the run has no result yet. `process 3` where that is several ranks."""
    if run.by_process:
        return f"process {index}"
    if len(run.ranks) != len(run.phases_of_ranks):
        return f"rank {index}"
    rank = run.ranks[index]
    return f"rank {rank.get('rank')} on {rank.get('host')}"


def hosts(run: TimeUse) -> Sequence[Mapping[str, Any]]:
    """The hosts in `preflight.json`."""
    given = run.preflight.get("hosts")
    found = cast(list[Any], given) if isinstance(given, list) else []
    return [cast(Mapping[str, Any], host) for host in found if isinstance(host, Mapping)]


def _what(run: TimeUse, phase: str) -> str:
    online = run.found.settings.get("task") is not None
    if phase == "learn" and online and not run.phases.get("env") and not run.phases.get("act"):
        return "the compiled program that steps environments, acts and learns"
    return _WHAT[phase]


def _where(run: TimeUse, phase: str) -> str:
    ranks = run.num_ranks or 1
    if phase == "wait" and (cause := _waited_for(run)):
        return f" while the slowest {'evaluates' if cause == 'evaluate' else 'saves the state'}"
    if phase not in _SHARED:
        return ""
    on_gpu = "cuda" in str(run.summary.get("devices"))
    if phase != "env" and on_gpu:
        return " on the GPU" if ranks == 1 else f" on {ranks} GPUs"
    if run.found.settings.get("env.vectorization") == "async" and phase == "env":
        return " in worker processes"
    return " on one core" if ranks == 1 else f" on {ranks} ranks"


def _remedies(run: TimeUse, phase: str) -> tuple[str, str]:
    """What would shorten a phase, and what would not."""
    settings = run.found.settings
    logged = settings.get("data") is not None
    if phase == "env":
        return _remedy_of_steps(run), "a faster network or a smaller policy"
    if phase == "act":
        return f"more environments per step (num_envs) or {_more_ranks(run)}", "a faster network"
    if phase == "learn":
        compiled = settings.get("compile") or settings.get("ml_framework") == "jax"
        return (
            f"{'' if compiled else 'compile=true, '}a GPU or {_more_ranks(run)}",
            f"{'a faster disk' if logged else 'faster environments'} or a faster network",
        )
    if phase == "sync":
        faster = "a faster network, " if len(hosts(run)) > 1 else ""
        larger = "a larger batch_size" if logged else "fewer and larger minibatches"
        return (
            f"{faster}{larger} or fewer ranks",
            f"more ranks or {'a faster disk' if logged else 'faster environments'}",
        )
    if phase == "wait":
        return _remedy_of_waiting(run), "a faster network"
    if phase == "evaluate":
        if settings.get("task") is None:
            rarer = "" if settings.get("estimate_every") is None else "fewer estimates (estimate_every) or "
            return f"{rarer}estimate=false", "faster learning"
        video = "evaluate_video=false, " if settings.get("evaluate_video") else ""
        rarer = "" if settings.get("evaluate_every") is None else "a larger evaluate_every or "
        return f"{video}{rarer}fewer evaluate_episodes", "faster learning"
    if phase == "checkpoint":
        return "a larger checkpoint_every or a faster disk", "more ranks"
    if (run.found.path / PROFILE_FILE).exists():
        return "no --profile, whose recording counts there,", "a faster network"
    return "lockstep train --profile 10, which shows what it is,", "a faster network"


def _remedy_of_waiting(run: TimeUse) -> str:
    if cause := _waited_for(run):
        return _remedies(run, cause)[0]
    cores = [host.get("cores") for host in hosts(run)]
    if cores and all(isinstance(c, int) for c in cores) and sum(cast(list[int], cores)) < (run.num_ranks or 1):
        return "fewer ranks or more cores"
    if straggler(run):
        return "a faster machine for the slowest rank"
    return "cores that no other program uses, or fewer ranks"


def _remedy_of_steps(run: TimeUse) -> str:
    """What would shorten the steps of environments: worker processes only for tasks that Lockstep steps one by one."""
    more, vectorization = _more_ranks(run), run.found.settings.get("env.vectorization")
    if vectorization in ("async", "entry_point") or _free_cores(run) == 0:
        return more
    if vectorization == "sync":  # refused for tasks that are vectorized themselves
        return f"env.vectorization=async or {more}"
    return f"{more}, or env.vectorization=async where the task's environments are single ones,"


def _free_cores(run: TimeUse) -> int | None:
    """Cores of the run's hosts that no rank uses; None if unknown."""
    free = 0
    for host in hosts(run):
        cores, ranks = host.get("cores"), host.get("ranks")
        if not isinstance(cores, int) or not isinstance(ranks, list):
            return None
        free += max(cores - len(cast(list[Any], ranks)), 0)
    return free if hosts(run) else None


def _more_ranks(run: TimeUse) -> str:
    free = _free_cores(run)
    if free is None:
        return "more ranks"
    if free == 1:
        return "more ranks (1 core is free)"
    return f"more ranks ({free} cores are free)" if free else "more ranks on further machines (all cores are in use)"


def _phases(path: Path, summary: Mapping[str, Any]) -> dict[str, float]:
    """Seconds in each phase, from the summary, or from the last line of metrics of a run without one."""
    given = summary.get("phases_s")
    if not isinstance(given, Mapping) or not any(cast(Mapping[str, Any], given).values()):
        last = last_line(path / METRICS_FILE)
        given = {phase: last.get(f"time/{phase}_s") for phase in PHASES}
    found = cast(Mapping[str, Any], given)
    known = {phase: number_of(found.get(phase)) for phase in PHASES}
    seconds = {phase: value for phase, value in known.items() if value is not None}
    return seconds if sum(seconds.values()) > 0 else {}


def _phases_of_ranks(path: Path) -> list[dict[str, float]]:
    """Seconds in each phase on each rank, from the last line of `ranks.jsonl`; empty if unknown."""
    given = last_line(path / RANKS_FILE).get("phases_s")
    if not isinstance(given, Mapping):
        return []
    columns = cast(Mapping[str, Any], given)
    if not all(isinstance(columns.get(phase), list) for phase in PHASES):
        return []
    rows = list(zip(*(columns[phase] for phase in PHASES), strict=False))
    if not all(number_of(value) is not None for row in rows for value in row):
        return []
    return [dict(zip(PHASES, row, strict=True)) for row in rows]
