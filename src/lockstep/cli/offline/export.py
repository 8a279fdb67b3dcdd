"""`lockstep export`: write the policy of a run as a file that runs without Lockstep."""

import argparse
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lockstep.cli.flags import add_policy_choice
from lockstep.errors import ConfigError

if TYPE_CHECKING:
    import numpy as np

    from lockstep.data.dataset import Dataset
    from lockstep.session.which_policy import FoundPolicy
    from lockstep.torch.deploy.exported_file import Exported, Format

_SUFFIXES: "dict[Format, str]" = {"onnx": ".onnx", "torch": ".pt2"}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `lockstep export`."""
    add_policy_choice(parser)
    parser.set_defaults(call=export_command)
    add = parser.add_argument
    add("--format", choices=("onnx", "torch"), help="ONNX, or torch.export's .pt2 (default: by --out, else onnx)")
    add("--out", metavar="FILE", help="where to (default: policy.onnx, policy_best.onnx or policy_step_N.onnx in RUN)")
    add("--force", action="store_true", help="replace a file that is there")
    add("--data", metavar="DIR", help="prepared data to compare on (default: what the run learned from)")


def export_command(args: argparse.Namespace) -> int:
    """`lockstep export`; returns the exit code."""
    from lockstep.session.which_policy import read_policy

    found, metadata, arrays = read_policy(Path(args.run), best=args.best, last=args.last, step=args.checkpoint)
    to = _format(args.format, args.out)
    suffix = _SUFFIXES[to]
    out = Path(args.out) if args.out else (found.run_dir or found.path.parent) / f"{found.name}{suffix}"
    if out.is_dir():
        raise ConfigError(f"--out {out} is a directory; name a file, such as {out / f'policy{suffix}'}")
    if out.exists() and not args.force:
        raise ConfigError(f"{out} exists and may hold another policy; replace it with --force, or name a file by --out")
    print(f"{found.description}: {_exported(found, metadata, arrays, out, to, args.data)}")
    return 0


def _format(given: "Format | None", out: str | None) -> "Format":
    """The format of the file: as given, else that of its suffix."""
    suffix = "" if out is None else Path(out).suffix
    chosen: Format = given or ("torch" if suffix == _SUFFIXES["torch"] else "onnx")
    if out is not None and suffix != _SUFFIXES[chosen] and not Path(out).is_dir():
        raise ConfigError(f"--out {out}: the name of a file of --format {chosen} ends in {_SUFFIXES[chosen]}")
    return chosen


def _exported(
    found: "FoundPolicy",
    metadata: Mapping[str, Any],
    arrays: "Mapping[str, np.ndarray]",
    out: Path,
    to: "Format",
    data: str | None,
) -> "Exported":
    from lockstep.torch.deploy.acting_export import export_acting
    from lockstep.torch.deploy.offline_export import export
    from lockstep.torch.export import policy_from
    from lockstep.torch.scoring.offline_policy import OfflinePolicy

    policy, observations = policy_from(found.path, metadata, arrays)
    if isinstance(policy, OfflinePolicy):
        return export(policy, _data(found.run_dir or found.path, data), out, to)
    if data is not None:
        raise ConfigError(f"--data {data}: {found.path} learned in environments, not from data; leave it out")
    return export_acting(policy, observations, out, to)


def _data(run: Path, given: str | None) -> "Dataset":
    """The prepared data to compare on: `given`, else the data of the run."""
    from lockstep.data.dataset import Dataset
    from lockstep.record.run_dir import RUN_FILE
    from lockstep.run import OfflineRun, load

    if given is not None:
        return Dataset.open(Path(given), named="--data")
    config = load(run / RUN_FILE) if (run / RUN_FILE).is_file() else None
    if not isinstance(config, OfflineRun):
        raise ConfigError(f"{run} does not say what it learned from; add --data DIR, the prepared data to compare on")
    if not Path(config.data).exists():
        raise ConfigError(
            f"data={config.data}, which {run} learned from, is not there; add --data DIR, prepared data to compare on"
        )
    return Dataset.open(Path(config.data))
