"""Compare the runs: efficiency with its spread, the split of the loss, time to a return, and the error of the model."""

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Any

from lockstep.cli.report.fit import fit, held_out
from lockstep.cli.report.load import load_points
from lockstep.cli.scale.measurement import PARTS, Measurement, read_measurement
from lockstep.cli.scale.plan import Job, Mode, Plan, run_of
from lockstep.errors import ConfigError
from lockstep.preflight.cost_model import predict
from lockstep.record.follow import read_json
from lockstep.record.run_dir import SUMMARY_FILE
from lockstep.record.run_status import COMPLETE
from lockstep.run import Run


def results(folder: Path, plan: Plan, run: Run, cores: int, failures: Mapping[str, str]) -> dict[str, Any]:
    """The content of `scale.json`, from the runs that have ended.

    Args:
        folder: of the measurement.
        plan: of the runs.
        run: the config that they share.
        cores: that this process may use.
        failures: why runs failed, by name.
    """
    found: dict[Job, Measurement] = {}
    for job in plan.jobs():
        path = folder / job.name
        if job.mode != "return" and read_json(path / SUMMARY_FILE).get("status") in COMPLETE:
            measured = read_measurement(path, run_of(run, plan, job))
            found |= {} if measured is None else {job: measured}
    return {
        "schema": 1,
        "task": run.task,
        "algo": run.algo,
        "ml_framework": run.ml_framework,
        "num_envs": run.num_envs,
        "cores": cores,
        "plan": plan.tree(),
        "scaling": {mode: _scaling(mode, plan, found) for mode in plan.modes},
        "time_to_return": None if plan.target_return is None else _times_to_return(folder, plan),
        "model": _model([folder / job.name for job in found]),
        "failures": dict(failures),
    }


def _scaling(mode: Mode, plan: Plan, found: Mapping[Job, Measurement]) -> list[dict[str, Any]]:
    """Speed, efficiency and losses by number of ranks; ratios are of the runs of the same repetition."""
    smallest = plan.ranks[0]
    base_mode: Mode = "strong" if "strong" in plan.modes else "weak"
    rows: list[dict[str, Any]] = []
    for ranks in plan.ranks:
        pairs: list[tuple[Measurement, Measurement]] = []
        for repetition in range(plan.repetitions):
            base = found.get(Job(base_mode, smallest, repetition))
            here = base if ranks == smallest else found.get(Job(mode, ranks, repetition))
            if base is not None and here is not None:
                pairs.append((base, here))
        if not pairs:
            continue
        speed_ups = [here.steps_per_second / base.steps_per_second for base, here in pairs]
        losses = [_losses(base, here, ranks / smallest) for base, here in pairs]
        rows.append(
            {
                "ranks": ranks,
                "repetitions": len(pairs),
                "steps_per_second": _spread(here.steps_per_second for _, here in pairs),
                "update_s": _spread(here.seconds for _, here in pairs),
                "speed_up": _spread(speed_ups),
                "efficiency": _spread(value * smallest / ranks for value in speed_ups),
                "lost": {part: median(loss[part] for loss in losses) for part in PARTS},
                "shares": {part: median(here.parts[part] / here.seconds for _, here in pairs) for part in PARTS},
            }
        )
    return rows


def _losses(base: Measurement, here: Measurement, factor: float) -> dict[str, float]:
    """The part of the time that more ranks lose, by part of an update; they sum to 1 - efficiency.

    Without loss, `factor` times as many ranks take the time per step of the base, divided by `factor`.
    """
    ideal = here.steps / base.steps / factor
    return {part: (here.parts[part] - ideal * base.parts[part]) / here.seconds for part in PARTS}


def _times_to_return(folder: Path, plan: Plan) -> list[dict[str, Any]]:
    """Seconds and steps until the return, over seeds; seeds that did not reach it are counted, not averaged."""
    rows: list[dict[str, Any]] = []
    for ranks in plan.ranks:
        summaries = [read_json(folder / Job("return", ranks, seed).name / SUMMARY_FILE) for seed in plan.seeds]
        ended = [one for one in summaries if one.get("status") in COMPLETE]
        solved = [one for one in ended if one.get("solved_at_s") is not None]
        if ended:
            rows.append(
                {
                    "ranks": ranks,
                    "seeds": len(ended),
                    "reached": len(solved),
                    "seconds": _spread(one["solved_at_s"] for one in solved),
                    "steps": _spread(one["solved_at_step"] for one in solved),
                }
            )
    return rows


def _model(paths: Sequence[Path]) -> dict[str, Any]:
    """The cost model of `lockstep report --predict`, and its error on numbers of ranks that are left out of the fit."""
    try:
        points, notes = load_points(paths)
        if not points:
            raise ConfigError("; ".join(notes) or "no run to fit it to")
        costs = fit(points)
    except ConfigError as error:
        return {"error": str(error)}
    rows: list[dict[str, Any]] = []
    for point, unseen in held_out(points):
        rows.append(
            {
                "run": Path(point.name).name,
                "measured_s": point.seconds,
                "fitted_s": predict(costs, point.work, point.layout).seconds,
                "held_out_s": unseen,
            }
        )
    errors = [abs(row["held_out_s"] / row["measured_s"] - 1) for row in rows if row["held_out_s"] is not None]
    fitted = [abs(row["fitted_s"] / row["measured_s"] - 1) for row in rows]
    return {
        "runs": rows,
        "fitted_error": _spread(fitted),
        "held_out_error": _spread(errors),
        "held_out_runs": len(errors),
    }


def _spread(values: Iterable[float]) -> dict[str, float] | None:
    """Median, smallest and largest value; None without any."""
    known = list(values)
    return {"median": median(known), "low": min(known), "high": max(known)} if known else None
