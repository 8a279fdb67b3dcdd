"""`lockstep offline train`: learn from prepared data, by a run's YAML or by a classic workflow file."""

import argparse
import difflib
import shlex
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from lockstep.cli.flags import add_learning_arguments, add_start_arguments
from lockstep.errors import ConfigError

if TYPE_CHECKING:
    from lockstep.cli.workflow_files.files import Workflow
    from lockstep.run import AnyRun, OfflineRun

_ALGORITHMS = ("dqn", "parametric_dqn", "iql", "td3_bc", "cql", "bc")
_DEFAULT = {"discrete": "dqn", "parametric": "parametric_dqn", "continuous": "iql"}
"""The algorithm for each kind of actions."""
_CQL_ALPHA = "1.0"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `lockstep offline train`."""
    add = parser.add_argument
    add("target", metavar="DATA|WORKFLOW.json|RUN.yaml", nargs="?", help="what to learn from")
    add("--task", metavar="ID", help="a simulator to evaluate the policy in, where there is one")
    add("--algo", metavar="|".join(_ALGORITHMS), help="algorithm (default: Q-learning for the kind of actions)")
    add_learning_arguments(parser)
    add_start_arguments(parser)
    parser.set_defaults(num_envs=None, max_iterations=None, agent=None)


def train_command(args: argparse.Namespace) -> int:
    """`lockstep offline train`; returns the exit code."""
    from lockstep.cli.request import requested_nodes, requested_on_ray, requested_world
    from lockstep.cli.start import resume, several, start

    if args.resume is not None:
        return resume(args)
    run, workflow = _requested(args)
    if workflow is None:
        return start(args, run)
    from lockstep.cli.workflow_files import preparing
    from lockstep.cli.workflow_files.nodes import node_arguments

    if requested_on_ray(args, default_ranks=1, num_shards=run.num_shards) is not None:
        if workflow.num_nodes > 1 and args.nnodes is None:
            raise ConfigError(
                f"num_nodes={workflow.num_nodes} of {workflow.path} is for launchers that run on each node; with --on "
                f"ray give --nnodes {workflow.num_nodes}"
            )
        _print_notes(workflow)
        return start(args, preparing.prepare(workflow))
    node_arguments(args, workflow)
    nodes = requested_nodes(args, run.num_shards)
    if several(nodes):
        from lockstep.launch.commands import train_on_nodes

        return train_on_nodes(args, run, nodes)
    world = requested_world(args, default_ranks=1, nodes=nodes)
    if world.rank == 0:
        _print_notes(workflow)
    prepared = preparing.prepare(workflow) if world.launcher == "none" else preparing.together(workflow, world)
    return start(args, prepared)


def _print_notes(workflow: "Workflow") -> None:
    for note in workflow.notes:
        print(f"lockstep: {note}")


def _requested(args: argparse.Namespace) -> "tuple[OfflineRun, Workflow | None]":
    from lockstep.cli.request import changes_of
    from lockstep.cli.workflow_files import files
    from lockstep.cli.workflow_files.fields import CLASSIC_NAMES
    from lockstep.run import override

    if args.target is None:
        raise ConfigError("nothing to learn from; name prepared data or a workflow file: lockstep offline train data/")
    path, workflow = Path(args.target), None
    if not path.exists():
        raise ConfigError(f"{path} does not exist; give prepared data, a workflow file or a run's YAML")
    if files.is_workflow(path):
        workflow = files.read(path)
        run, args.init_from = workflow.run, args.init_from or workflow.init_from
    else:
        run = _from_path(path)
    changes = changes_of(args, task=args.task)
    renamed = {CLASSIC_NAMES.get(name, name): value for name, value in changes.items()}
    _check_algo(renamed.get("algo"))
    if renamed.get("algo") == "cql" and run.algo in ("dqn", "parametric_dqn"):
        renamed["algo"] = "parametric_dqn" if run.algo == "parametric_dqn" else "dqn"
        renamed.setdefault("cql_alpha", _CQL_ALPHA)
    _check_settings(run, renamed)
    run = override(run, renamed)
    return run, None if workflow is None else replace(workflow, run=run)


def _check_settings(run: "OfflineRun", changes: Mapping[str, Any]) -> None:
    """Raise `ConfigError` for settings of `lockstep offline prepare`."""
    from lockstep.config.settings import hints_of
    from lockstep.data.preparation.identify import NormParams

    known = {path.rpartition(".")[2] for path in hints_of(run)}
    for name, value in changes.items():
        setting = name.partition(".")[0]
        if setting in NormParams.__dataclass_fields__ and setting not in known:
            given = shlex.quote(f"{name}={value}")
            raise ConfigError(
                f"{name} is a setting of the data: prepare the log again, lockstep offline prepare LOG --out DIR --set "
                f"{given}"
            )


def _check_algo(algo: object) -> None:
    if algo is None or algo in _ALGORITHMS:
        return
    near = difflib.get_close_matches(str(algo), _ALGORITHMS, n=1)
    hint = f"; did you mean {near[0]}?" if near else ""
    bcq = " (discrete BCQ is dqn with --set bcq_threshold=0.1)" if "bcq" in str(algo).lower() else ""
    raise ConfigError(f"--algo {algo} does not exist; there are {', '.join(_ALGORITHMS)}{bcq}{hint}")


def _from_path(path: Path) -> "OfflineRun":
    """A run on prepared data with default settings, or the run of a file or run directory."""
    from lockstep.data.dataset import Dataset
    from lockstep.run import OfflineRun

    pasted = shlex.quote(str(path))
    if path.is_dir() and not (path / "run.yaml").exists():
        if not (path / "dataset.json").exists():
            raise ConfigError(
                f"{path} does not hold prepared data; prepare a log: lockstep offline prepare LOG --out DIR"
            )
        kind = Dataset.open(path).info.kind
        return OfflineRun(data=str(path), algo=cast(Any, _DEFAULT[kind]))
    if path.name == "dataset.json":
        raise ConfigError(
            f"{path} describes prepared data; name their directory: "
            f"lockstep offline train {shlex.quote(str(path.parent))}"
        )
    if path.suffix not in (".yaml", ".yml", ".json") and not path.is_dir():
        raise ConfigError(f"{path} is not prepared data; prepare it: lockstep offline prepare {pasted} --out DIR")
    run = _of_file(path / "run.yaml" if path.is_dir() else path)
    if not isinstance(run, OfflineRun):
        raise ConfigError(f"{path} describes a run that learns from environments; lockstep train {pasted} starts it")
    return run


def _of_file(path: Path) -> "AnyRun":
    """The run of a file; one that names no algorithm gets that of its data, as `lockstep offline train DATA` does."""
    from lockstep.config.settings import parse, value_of
    from lockstep.data.dataset import Dataset
    from lockstep.data.dataset_files import DESCRIPTION
    from lockstep.run import run_from_file_content
    from lockstep.system.files import read_text

    text = read_text(path)
    if text.lstrip().startswith("["):  # a log that is one list of rows
        pasted = shlex.quote(str(path))
        raise ConfigError(f"{path} is not prepared data; prepare it: lockstep offline prepare {pasted} --out DIR")
    tree = parse(text, str(path))
    data = value_of(tree, "data")
    if data is None and value_of(tree, "task") is None:
        raise ConfigError(
            f"{path} is neither a workflow file (it has no training_data_path) nor a run that learns from logged data "
            "(it has no data)"
        )
    if isinstance(data, str) and value_of(tree, "algo") is None and (Path(data) / DESCRIPTION).is_file():
        tree = {**tree, "algo": _DEFAULT[Dataset.open(data).info.kind]}
    return run_from_file_content(tree, path)
