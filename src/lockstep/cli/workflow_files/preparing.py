"""Prepare the logs of a workflow file on every node.

The leader of each node (local rank 0, or the launcher of a single machine) does the work; the result is gathered on all
ranks. If several nodes hold parts of the data, features are identified from the samples of all nodes, so that the
normalization is the same everywhere.
"""

import gzip
import hashlib
import json
import os
import secrets
import shlex
import socket
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, TypeVar, cast

from lockstep.cli.workflow_files.files import CACHE_VARIABLE, Normalization, Source, Workflow, cache_root
from lockstep.data.dataset import Dataset
from lockstep.data.feature_file import features_from_dict, features_to_dict, load_features, save_features
from lockstep.data.features import Features
from lockstep.data.preparation.progress import ProgressDisplay
from lockstep.data.prepare import FeatureSample, PrepareOptions, identify_features, prepare_dataset, sample_features
from lockstep.distributed.agreement import Gather
from lockstep.errors import ConfigError, RunError
from lockstep.launch.all_processes import gathering
from lockstep.record.console import Console
from lockstep.run import OfflineRun
from lockstep.world import World

_T = TypeVar("_T")
_PREPARE_S = 7 * 24 * 3600.0  # timeout; a rank that dies is detected by the launcher of its node
_LOG_SUFFIXES = (".json", ".jsonl", ".gz")
_SAMPLED = 1 << 16  # bytes at the beginning and end of a file that are hashed


def together(workflow: Workflow, world: World) -> OfflineRun:
    """`prepare` by all ranks of a run; *collective*."""
    with gathering(workflow.run, world, _PREPARE_S) as gather:
        return prepare(workflow, world, gather)


def prepare(
    workflow: Workflow,
    world: World | None = None,
    gather: Gather = lambda value, _: [value],
    console: Console | None = None,
) -> OfflineRun:
    """Prepare the training and evaluation data unless they are up to date; *collective*. Returns the run to train.

    The world is by default this process alone; `console` shows messages and progress of rank 0.

    Raises:
        ConfigError: on all ranks, naming the node where there are several.
    """
    nodes = _Nodes(world or World(), gather, console or Console())
    try:
        _prepare(workflow, nodes)
    finally:
        nodes.console.close()
    return workflow.run


def _prepare(workflow: Workflow, nodes: "_Nodes") -> None:
    fingerprints = nodes.each("sources", lambda: _checked_sources(workflow))
    options = PrepareOptions(
        kind=workflow.kind,
        actions=workflow.actions,
        columns=workflow.columns,
        max_episode_steps=workflow.max_episode_steps,
    )
    if not workflow.training.prepared:
        nodes.check_cache(fingerprints)
        files = _normalized(workflow, replace(options, norm=workflow.norm_params), nodes)
        features = {"state_features": files["state_features"], "action_features": files.get("action")}
        nodes.each("prepare", lambda: nodes.prepare_source(workflow.training, replace(options, **features)))
    if workflow.evaluation is not None and not workflow.evaluation.prepared:
        evaluation, training = workflow.evaluation, workflow.training.out
        same_features = replace(
            options,
            state_features=training / "state_features.json",
            action_features=training / "action_features.json" if workflow.kind == "parametric" else None,
        )
        nodes.each("prepare_evaluation", lambda: nodes.prepare_source(evaluation, same_features))


