"""Read classic workflow files (JSON or YAML): the run, its data and its nodes."""

import hashlib
import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal, cast

from lockstep.cli.workflow_files.fields import classic_words, known_fields, settings_of
from lockstep.cli.workflow_files.learner import differing_defaults, learner_settings
from lockstep.config import settings
from lockstep.errors import ConfigError
from lockstep.run import OfflineRun, from_dict
from lockstep.system.files import read_text

_SUFFIXES = (".json", ".yaml", ".yml")
CACHE_VARIABLE = "LOCKSTEP_CACHE"
_KINDS: Mapping[str, Literal["discrete", "parametric"]] = {"dqn": "discrete", "parametric_dqn": "parametric"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """Logged data of a workflow file."""

    paths: tuple[Path, ...]
    """Files or directories of a log; one directory of prepared data."""
    prepared: bool
    out: Path
    """Directory of the prepared data, the same path on every node."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Normalization:
    """The source of the normalization of one column."""

    column: Literal["state_features", "action"]
    path: Path | None
    """`*_norm_data_path`: a normalization file, written before or to be written; or a log to identify it from."""
    output: Path | None
    """`norm_params.output_dir/COLUMN_norm.json`."""
    identify: bool
    """Whether it may be identified from data: `cols_to_norm` has the column or is not set."""

    def written(self) -> Path | None:
        """The file to write after identification; None: none."""
        return self.output or self.path


@dataclass(frozen=True, slots=True, kw_only=True)
class Workflow:
    """The content of a workflow file."""

    path: Path
    run: OfflineRun
    """Its `data` is the directory of the prepared data."""
    training: Source
    evaluation: Source | None
    normalizations: tuple[Normalization, ...]
    """Of the states, and of the actions for `parametric_dqn`."""
    kind: Literal["discrete", "parametric"]
    actions: tuple[str, ...] | None
    norm_params: Mapping[str, Any]
    """`num_samples`, `quantile_size` and so on."""
    columns: Mapping[str, Any] | None = None
    """Names of the columns in the log, by our names."""
    max_episode_steps: int | None = None
    """Number of decisions after which an episode is truncated."""
    num_nodes: int = 1
    node_index: int | None = None
    init_file: Path | None = None
    """Rendezvous through a shared file."""
    endpoint: str | None = None
    """Rendezvous at HOST:PORT."""
    all_gpus: bool = False
    """One rank per GPU instead of one rank."""
    init_from: Path | None = None
    notes: tuple[str, ...] = ()
    """Messages for the user."""


def is_workflow(path: Path | str) -> bool:
    """Whether this is an existing file with the fields of a classic workflow."""
    path = Path(path)
    if path.suffix not in _SUFFIXES or not path.is_file():
        return False
    data = _parsed(path)
    return isinstance(data, Mapping) and "training_data_path" in data


def read(path: Path | str) -> Workflow:
    """Read a classic workflow file (JSON or YAML), but no data.

    Paths in it are relative to the working directory; `~` is a home directory.

    Raises:
        ConfigError: it cannot be read, or a field is invalid or unsupported; names the file and the field.
    """
    path = Path(path)
    data = _parsed(path)
    if not isinstance(data, Mapping):
        raise ConfigError(f"{path} must be a mapping of fields, such as training_data_path")
    try:
        return _workflow(path, cast(Mapping[str, Any], data))
    except ConfigError as error:
        raise ConfigError(f"{path}: {classic_words(error)}") from None


def _parsed(path: Path) -> Any:
    """The content of a file. Raises `ConfigError` if it cannot be read or a mapping has a duplicate key."""
    text = read_text(path)
    if path.suffix == ".json":
        try:
            return json.loads(text, object_pairs_hook=lambda pairs: _once(path, pairs))
        except json.JSONDecodeError as error:
            raise ConfigError(f"{path}, line {error.lineno} is not JSON: {error.msg}") from None
    return settings.parse(text, str(path))


def _once(path: Path, pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, value in pairs:
        if name in found:
            hint = "; is one of them eval_data_path?" if name == "training_data_path" else ""
            raise ConfigError(f"{path}: {name} is there twice, {found[name]!r} and {value!r}; leave one out{hint}")
        found[name] = value
    return found


def cache_root(environment: Mapping[str, str] = os.environ) -> Path:
    """The directory of prepared data: `LOCKSTEP_CACHE`, else a directory on the local disk."""
    given = environment.get(CACHE_VARIABLE)
    return Path(given).expanduser().absolute() if given else Path("/var/tmp") / f"lockstep-{os.getuid()}"


def _workflow(path: Path, data: Mapping[str, Any]) -> Workflow:
    found = known_fields(data)
    leaves, remarks = settings_of(found)
    top = found[""]
    if "training_data_path" not in top:
        raise ConfigError("training_data_path is missing; name the log to learn from, or prepared data")
    training = _source(top["training_data_path"])
    actions = tuple(str(name) for name in cast(list[str | int], top.get("actions") or []))
    algo, reason = _learner(top, found["norm_params"], actions, training)
    leaves |= learner_settings(found, algo, len(actions))
    normalizations = _normalizations(top, found["norm_params"], algo)
    norm_params = {k: v for k, v in found["norm_params"].items() if k not in ("output_dir", "cols_to_norm")}
    if "feature_overrides" in norm_params:  # classic types are in capitals
        norm_params["feature_overrides"] = {k: v.lower() for k, v in norm_params["feature_overrides"].items()}
    if training.prepared and (names := [name for name in ("state_norm_data_path", "norm_params") if data.get(name)]):
        raise ConfigError(
            f"{names[0]}: {training.out} is prepared, with a normalization of its own; leave {names[0]} out"
        )
    extra = (top.get("columns"), top.get("max_episode_steps"))
    key = _key(training, normalizations, norm_params, actions, algo, *extra)
    training, evaluation = _placed(training, key), _evaluation(top, training, key)
    run = _run(top, leaves, algo, training, evaluation)
    return Workflow(
        path=path,
        run=run,
        training=training,
        evaluation=evaluation,
        normalizations=normalizations,
        kind=_KINDS[algo],
        actions=actions or None,
        norm_params=norm_params,
        columns=top.get("columns"),
        max_episode_steps=top.get("max_episode_steps"),
        init_from=_path(found["training"].get("warm_start_model_path")),
        notes=(f"learner: {algo} ({reason})", *remarks, *differing_defaults(found, run)),
        **_nodes(top),
    )


def _source(given: str | list[str]) -> Source:
    names = [given] if isinstance(given, str) else given
    paths = tuple(Path(name).expanduser() for name in names)
    if not paths or any(not name for name in names):
        raise ConfigError("training_data_path and eval_data_path name a file or a folder; they cannot be empty")
    first, prepared = paths[0], [path for path in paths if (path / "dataset.json").exists()]
    if prepared and len(paths) > 1:
        raise ConfigError(
            f"{prepared[0]} is prepared data, which cannot be combined with others; name it or logs, not both"
        )
    return Source(paths=paths, prepared=bool(prepared), out=first)


def _placed(source: Source, key: str) -> Source:
    name = source.paths[0].absolute().name.partition(".")[0]
    return source if source.prepared else replace(source, out=cache_root() / f"{name}-{key}")


def _key(source: Source, *more: object) -> str:
    """A key of paths and options, not of contents, so that it is equal on all nodes."""
    parts = [*(str(path.absolute()) for path in source.paths), repr(more)]
    return hashlib.blake2b("\n".join(parts).encode(), digest_size=6).hexdigest()


def _learner(
    top: Mapping[str, Any], norm_params: Mapping[str, Any], actions: tuple[str, ...], training: Source
) -> tuple[str, str]:
    parametric = "action_norm_data_path" in top
    if actions and parametric:
        raise ConfigError(
            "actions and action_norm_data_path contradict each other: actions with names are learned by dqn, those "
            "that are features by parametric_dqn; leave one of them out"
        )
    if len(set(actions)) < len(actions):
        raise ConfigError(f"actions={list(actions)} has a name twice")
    if actions:
        return "dqn", f"actions: {', '.join(actions)}"
    if parametric:
        return "parametric_dqn", "action_norm_data_path: actions are features"
    if "action" in norm_params.get("cols_to_norm", ()):
        return "parametric_dqn", "norm_params.cols_to_norm has action: actions are features"
    if training.prepared:
        from lockstep.data.dataset import Dataset

        kind = Dataset.open(training.out).info.kind
        return ("dqn" if kind == "discrete" else "parametric_dqn"), f"{training.out} has {kind} actions"
    raise ConfigError(
        "neither actions nor action_norm_data_path: is it dqn or parametric_dqn? Name the actions, or where the "
        "normalization of the actions' features is (or is to be written)"
    )


def _normalizations(top: Mapping[str, Any], norm_params: Mapping[str, Any], algo: str) -> tuple[Normalization, ...]:
    columns = cast(list[str] | None, norm_params.get("cols_to_norm"))
    known = {"state_features": "state_norm_data_path", "action": "action_norm_data_path"}
    if columns is not None and (strange := [column for column in columns if column not in known]):
        raise ConfigError(f"norm_params.cols_to_norm has {strange[0]}; there are state_features and action")
    if algo == "dqn":
        if columns is not None and "action" in columns:
            raise ConfigError(
                "norm_params.cols_to_norm has action, but actions with names have no features to normalize"
            )
        del known["action"]
    folder = _path(norm_params.get("output_dir"))
    return tuple(
        Normalization(
            column=cast(Any, column),
            path=_path(top.get(name)),
            output=folder / f"{column}_norm.json" if folder else None,
            identify=columns is None or column in columns,
        )
        for column, name in known.items()
    )


def _evaluation(top: Mapping[str, Any], training: Source, key: str) -> Source | None:
    """The evaluation data; None: the training data."""
    if "eval_data_path" not in top:
        return None
    source = _source(top["eval_data_path"])
    if [path.absolute() for path in source.paths] == [path.absolute() for path in training.paths]:
        return None
    return _placed(source, f"eval-{_key(source, key)}")


def _run(
    top: Mapping[str, Any], leaves: Mapping[str, Any], algo: str, training: Source, evaluation: Source | None
) -> OfflineRun:
    run = from_dict({"data": str(training.out), "algo": algo})
    paths = {"eval_data": None if evaluation is None else str(evaluation.out), "model_path": None}
    if (folder := _path(top.get("model_output_path"))) is not None:
        paths["model_path"] = str(folder)
    use_gpu = top.get("use_gpu", top.get("use_all_avail_gpus"))
    device = "cpu" if use_gpu is False else "auto"
    return cast(OfflineRun, settings.updated(run, {**leaves, **paths, "device": device}))


def _nodes(top: Mapping[str, Any]) -> dict[str, Any]:
    """Nodes and GPUs, as fields of `Workflow`."""
    all_gpus = top.get("use_all_avail_gpus", False)
    if all_gpus and top.get("use_gpu") is False:
        raise ConfigError("use_all_avail_gpus=true and use_gpu=false contradict each other; leave one of them out")
    num_nodes, index, method = top.get("num_nodes", 1), top.get("node_index"), top.get("init_method", "")
    if num_nodes < 1:
        raise ConfigError(f"num_nodes={num_nodes} must be at least 1")
    if index is not None and not 0 <= index < num_nodes:
        raise ConfigError(f"node_index={index} must lie from 0 to num_nodes - 1, which is {num_nodes - 1}")
    nodes: dict[str, Any] = {"all_gpus": all_gpus, "num_nodes": num_nodes, "node_index": index}
    scheme, _, where = method.partition("://")
    if method and (scheme not in ("file", "tcp") or not where.strip("/")):
        raise ConfigError(
            f"init_method={method} must be file:///PATH, a file that all nodes see, or tcp://HOST:PORT, a free port of "
            "node 0"
        )
    if num_nodes > 1 and not method:
        raise ConfigError(f"num_nodes={num_nodes}, but nothing says where they meet; add init_method: file:///PATH")
    if num_nodes > 1:
        nodes |= {"init_file": Path(where).absolute()} if scheme == "file" else {"endpoint": where}
    return nodes


def _path(given: str | None) -> Path | None:
    return Path(given).expanduser() if given else None
