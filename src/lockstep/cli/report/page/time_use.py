"""Explain where the time of a run went: what would make it faster, and which rank the others wait for."""

from collections.abc import Mapping, Sequence
from typing import Any, cast

from lockstep.cli.report.page.load import PageRun

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


def advice(run: PageRun) -> str | None:
    """One sentence: the largest phase, what would shorten it, and what would not; None without phases."""
    total = sum(run.phases.values())
    if not total:
        return None
    phase = max(run.phases, key=lambda name: run.phases[name])
    share = run.phases[phase] / total
    helps, helps_not = _remedies(run, phase)
    sentence = (
        f"{share:.0%} of the time is {_WHAT[phase]}{_where(run, phase)}: {helps} would help; {helps_not} would not."
    )
    if phase in _SHARED:
        saved = sum(run.phases.get(name, 0.0) for name in _SHARED) / total / 2
        sentence += f" Twice as many ranks with cores of their own would save at most {saved:.0%}."
    return sentence


def straggler(run: PageRun) -> str | None:
    """One sentence that names the rank that waits least, which the others wait for; None if all wait alike."""
    waits = [phases["wait"] for phases in run.phases_of_ranks]
    total = sum(run.phases.values())
    if len(waits) < 2 or not total:
        return None
    slowest = min(range(len(waits)), key=waits.__getitem__)
    mean = (sum(waits) - waits[slowest]) / (len(waits) - 1)
    if mean - waits[slowest] < max(_NOTABLE_WAIT * total, mean / 2):
        return None
    return (
        f"R{rank_name(run, slowest)[1:]} is the slowest: it waited {waits[slowest]:.1f} s, the others "
        f"{mean:.1f} s on average, {mean / total:.0%} of their time."
    )


def rank_name(run: PageRun, index: int) -> str:
    """`rank 3 on host`; without the host if the run has no result yet."""
    if len(run.ranks) != len(run.phases_of_ranks):
        return f"rank {index}"
    rank = run.ranks[index]
    return f"rank {rank.get('rank')} on {rank.get('host')}"


def hosts(run: PageRun) -> Sequence[Mapping[str, Any]]:
    """The hosts in `preflight.json`."""
    given = run.preflight.get("hosts")
    found = cast(list[Any], given) if isinstance(given, list) else []
    return [cast(Mapping[str, Any], host) for host in found if isinstance(host, Mapping)]


def _where(run: PageRun, phase: str) -> str:
    ranks = run.num_ranks or 1
    if phase not in _SHARED:
        return ""
    on_gpu = "cuda" in str(run.summary.get("devices"))
    if phase != "env" and on_gpu:
        return " on the GPU" if ranks == 1 else f" on {ranks} GPUs"
    if run.found.settings.get("env.vectorization") == "async" and phase == "env":
        return " in worker processes"
    return " on one core" if ranks == 1 else f" on {ranks} ranks"


def _remedies(run: PageRun, phase: str) -> tuple[str, str]:
    """What would shorten a phase, and what would not."""
    settings, ranks = run.found.settings, run.num_ranks or 1
    if phase == "env":
        more = _more_ranks(run)
        workers = settings.get("env.vectorization") != "async" and _free_cores(run) != 0
        return f"env.vectorization=async or {more}" if workers else more, "a faster network or a smaller policy"
    if phase == "act":
        return f"more environments per step (num_envs) or {_more_ranks(run)}", "a faster network"
    if phase == "learn":
        compiled = settings.get("compile") or settings.get("ml_framework") == "jax"
        return (
            f"{'' if compiled else 'compile=true, '}a GPU or {_more_ranks(run)}",
            "faster environments or a faster network",
        )
    if phase == "sync":
        faster = "a faster network, " if len(hosts(run)) > 1 else ""
        return f"{faster}fewer and larger minibatches or fewer ranks", "more ranks or faster environments"
    if phase == "wait":
        cores = [host.get("cores") for host in hosts(run)]
        crowded = cores and all(isinstance(c, int) for c in cores) and sum(cast(list[int], cores)) < ranks
        if crowded:
            return "fewer ranks or more cores", "a faster network"
        if straggler(run):
            return "a faster machine for the slowest rank", "a faster network"
        return "cores that no other program uses, or fewer ranks", "a faster network"
    if phase == "evaluate":
        return "a larger evaluate_every or fewer evaluate_episodes", "faster learning"
    if phase == "checkpoint":
        return "a larger checkpoint_every or a faster disk", "more ranks"
    return "a profile of the training script", "a faster network"


def _free_cores(run: PageRun) -> int | None:
    """Cores of the run's hosts that no rank uses; None if unknown."""
    free = 0
    for host in hosts(run):
        cores, ranks = host.get("cores"), host.get("ranks")
        if not isinstance(cores, int) or not isinstance(ranks, list):
            return None
        free += max(cores - len(cast(list[Any], ranks)), 0)
    return free if hosts(run) else None


def _more_ranks(run: PageRun) -> str:
    free = _free_cores(run)
    if free is None:
        return "more ranks"
    if free == 1:
        return "more ranks (1 core is free)"
    return f"more ranks ({free} cores are free)" if free else "more ranks on further machines (all cores are in use)"
