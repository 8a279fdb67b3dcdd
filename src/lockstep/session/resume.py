"""Resuming a run: its config, its checkpoint, and which settings may change."""

import math
import shlex
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from lockstep.algorithms.replay import ReplayConfig
from lockstep.config.settings import as_text, leaves, short_names, to_yaml
from lockstep.errors import ConfigError
from lockstep.preflight.setting_paths import with_absolute_paths, with_portable_code
from lockstep.record import checkpoint
from lockstep.record.checkpoint import DamagedError
from lockstep.record.file_numbers import whole_number_of
from lockstep.record.follow import last_line, read_json
from lockstep.record.latest import LATEST
from lockstep.record.run_dir import METRICS_FILE, RUN_FILE, SUMMARY_FILE, is_own_loop, read_init_from
from lockstep.record.run_status import COMPLETE
from lockstep.run import AnyRun, OfflineRun, Run, from_dict, load, override, to_dict
from lockstep.session.placement import MOVE_TO_HOST, learns_on_device
from lockstep.session.policy_file import BEST_POLICY_FILE, POLICY_FILE
from lockstep.session.unused_settings import without_effect

_FIXED = ("task", "algo", "ml_framework", "seed", "num_envs", "num_shards")
"""Settings that the saved state depends on."""
_FIXED_PARTS = ("network.", "env.")
_PLACEMENT = "env.placement"
"""May change from `auto` to what it meant; `restore_shard` of the collectors refuses to move environments."""
_FIXED_OF_ALGORITHM = (
    # normalizers
    "normalize_observation",
    "normalize_return",
    "normalize_value",
    # layers of networks
    "dueling",
    "noisy",
    "num_critics",
    "layer_norm",
    # what the outputs of networks mean
    "value_distribution",
    "num_atoms",
    "v_min",
    "v_max",
    "num_quantiles",
)
"""Settings that decide the shape of normalizers and networks, and the meaning of a network's outputs."""
_LEARNED_OR_NOT = ("algorithm.alpha", "algorithm.cql_gap")
"""Settings whose `null` decides whether a weight is learned."""
_KEPT_OR_NOT = "algorithm.policy_average"
"""A setting whose 0 decides whether there are two policies."""
_FIXED_WITH_REPLAY = ("capacity", "n_step", "prioritized", "learning_starts")
"""Settings of the replay buffer; they may change where the checkpoint's buffer is left out."""
_FIXED_WITH_LOG = ("batch_size", "estimate", "bcq_threshold", "optimizer")
"""Settings that decide the position in a log, counted in batches, and which networks and moments there are."""
_MAY_CHANGE_BITS = ("device", "backend", "tf32", "non_finite")
"""Settings of the same training on another device, by other messages, or after numbers that may never come."""
_HARMLESS = (
    # when to log, evaluate, check and write
    "log_every",
    "evaluate_every",
    "check_every",
    "checkpoint_every",
    "estimate_every",
    # what is evaluated, kept and sent
    "evaluate_episodes",
    "evaluate_video",
    "num_checkpoints",
    "trackers",
    "model_path",
    # when the run ends before its last step, or counts as stuck
    "stop_return",
    "stop_when_solved",
    "timeout_s",
    "startup_timeout_s",
    # devices, and where the replay and the environments are
    "devices_per_process",
    "capture",
    "share_gpus",
    "algorithm.replay_device",
    "algorithm.replay_path",
    _PLACEMENT,
    # where the data is; changed contents are detected elsewhere
    "data",
    "eval_data",
)
"""Settings without effect on any gradient."""


@dataclass(frozen=True, slots=True)
class Resumption:
    """The run, config and checkpoint of `lockstep train --resume`."""

    run: AnyRun
    """The config, including changes."""
    run_dir: Path
    world_size: int
    """Processes of the last start."""
    num_shards: int | None
    """Shards of the checkpoint; None without a checkpoint."""
    step: int | None
    """Environment steps of the checkpoint; None without a checkpoint."""
    exact: Path | None
    """The checkpoint that the user named; None: the newest complete one."""
    notes: list[str] = field(default_factory=list[str])
    """Messages for the user, one line each."""
    init_from: Path | None = None
    """Without a checkpoint, the policy that the run starts from, if any."""