@dataclass(frozen=True, slots=True)
class _Nodes:
    """The leaders of all nodes."""

    world: World
    gather: Gather
    console: Console

    def each(self, tag: str, work: Callable[[], _T]) -> list[_T]:
        """Run `work` on the leader of each node; *collective*. Returns all results; errors are raised on all ranks."""
        details: dict[str, Any] = {}
        if self.world.local_rank == 0:
            details = {"node": self.world.node_rank, "host": socket.gethostname()}
            try:
                details["value"] = work()
            except (ConfigError, RunError) as error:
                details |= {"error": str(error), "refused": isinstance(error, ConfigError)}
        leaders = [one for one in self.gather(details, f"prepare/{tag}") if one]
        for one in leaders:
            if "error" in one:
                where = f"node {one['node']} ({one['host']}): " if len(leaders) > 1 else ""
                raise (ConfigError if one["refused"] else RunError)(f"{where}{one['error']}")
        return [one["value"] for one in leaders]

    def say(self, text: str) -> None:
        """Print a message on rank 0."""
        if self.world.rank == 0:
            self.console.line(text)

    def prepare_source(self, source: Source, options: PrepareOptions) -> str:
        """Prepare the data of this node; rank 0 shows the progress."""
        prepare_dataset(source.paths, source.out, options, show=self.say, progress=self.progress())
        return str(source.out)

    def progress(self) -> ProgressDisplay | None:
        """The progress display; None on ranks other than 0."""
        return ProgressDisplay(self.console) if self.world.rank == 0 else None

    def check_cache(self, fingerprints: Sequence[str]) -> None:
        """Raise `ConfigError` if nodes with different logs share one cache; *collective*."""
        token = secrets.token_hex(8)
        try:
            tokens = self.each("cache", lambda: _create_marker(token))
            seen = self.each("seen", lambda: [name in os.listdir(cache_root()) for name in tokens])
        finally:
            if self.world.local_rank == 0:
                with suppress(OSError):  # such as that of a cache that cannot be made: it has been told
                    (cache_root() / f".{token}").unlink()
        for node, sees in enumerate(seen):
            for other, there in enumerate(sees):
                if there and fingerprints[node] != fingerprints[other]:
                    raise ConfigError(
                        f"nodes {node} and {other} hold different logs under the same path, but share {cache_root()}, "
                        "where both would prepare theirs; set LOCKSTEP_CACHE to a directory on each node's own disk"
                    )


def _checked_sources(workflow: Workflow) -> str:
    """Check that the sources exist and suit the workflow; returns a fingerprint of the logs."""
    lines = hashlib.blake2b(digest_size=16)
    for name, source in (("training_data_path", workflow.training), ("eval_data_path", workflow.evaluation)):
        if source is None:
            continue
        for path in source.paths:
            if not path.exists():
                raise ConfigError(
                    f"{name}: {path} does not exist; name your log, or make one: lockstep offline record TASK --out "
                    f"{shlex.quote(str(path))}"
                )
        if source.prepared:
            _check_prepared(workflow, name, source)
            continue
        for file in (file for path in source.paths for file in _files(path)):
            try:
                size = file.stat().st_size
                lines.update(f"{file.name} {size} ".encode())
                with file.open("rb") as opened:
                    lines.update(opened.read(_SAMPLED))
                    opened.seek(max(0, size - _SAMPLED))
                    lines.update(opened.read())
            except OSError as error:
                raise ConfigError(f"{name}: {file} cannot be read ({error.strerror})") from None
    return lines.hexdigest()


def _files(path: Path) -> list[Path]:
    return sorted(file for file in path.rglob("*") if file.is_file()) if path.is_dir() else [path]


def _check_prepared(workflow: Workflow, name: str, source: Source) -> None:
    info = Dataset.open(source.out).info
    if info.kind != workflow.kind:
        raise ConfigError(f"{name}: {source.out} has {info.kind} actions, and {workflow.path.name} is for others")
    if workflow.actions is not None and set(info.actions) != set(workflow.actions):
        raise ConfigError(
            f"actions={', '.join(workflow.actions)}, but those of {name}={source.out} are {', '.join(info.actions)}"
        )


def _create_marker(token: str) -> str:
    """Create a marker file in the cache; returns its name."""
    root = cache_root()
    try:
        root.mkdir(mode=0o700, parents=True, exist_ok=True)
        status = root.stat()
        if CACHE_VARIABLE not in os.environ and (status.st_uid != os.getuid() or status.st_mode & 0o022):
            raise ConfigError(f"others can write to {root}; remove it, or set LOCKSTEP_CACHE to another directory")
        (root / f".{token}").touch()
    except OSError as error:
        raise ConfigError(
            f"cannot prepare data in {root} ({error.strerror}); set LOCKSTEP_CACHE to another directory"
        ) from None
    return f".{token}"


