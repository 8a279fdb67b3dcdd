"""Tables of the `scale.json` that `lockstep scale` writes."""

from collections.abc import Iterator, Mapping
from typing import Any

from lockstep.record.text import aligned, counted

SCALE_FILE = "scale.json"
_MODES = {
    "strong": "strong scaling: the same {num_envs} environments in all, divided among the ranks",
    "weak": "weak scaling: {per_rank:g} environments per rank",
}


def text_of(results: Mapping[str, Any]) -> str:
    """All tables and notes."""
    return "\n\n".join("\n".join(section) for section in _sections(results) if section)


def rows_of(by_ranks: list[dict[str, Any]]) -> list[list[str]]:
    """The table of one kind of scaling, its head first."""
    rows = [["ranks", "steps/s", "speed-up", "efficiency", "lost to compute", "communication", "waiting"]]
    for one in by_ranks:
        lost = [f"{100 * value:+.0f}%" for value in one["lost"].values()]
        speed, factor, efficiency = (_spread(one[key], kind) for key, kind in _KINDS)
        rows.append([str(one["ranks"]), speed, factor, efficiency, *lost])
    return rows


_KINDS = (("steps_per_second", ".0f"), ("speed_up", ".2f"), ("efficiency", ".0%"))


def times_of(by_ranks: list[dict[str, Any]]) -> list[list[str]]:
    """The table of times to a return, its head first."""
    rows = [["ranks", "seeds", "reached it", "seconds", "steps"]]
    for one in by_ranks:
        spreads = [_spread(one["seconds"], ".1f"), _spread(one["steps"], ".0f")]
        rows.append([str(one["ranks"]), str(one["seeds"]), str(one["reached"]), *spreads])
    return rows


def model_rows(model: Mapping[str, Any]) -> list[list[str]]:
    """Measured and predicted times of an update, the head first."""
    rows = [["run", "measured, ms", "fitted", "error", "held out", "error"]]
    for row in model["runs"]:
        measured = row["measured_s"]
        cells = [row["run"], f"{1e3 * measured:.2f}"]
        for key in ("fitted_s", "held_out_s"):
            value = row[key]
            cells += ["-", "-"] if value is None else [f"{1e3 * value:.2f}", f"{value / measured - 1:+.0%}"]
        rows.append(cells)
    return rows


def model_sentence(model: Mapping[str, Any]) -> str:
    """The error of the model in one sentence."""
    if "error" in model:
        return f"cost model not fitted: {model['error']}"
    fitted, unseen = model["fitted_error"], model["held_out_error"]
    line = f"cost model (lockstep report --predict): median error {fitted['median']:.0%} of the runs it is fitted to"
    if unseen is None:
        return f"{line}; too few numbers of ranks to leave one out"
    return (
        f"{line}, {unseen['median']:.0%} of runs on numbers of ranks left out of the fit "
        f"(largest {unseen['high']:.0%}, {model['held_out_runs']} runs)"
    )


def cores_warning(results: Mapping[str, Any]) -> str | None:
    """The warning if there are more ranks than cores."""
    ranks, cores = max(results["plan"]["ranks"]), results["cores"]
    if ranks <= cores:
        return None
    more = "several ranks" if cores == 1 else f"more than {cores} ranks"
    return f"warning: {ranks} ranks on {counted(cores, 'core')} take turns: {more} cannot be faster"


def subject_of(results: Mapping[str, Any]) -> str:
    """One line on what was measured."""
    plan = results["plan"]
    return (
        f"{results['task']}: {results['algo']}, {results['ml_framework']}; medians (smallest to largest) of "
        f"{plan['repetitions']} runs of {plan['updates']} updates, on {counted(results['cores'], 'core')}"
    )


def mode_title(results: Mapping[str, Any], mode: str) -> str:
    """What one kind of scaling keeps constant."""
    per_rank = results["num_envs"] / results["plan"]["ranks"][0]
    return _MODES[mode].format(num_envs=results["num_envs"], per_rank=per_rank)


def _sections(results: Mapping[str, Any]) -> Iterator[list[str]]:
    yield [subject_of(results), *filter(None, [cores_warning(results)])]
    for mode, by_ranks in results["scaling"].items():
        if by_ranks:
            yield [mode_title(results, mode), *aligned(rows_of(by_ranks))]
    if results["time_to_return"]:
        title = f"time to a return of {results['plan']['target_return']:g}"
        yield [title, *aligned(times_of(results["time_to_return"]))]
    model = results["model"]
    yield [model_sentence(model), *([] if "error" in model else aligned(model_rows(model)))]
    yield [f"{name} failed: {reason}" for name, reason in results["failures"].items()]


def _spread(value: Mapping[str, float] | None, kind: str) -> str:
    if value is None:
        return "-"
    middle, low, high = (format(value[key], kind) for key in ("median", "low", "high"))
    return middle if low == high else f"{middle} ({low} to {high})"