def prepare(path: Path, changes: Mapping[str, Any]) -> Resumption:
    """Find the config and checkpoint to resume; writes nothing.

    Args:
        path: a run directory, or one checkpoint of it.
        changes: settings to change, by name.

    Raises:
        ConfigError: no such run, no complete checkpoint, or a change of a fixed setting.
    """
    run_dir, _ = _place(path)
    run = load(run_dir / RUN_FILE)
    return load_resumption(path, override(run, changes) if changes else run)


def load_resumption(path: Path, run: AnyRun) -> Resumption:
    """As `prepare`, for the complete config; writes nothing."""
    run_dir, exact = _place(path)
    manifest, notes = _newest(run_dir, exact)
    if manifest is None:
        _check_never_saved(run_dir)
        ranks = read_json(run_dir / SUMMARY_FILE).get("world_size") or 1
        processes = max(1, ranks // load(run_dir / RUN_FILE).devices_per_process)
        source = read_init_from(run_dir)
        if source is not None and not source.exists():
            raise ConfigError(
                f"{run_dir} has no checkpoint yet, and init_from={source}, the policy that it starts from, does not "
                "exist; put it back, or start a new run"
            )
        again = "there is no checkpoint yet: the run begins from its start"
        notes.append(again if source is None else f"{again}, with the policy {source}")
        return Resumption(run, run_dir, processes, None, None, None, notes, source)
    notes += compare(manifest["run"], to_dict(run))
    size, shards, step = manifest["world_size"], manifest["num_shards"], manifest["step"]
    saved = from_dict(manifest["run"])
    _check_stays_on_device(saved, run)
    notes += _empty_replay_notes(saved, run, step)
    return Resumption(run, run_dir, size, shards, step, exact, notes)


def _check_never_saved(run_dir: Path) -> None:
    """Raise `ConfigError` for a run that had checkpoints and has none: beginning again would overwrite its results."""
    had = _sign_of_checkpoints(run_dir)
    if had is None:
        return
    policies = [run_dir / name for name in (POLICY_FILE, BEST_POLICY_FILE) if (run_dir / name).is_file()]
    start = f" from its policy with --init-from {shlex.quote(str(policies[0]))}" if policies else ""
    raise ConfigError(
        f"{run_dir} has no checkpoint to continue from, and {had}: its checkpoints were removed or not copied, and to "
        f"begin again would overwrite its results; put them back, or start a new run{start}"
    )


def _sign_of_checkpoints(run_dir: Path) -> str | None:
    """What tells that a run had checkpoints; None if it may have ended before its first one."""
    status = read_json(run_dir / SUMMARY_FILE).get("status")
    if status in COMPLETE:
        return f"has {status}"
    for name in (POLICY_FILE, str(LATEST)):  # written at the end, and with each checkpoint
        if (run_dir / name).is_file():
            return f"holds {name}"
    every = load(run_dir / RUN_FILE).checkpoint_every
    if every is None or (run_dir / checkpoint.FOLDER).exists():  # the folder is made before the first is complete
        return None
    step = whole_number_of(last_line(run_dir / METRICS_FILE).get("step")) or 0
    return f"was at step {step}, with checkpoint_every={every}" if step >= 2 * every else None


def compare(saved: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    """Notes on what changed since a checkpoint; raises `ConfigError` for what may not change."""
    # A setting that is newer than the checkpoint has its default; folders of the user's code may differ between hosts.
    runs = [with_portable_code(with_absolute_paths(from_dict(tree))) for tree in (saved, now)]
    before, after = (leaves(to_dict(run)) for run in runs)
    idle = without_effect(runs[0].algorithm) & without_effect(runs[1].algorithm)
    changed = [name for name in sorted({*before, *after}) if before.get(name) != after.get(name)]
    in_algorithm = _FIXED_OF_ALGORITHM
    replay_saved = all(run.get("algorithm.checkpoint_replay", False) for run in (before, after))
    in_algorithm += _FIXED_WITH_REPLAY if replay_saved else ()
    in_algorithm += _FIXED_WITH_LOG if "data" in after else ()
    for name in changed:
        part = name.startswith(_FIXED_PARTS) and name != _PLACEMENT
        values = (before.get(name), after.get(name))
        learned = (name in _LEARNED_OR_NOT and None in values) or (name == _KEPT_OR_NOT and 0 in values)
        if name in _FIXED or part or learned or name.removeprefix("algorithm.") in in_algorithm:
            replay = name.removeprefix("algorithm.") in _FIXED_WITH_REPLAY
            raise ConfigError(
                f"{name}={as_text(after.get(name))} differs from the {as_text(before.get(name))} that the checkpoint "
                "was made with, and cannot change within a run; start a new one (--init-from takes over the policy)"
                + (", or leave the saved replay out (--set checkpoint_replay=false)" if replay else "")
            )
    notes: list[str] = []
    for name in changed:
        harmless = name in _HARMLESS or name.removeprefix("algorithm.") in idle
        effect = "" if harmless else _effect_of_change(name, after)
        notes.append(f"{name} is {as_text(after.get(name))} from here on, was {as_text(before.get(name))}{effect}")
    return notes


def _effect_of_change(name: str, run: Mapping[str, Any]) -> str:
    """What a changed setting does to a resumed run, as the end of a sentence; `run` has the settings from here."""
    if name in ("total_steps", "epochs"):
        ending = _schedules_that_follow_the_run_length(run)
        end = f"; {' and '.join(ending)} follow the new end, unlike those of a run that had it from the start"
        return end if ending else ""
    if name in _MAY_CHANGE_BITS:
        return "; the result may differ from that of a run without the change"
    if name == "evaluate_greedy":
        return "; evaluations differ, and what is best or solved by them"
    if name == "algorithm.learning_rate" and run.get("algorithm.learning_rate_schedule") == "adaptive":
        return ", without effect: the adaptive schedule continues from the rate that it has reached"
    if name == "algorithm.initial_alpha":
        return ", without effect: the temperature continues from the value that it has reached"
    if name == "algorithm.noisy_std":
        return ", without effect: the deviations continue from the values that they have reached"
    return "; the result will differ from that of a run without the change"


def _check_stays_on_device(saved: AnyRun, now: AnyRun) -> None:
    """Raise `ConfigError` for settings of the replay that would move environments from the device to the host."""
    if not (isinstance(saved, Run) and isinstance(now, Run)) or now.ml_framework != "jax":
        return
    if not isinstance(now.algorithm, ReplayConfig):
        return
    on_its_own = replace(now, env=replace(now.env, placement="auto"))
    if not learns_on_device(saved) or learns_on_device(on_its_own):
        return
    for name in MOVE_TO_HOST:
        if (value := getattr(now.algorithm, name)) != getattr(saved.algorithm, name):
            raise ConfigError(
                f"{name}={as_text(value)} is for transitions that the host collects, and this run collected from "
                f"environments on the device, which cannot change within a run; leave {name} out, or start a new run"
            )


def _schedules_that_follow_the_run_length(run: Mapping[str, Any]) -> list[str]:
    """What is scheduled by the length of the run."""
    found = ["the learning rates"] if run.get("algorithm.learning_rate_schedule") == "linear" else []
    return found + ["the importance weights"] * bool(run.get("algorithm.prioritized"))


def _empty_replay_notes(saved: AnyRun, now: AnyRun, step: int) -> list[str]:
    """When a run learns again that continues at `step` without the replay buffer of its checkpoint."""
    before, after = saved.algorithm, now.algorithm
    if not isinstance(now, Run) or not isinstance(before, ReplayConfig) or not isinstance(after, ReplayConfig):
        return []
    if before.checkpoint_replay and after.checkpoint_replay:
        return []
    begins = step + after.learning_starts
    end = f", which is beyond total_steps={now.total_steps}: nothing more will be learned"
    return [
        f"the replay buffer begins empty (checkpoint_replay=false), and learning continues at step {begins}"
        + (end if begins > now.last_step else "")
    ]


def nothing_left(resumption: Resumption, ranks: str | None = None) -> str | None:
    """The message for a run that has ended and would stop at once if resumed; None if there is something to do.

    The command that it proposes asks for as many `ranks` as this start did, if it named a number.
    """
    run = resumption.run
    run_dir = resumption.run_dir
    summary = read_json(run_dir / SUMMARY_FILE)
    status, env_steps, solved_at_step, rows = (
        summary.get(name) for name in ("status", "env_steps", "solved_at_step", "rows")
    )
    if status not in COMPLETE or resumption.step is None or env_steps != resumption.step:
        return None
    again = f"lockstep train --resume {shlex.quote(str(run_dir))}{_asked_ranks(resumption, ranks)}"
    if isinstance(run, OfflineRun):
        before, now = with_absolute_paths(load(run_dir / RUN_FILE)), with_absolute_paths(run)
        same = isinstance(before, OfflineRun) and (before.data, before.model_path) == (now.data, now.model_path)
        if not same or not isinstance(rows, int) or resumption.step < run.epochs * rows:
            return None
        times = max(run.epochs, resumption.step // rows)  # `epochs` may have been lowered
        typed = _changes(run_dir, run, but="epochs")
        more = f"{again}{typed} --set epochs={2 * times}"
        return f"nothing is left to do: {run_dir} learned from its data {times} times (epochs); continue with: {more}"
    if resumption.step >= run.total_steps:
        return (
            f"nothing is left to do: {run_dir} is at step {resumption.step}, and total_steps={run.total_steps}; "
            f"continue with: {again}{_changes(run_dir, run, but='total_steps')} "
            f"--set total_steps={2 * max(run.total_steps, resumption.step)}"
        )
    reached = summary.get("eval_return_mean")
    wanted = run.stop_return
    if wanted is None:  # the task's own, which only the environment knows
        wanted = -math.inf if load(run_dir / RUN_FILE).stop_return is None else math.inf
    if solved_at_step != resumption.step or not run.stop_when_solved or reached is None or reached < wanted:
        return None
    return (
        f"nothing is left to do: {run_dir} solved its task at step {resumption.step}; "
        f"continue with: {again}{_changes(run_dir, run, but='stop_when_solved')} --set stop_when_solved=false"
    )


def _asked_ranks(resumption: Resumption, ranks: str | None) -> str:
    """The flag for as many ranks as this start asked for; empty if it named none, or more than there are shards."""
    if ranks is None:
        return ""
    most = resumption.run.num_shards or resumption.num_shards
    too_many = ranks.isdecimal() and most is not None and int(ranks) * resumption.run.devices_per_process > most
    return "" if too_many else f" --ranks {shlex.quote(ranks)}"


def _changes(run_dir: Path, run: AnyRun, but: str) -> str:
    """The settings that this start changes, all but one, as words of the command with a space before each."""
    before, now = (leaves(to_dict(with_absolute_paths(one))) for one in (load(run_dir / RUN_FILE), run))
    shown = zip(now, short_names(list(now)), strict=True)
    changed = [(short, now[name]) for name, short in shown if now[name] != before.get(name) and name != but]
    return "".join(f" --set {shlex.quote(f'{short}={to_yaml(value, one_line=True)}')}" for short, value in changed)


def ended_summary(path: Path) -> dict[str, Any]:
    """The summary of a run that has ended."""
    return read_json(_place(path)[0] / SUMMARY_FILE)


def _place(path: Path) -> tuple[Path, Path | None]:
    """The run directory, and the checkpoint if `path` names one, by the name that it has from the next start on."""
    exact = path.absolute() if path.name.startswith("step_") and not (path / RUN_FILE).exists() else None
    run_dir = path if exact is None else exact.parent.parent
    if is_own_loop(run_dir):
        raise ConfigError(
            f"{run_dir} is the run of a loop of its own (RunDir), which Lockstep cannot resume; start its script again"
        )
    if not (run_dir / RUN_FILE).is_file():
        if not path.exists():
            raise ConfigError(f"--resume {path} does not exist; give runs/NAME or runs/NAME/checkpoints/step_N")
        raise ConfigError(
            f"--resume {path} is neither a run directory (it has no {RUN_FILE}) nor a checkpoint of one; "
            "give runs/NAME or runs/NAME/checkpoints/step_N"
        )
    if exact is not None and not _on_disk(exact).is_dir():
        there = ", ".join(found.name for found in checkpoint.find(run_dir)) or "none"
        raise ConfigError(f"--resume {path} does not exist; checkpoints of this run: {there}")
    return run_dir, exact


def _on_disk(exact: Path) -> Path:
    """Where a checkpoint lies now: one that was being replaced when its run was killed gets its name back later."""
    return checkpoint.place_of(exact.parent.parent, exact.name.removeprefix("step_"))


def _newest(run_dir: Path, exact: Path | None) -> tuple[dict[str, Any] | None, list[str]]:
    """The newest manifest that can be read, and notes on damaged ones."""
    checkpoints, notes = ([_on_disk(exact)] if exact is not None else checkpoint.find(run_dir)), list[str]()
    for path in checkpoints:
        try:
            return checkpoint.read_manifest(path), notes
        except DamagedError as error:
            if exact is not None or path == checkpoints[-1]:
                raise
            notes.append(f"checkpoint {path.name} is damaged and skipped: {error}")
    return None, notes
