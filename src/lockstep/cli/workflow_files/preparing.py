"""From the logs that a workflow file names to prepared data, on every node alike.

The leader of each node (its first rank, or the launcher where it is alone) does the work, and all ranks learn how it
went. Where several nodes hold parts of the data, their samples are put together before features are typed and
normalized: the normalization is then that of all data, the same on every node.
"""

import gzip
import json
import os
import secrets
import socket
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, TypeVar, cast

from lockstep.cli.workflow_files.files import CACHE_VARIABLE, Normalization, Source, Workflow, cache_root
from lockstep.cli.workflow_files.sources import checked_sources
from lockstep.data.dataset import Dataset
from lockstep.data.feature_file import features_from_dict, features_to_dict, load_features, save_features
from lockstep.data.features import Features
from lockstep.data.preparation.progress import ProgressDisplay
from lockstep.data.prepare import FeatureSample, PrepareOptions, identify_features, prepare_dataset, sample_features
from lockstep.errors import ConfigError, RunError
from lockstep.record.console import Console
from lockstep.run import OfflineRun
from lockstep.world import World

Gather = Callable[[Any, str], list[Any]]
"""JSON-able values (arrays allowed) of all ranks, in rank order; collective."""
_T = TypeVar("_T")
_PREPARE_S = 7 * 24 * 3600.0  # bound on preparing: a rank that dies is noticed by the launcher of its node
_LOG_SUFFIXES = (".json", ".jsonl", ".gz")


def together(workflow: Workflow, world: World) -> OfflineRun:
    """`prepare` by all ranks of a run; *collective*."""
    from lockstep.torch.comm import Comm

    run = workflow.run
    comm = Comm(
        world, device="cpu", backend="gloo", timeout_s=_PREPARE_S, startup_timeout_s=run.startup_timeout_s,
        shared_memory=False,
    )  # fmt: skip
    with comm:
        return prepare(workflow, world, comm.gather_object)


def prepare(
    workflow: Workflow,
    world: World | None = None,
    gather: Gather = lambda value, _: [value],
    console: Console | None = None,
) -> OfflineRun:
    """Prepare what the workflow learns from and is evaluated on, unless that is done; *collective*.

    Args:
        workflow: the file.
        world: who takes part; default: this process alone.
        gather: brings together what ranks know.
        console: where rank 0 tells where data and normalizations come from, and how far it is.

    Returns:
        The run to train.

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
    checked = nodes.each("sources", lambda: checked_sources(workflow))
    if not workflow.training.prepared:
        nodes.check_cache([str(one["fingerprint"]) for one in checked])
        options = PrepareOptions(
            kind=workflow.kind,
            actions=workflow.actions,
            columns=workflow.columns,
            max_episode_steps=workflow.max_episode_steps,
            norm=workflow.norm_params,
        )
        files = _normalized(workflow, options, nodes)
        options = replace(options, norm={}, state_features=files["state_features"], action_features=files.get("action"))
        nodes.each("prepare", lambda: nodes.prepared(workflow.training, options))
    if workflow.evaluation is not None and not workflow.evaluation.prepared:
        evaluation, training = workflow.evaluation, workflow.training.out
        alike = PrepareOptions(
            kind=workflow.kind,
            actions=workflow.actions,
            columns=workflow.columns,
            max_episode_steps=workflow.max_episode_steps,
            state_features=training / "state_features.json",
            action_features=training / "action_features.json" if workflow.kind == "parametric" else None,
        )
        nodes.each("prepare_evaluation", lambda: nodes.prepared(evaluation, alike))
        nodes.each("compare", lambda: nodes.compare(training, evaluation.out))


@dataclass(frozen=True, slots=True)
class _Nodes:
    """The leaders of all nodes."""

    world: World
    gather: Gather
    console: Console

    def each(self, tag: str, work: Callable[[], _T]) -> list[_T]:
        """What the leader of each node comes to; *collective*. What one refuses or fails in is raised on all ranks."""
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
        """Tell the user, once."""
        if self.world.rank == 0:
            self.console.line(text)

    def prepared(self, source: Source, options: PrepareOptions) -> str:
        """Prepare what this node holds; rank 0 shows how far it is."""
        prepare_dataset(source.paths, source.out, options, show=self.say, progress=self.progress())
        return str(source.out)

    def compare(self, training: Path, evaluation: Path) -> None:
        """Say it where the policy is to be judged by what it learns from: sample data of the classic pipeline is so."""
        if Dataset.open(training).info.digest == Dataset.open(evaluation).info.digest:
            self.say("note: eval_data_path holds the same rows as training_data_path; estimates will be too good")

    def progress(self) -> ProgressDisplay | None:
        """The display of one preparation; only rank 0 has one."""
        return ProgressDisplay(self.console) if self.world.rank == 0 else None

    def check_cache(self, fingerprints: Sequence[str]) -> None:
        """Refuse one cache for nodes whose logs differ: each would prepare over the other's; *collective*."""
        token = secrets.token_hex(8)
        tokens = self.each("cache", lambda: _leave(token))
        try:
            seen = self.each("seen", lambda: [name in os.listdir(cache_root()) for name in tokens])
        finally:
            if self.world.local_rank == 0:
                (cache_root() / f".{token}").unlink(missing_ok=True)
        for node, sees in enumerate(seen):
            for other, there in enumerate(sees):
                if there and fingerprints[node] != fingerprints[other]:
                    raise ConfigError(
                        f"nodes {node} and {other} hold different logs under the same path, but share {cache_root()}, "
                        "where both would prepare theirs; set LOCKSTEP_CACHE to a directory on each node's own disk"
                    )