def _normalized(workflow: Workflow, options: PrepareOptions, nodes: _Nodes) -> dict[str, Path]:
    """The normalization file of each column, next to the prepared data; *collective*."""
    known = nodes.each("normalizations", lambda: {one.column: _written(one) for one in workflow.normalizations})
    found: dict[str, Any] = {}
    for one in workflow.normalizations:
        given = [node[one.column] for node in known if node[one.column] is not None]
        if any(other != given[0] for other in given):
            raise ConfigError(f"the nodes have different normalizations of {one.column}; give all the same file")
        if given:
            found[one.column] = given[0]
            unused = "; norm_params changes nothing while it is there" if one.identify else ""
            nodes.say(f"normalization of {one.column}: {_source_of(one)}{unused}")
        elif not one.identify:
            raise ConfigError(
                f"nothing says how {one.column} is normalized: it is not in norm_params.cols_to_norm, and there is no "
                f"file {one.path or one.output or ''}".rstrip()
            )
    for paths, columns in _logs(workflow, found).items():
        samples = nodes.each("samples", lambda paths=paths: asdict(sample_features(paths, options, nodes.progress())))
        features = identify_features([_sample(one) for one in samples], options)
        for one in columns:
            chosen = cast(Features, features[one.column == "action"])
            found[one.column] = features_to_dict(chosen)
            nodes.each("write", lambda one=one: _write(one, found[one.column], nodes))
    out = workflow.training.out
    files = {column: out.with_name(f"{out.name}.{column}.json") for column in found}
    nodes.each(
        "features", lambda: [save_features(features_from_dict(found[column]), file) for column, file in files.items()]
    )
    return files


def _written(one: Normalization) -> dict[str, Any] | None:
    """The normalization in an existing file; None without one."""
    for path in (one.path, one.output):
        if path is not None and path.exists() and not _is_log(path):
            return features_to_dict(load_features(path))
    return None


def _source_of(one: Normalization) -> Path | None:
    return next((path for path in (one.path, one.output) if path is not None and path.exists()), one.written())


def _is_log(path: Path) -> bool:
    """Whether a `*_norm_data_path` is a log instead of a normalization file."""
    if path.is_dir() or path.suffix not in _LOG_SUFFIXES:
        return True
    try:
        with gzip.open(path, "rt") if path.suffix == ".gz" else path.open() as file:
            first = json.loads(file.readline())
    except (OSError, ValueError):  # not JSON lines
        return False
    return isinstance(first, Mapping) and "state_features" in first


def _logs(workflow: Workflow, found: Mapping[str, Any]) -> dict[tuple[Path, ...], list[Normalization]]:
    """The logs to identify normalizations from, and the columns of each."""
    logs: dict[tuple[Path, ...], list[Normalization]] = {}
    for one in workflow.normalizations:
        if one.column not in found:
            own = one.path is not None and one.path.exists()
            paths = (cast(Path, one.path),) if own else workflow.training.paths
            logs.setdefault(paths, []).append(one)
    return logs


def _sample(details: Mapping[str, Any]) -> FeatureSample:
    """Restore the tuples of a sample, which messages turn into lists."""
    names: dict[str, Any] = {name: tuple(cast(list[str], details[name])) for name in ("state_ids", "action_ids")}
    return FeatureSample(**{**details, **names})


def _write(one: Normalization, features: Mapping[str, Any], nodes: _Nodes) -> None:
    """Write the normalization file of the workflow, on node 0 only."""
    path = one.written()
    if path is None or path.exists() or nodes.world.node_rank != 0:
        return
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigError(f"cannot write the normalization of {one.column} to {path}: {error.strerror}") from None
    save_features(features_from_dict(features), path)
    nodes.say(f"normalization of {one.column}: identified, and written to {path}")