def _leave(token: str) -> str:
    """Leave a file in the cache, and tell its name."""
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
    """The normalization of each column, as a file beside the data to be prepared; *collective*."""
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
    """What a file says that is there already."""
    for path in (one.path, one.output):
        if path is not None and path.exists() and not _is_log(path):
            return features_to_dict(load_features(path))
    return None


def _source_of(one: Normalization) -> Path | None:
    return next((path for path in (one.path, one.output) if path is not None and path.exists()), one.written())


def _is_log(path: Path) -> bool:
    """Whether a `*_norm_data_path` is data to identify a normalization from."""
    if path.is_dir() or path.suffix not in _LOG_SUFFIXES:
        return True
    try:
        with gzip.open(path, "rt") if path.suffix == ".gz" else path.open() as file:
            first = json.loads(file.readline())
    except (OSError, ValueError):  # a JSON of several lines is no JSON line
        return False
    return isinstance(first, Mapping) and "state_features" in first


def _logs(workflow: Workflow, found: Mapping[str, Any]) -> dict[tuple[Path, ...], list[Normalization]]:
    """The logs that normalizations are identified from, and of which columns."""
    logs: dict[tuple[Path, ...], list[Normalization]] = {}
    for one in workflow.normalizations:
        if one.column not in found:
            own = one.path is not None and one.path.exists()
            paths = (cast(Path, one.path),) if own else workflow.training.paths
            logs.setdefault(paths, []).append(one)
    return logs


def _sample(details: Mapping[str, Any]) -> FeatureSample:
    """As it was before it went through a message, which has no tuples."""
    names: dict[str, Any] = {name: tuple(cast(list[str], details[name])) for name in ("state_ids", "action_ids")}
    return FeatureSample(**{**details, **names})


def _write(one: Normalization, features: Mapping[str, Any], nodes: _Nodes) -> None:
    """Node 0 alone writes what the file asks for; the others have it in their cache."""
    path = one.written()
    if path is None or path.exists() or nodes.world.node_rank != 0:
        return
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigError(f"cannot write the normalization of {one.column} to {path}: {error.strerror}") from None
    save_features(features_from_dict(features), path)
    nodes.say(f"normalization of {one.column}: identified, and written to {path}")
