"""Checks of a run's task, data and host, before a process starts and before memory is allocated."""

import os
import shlex
import shutil
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from lockstep.algorithms.dqn import DQNConfig
from lockstep.algorithms.offline import LoggedConfig, OfflineDQNConfig
from lockstep.algorithms.ppo import PPOConfig
from lockstep.algorithms.replay import ReplayConfig
from lockstep.algorithms.sac import SACConfig
from lockstep.algorithms.td3 import TD3Config
from lockstep.envs.make import make_vector_env, stays_on_device
from lockstep.envs.spec import EnvSpec
from lockstep.errors import ConfigError
from lockstep.experience.exploration import EpsilonGreedy
from lockstep.experience.memory import check_memory, in_words, replay_bytes
from lockstep.record.trackers.open import check_trackers
from lockstep.run import AnyRun, NetworkConfig, OfflineRun, Run
from lockstep.world import World

if TYPE_CHECKING:
    from lockstep.data.dataset import Dataset

_VERIFIED = 1 << 30
"""Largest prepared data, in bytes, whose checksums are verified when a run starts: a second or two."""


_ALGORITHMS_OF = {
    "discrete": ("dqn", "bc"),
    "parametric": ("parametric_dqn", "bc"),
    "continuous": ("iql", "td3_bc", "cql"),
}
"""The algorithms that can learn from each kind of actions."""


def check_packages(run: AnyRun) -> None:
    """Raise `ConfigError` if the run's framework or a tracker is not installed."""
    check_trackers(run.trackers)
    check_package(run.ml_framework)


def check_package(name: Literal["torch", "jax"]) -> None:
    """Raise `ConfigError` if this framework is not installed."""
    other = "torch" if name == "jax" else "jax"
    if not _installed(name):
        instead = f", or use --ml-framework {other}" if _installed(other) else ""
        raise ConfigError(f"ml_framework={name} needs the package {name}: pip install 'lockstep-rl[{name}]'{instead}")


def _installed(name: str) -> bool:
    """Whether the package is installed; a folder of that name in the working directory does not count."""
    found = find_spec(name)
    return found is not None and found.origin is not None


def check_task(run: Run, spec: EnvSpec) -> None:
    """Raise `ConfigError` for a task that does not fit the algorithm or the network."""
    config = run.algorithm
    if spec.num_agents > 1 and not isinstance(config, PPOConfig):
        raise ConfigError(
            f"task={run.task} has {spec.num_agents} agents, which algo={run.algo} does not support; use ppo"
        )
    check_agents(run.num_envs, run.num_shards or 1, spec)
    if isinstance(config, DQNConfig):
        if run.env.critic_keys:
            raise ConfigError(f"env.critic_keys={list(run.env.critic_keys)}: algo=dqn has no critic; leave it out")
        try:
            EpsilonGreedy(spec.action)
        except ConfigError as error:
            raise ConfigError(f"task={run.task}: {error}") from None
    elif isinstance(config, SACConfig | TD3Config):
        _check_actor_critic(run, spec)
    elif config.bounds_loss_coef > 0 and spec.action.kind != "continuous":
        raise ConfigError(
            f"bounds_loss_coef={config.bounds_loss_coef} is for continuous actions; those of task={run.task} are "
            f"{spec.action.kind}: use 0"
        )
    elif spec.image is not None and spec.critic_size is not None and _joins_groups(run):
        raise ConfigError(
            f"task={run.task}: environments on the host, and torch tensors read in JAX, do not give the critic an "
            "observation of its own beside images; use ml_framework=torch with env.placement=auto, or name one group "
            "for both, such as --set env.policy_keys=[policy] --set env.critic_keys=[policy]"
        )
    elif config.normalize_observation and spec.image is not None:
        raise ConfigError("normalize_observation=true is for vectors; the network scales images: set it false")
    _check_kl_reference(run, spec)
    check_encoder(run.network, spec)
    _check_heads(run, spec)
    _check_recurrent(run)
    if run.evaluate_video:
        check_drawing(run)


def _joins_groups(run: Run) -> bool:
    """Whether PPO collects observations of policy and critic as rows of one array: through numpy, or through DLPack."""
    if run.ml_framework == "jax":
        return not stays_on_device(run.task, run.env, "jax", preferred=True)
    return run.env.placement == "host"


def check_agents(num_envs: int, num_shards: int, spec: EnvSpec) -> None:
    """Raise `ConfigError` if the agents of an environment would be divided between shards."""
    whole = spec.num_agents * num_shards
    if num_envs % whole:
        below, above = num_envs // whole * whole, -(-num_envs // whole) * whole
        raise ConfigError(
            f"num_envs={num_envs} counts agents, and each of {num_shards} shards needs whole environments of "
            f"{spec.num_agents} agents; use {f'{below} or ' if below else ''}{above}"
        )


def _check_actor_critic(run: Run, spec: EnvSpec) -> None:
    """Raise `ConfigError` for a task or a network that SAC and TD3 do not support."""
    action = spec.action
    if action.kind != "continuous":
        kind = "one of several choices" if action.kind == "discrete" else "several choices at once"
        other = "--algo dqn or --algo ppo" if action.kind == "discrete" else "--algo ppo"
        raise ConfigError(f"algo={run.algo} needs continuous actions, and task={run.task} takes {kind}; use {other}")
    for d, (low, high) in enumerate(zip(action.low, action.high, strict=True)):
        if not np.isfinite([low, high]).all() or not low < high:
            raise ConfigError(
                f"algo={run.algo} needs finite bounds of actions, and dimension {d} of task={run.task} has "
                f"[{low}, {high}]; set bounds with env.clip_action=1.0, say, or use --algo ppo"
            )
    if spec.image is not None:
        raise ConfigError(f"algo={run.algo} learns from vectors, and task={run.task} observes images; use --algo ppo")
    if spec.critic_size is not None:
        raise ConfigError(
            f"algo={run.algo} has no observation for the critics alone, and task={run.task} has one; use --algo ppo"
        )
    network = run.network
    for name, default in (("module", None), ("shared", None), ("initial_log_std", 0.0)):
        if getattr(network, name) not in (default, False):
            raise ConfigError(
                f"network.{name}={getattr(network, name)} is not a setting of algo={run.algo}; leave it out"
            )


def check_data(run: OfflineRun, *, verify: bool = False) -> "tuple[Dataset, Dataset]":
    """Open the prepared data for training and for evaluation.

    Args:
        run: the config.
        verify: also verify checksums, if that takes only seconds.

    Raises:
        ConfigError: data are missing or damaged, or do not fit each other or the algorithm.
    """
    dataset = _opened("data", run.data, verify)
    judged_on = dataset if run.eval_data is None else _opened("eval_data", run.eval_data, verify)
    info = dataset.info
    if run.algo not in _ALGORITHMS_OF[info.kind]:
        raise ConfigError(
            f"algo={run.algo} cannot learn from {run.data}: its actions are {info.kind}; use "
            f"{' or '.join(_ALGORITHMS_OF[info.kind])}"
        )
    for name in ("kind", "state_features", "actions", "action_features", "metrics"):
        if getattr(info, name) != getattr(judged_on.info, name):
            raise ConfigError(
                f"eval_data={run.eval_data} differs from data={run.data} in {name}; prepare it with "
                f"--like {shlex.quote(run.data)}"
            )
    if (judged_on.state_features, judged_on.action_features) != (dataset.state_features, dataset.action_features):
        raise ConfigError(
            f"eval_data={run.eval_data} is normalized differently from data={run.data}; prepare it with "
            f"--like {shlex.quote(run.data)}"
        )
    if isinstance(run.algorithm, OfflineDQNConfig):
        check_boost(run.algorithm, dataset)
    if run.algorithm.estimate:
        from lockstep.data.packages import import_optional

        import_optional("scipy", "offline")  # now rather than at the estimates, hours later
    way_out = without_candidates(run.algorithm)
    if info.kind == "parametric" and not info.has_possible_actions and way_out is not None:
        raise ConfigError(
            f"{run.data} does not say which actions are possible next (possible_actions), and learning needs it; "
            f"{way_out}"
        )
    return dataset, judged_on


def check_boost(config: OfflineDQNConfig, dataset: "Dataset") -> None:
    """Raise `ConfigError` for a boosted action that the data do not have."""
    for name in config.reward_boost:
        if name not in dataset.info.actions:
            raise ConfigError(
                f"reward_boost names the action {name}, which {dataset.path} does not have; its actions are "
                f"{', '.join(dataset.info.actions)}"
            )


def _opened(setting: str, name: str, verify: bool) -> "Dataset":
    from lockstep.data.dataset import Dataset  # not needed by runs in environments

    path = Path(name)
    if not path.exists():
        seen = "" if path.is_absolute() else f" below {Path.cwd()}, where this was started"
        raise ConfigError(
            f"{setting}={name} does not exist{seen}; say where it is now (--set {setting}=DIR), or prepare a log: "
            f"lockstep offline prepare LOG --out {shlex.quote(name)}"
        )
    verify = verify and sum(file.stat().st_size for file in path.rglob("*.npy")) <= _VERIFIED
    return Dataset.open(path, verify=verify)


def without_candidates(config: LoggedConfig) -> str | None:
    """The flags to learn from data without possible next actions; `None` if no change is needed."""
    maxq = isinstance(config, OfflineDQNConfig) and config.maxq
    if not (config.estimate or maxq):
        return None
    flags = "--set maxq=false --set estimate=false" if maxq else "--set estimate=false"
    return f"learn from the actions that were taken alone: {flags}"


def check_model_path(run: OfflineRun) -> None:
    """Raise `ConfigError` if the finished policy could not be written."""
    if run.model_path is not None and (why := _closed(Path(run.model_path))):
        raise ConfigError(f"model_path={run.model_path} cannot be written ({why}); use another directory")


def check_rows(run: OfflineRun, world: World) -> None:
    """Raise `ConfigError` for more shards than there are rows."""
    rows = _opened("data", run.data, verify=False).info.num_rows
    if rows < world.num_shards:
        raise ConfigError(
            f"{run.data} has {rows} rows for {world.num_shards} shards: a shard would have nothing to learn from; use "
            f"at most --ranks {rows}"
        )


def check_drawing(run: AnyRun) -> None:
    """Raise `ConfigError` for a task that cannot be rendered; renders one picture."""
    assert run.task is not None
    try:
        env: Any = make_vector_env(run.task, run.env, 1, render=True, training=False)
    except ConfigError as error:
        raise ConfigError(f"a video was asked for: {error}") from error
    try:
        env.reset([0])
        picture = env.render()
    except Exception as error:
        why = " ".join(str(error).split())
        raise ConfigError(f"a video was asked for, and task={run.task} cannot be drawn here: {why}") from error
    finally:
        env.close()
    if not picture or np.shape(picture[0])[2:] != (3,):
        raise ConfigError(f"a video was asked for, and task={run.task} draws no pictures (render_mode=rgb_array)")


def check_encoder(config: NetworkConfig, spec: EnvSpec) -> None:
    """Raise `ConfigError` for convolutions on observations that are no images."""
    if spec.image is None and config.encoder not in ("auto", "mlp"):
        raise ConfigError(
            f"network.encoder={config.encoder} needs images, and this task observes vectors; use mlp, or auto"
        )


def _check_kl_reference(run: Run, spec: EnvSpec) -> None:
    if not isinstance(run.algorithm, PPOConfig) or run.algorithm.kl_reference == "rollout":
        return
    reference = run.algorithm.kl_reference
    if run.ml_framework == "jax":
        raise ConfigError(f"kl_reference={reference} is not available in JAX; use rollout")
    if spec.action.kind != "continuous":
        raise ConfigError(
            f"kl_reference={reference} is for continuous actions; those of task={run.task} are {spec.action.kind}: "
            "use rollout"
        )


def _check_heads(run: Run, spec: EnvSpec) -> None:
    """Raise `ConfigError` for outputs that no action has, or layers of a value network that does not exist."""
    network = run.network
    if network.state_dependent_std and (run.algo != "ppo" or spec.action.kind != "continuous"):
        reason = f"algo={run.algo} has no deviations" if run.algo != "ppo" else f"those of task={run.task} are not"
        raise ConfigError(f"network.state_dependent_std=true is for continuous actions; {reason}: leave it out")
    if network.critic_hidden is None:
        return
    images = spec.image is not None and network.encoder != "mlp"
    reason = None
    if run.algo == "dqn":
        reason = f"algo={run.algo} has no value network"
    elif network.module is not None:
        reason = f"network.module={network.module} has layers of its own"
    elif network.shared:
        reason = "network.shared=true has one body for policy and value; use --set network.shared=false"
    elif images and spec.critic_size is None:
        reason = "the value network of a task with images has convolutions"
    if reason is not None:
        raise ConfigError(f"network.critic_hidden={list(network.critic_hidden)}: {reason}, or leave it out")


def _check_recurrent(run: Run) -> None:
    """Raise `ConfigError` for recurrent layers where they are not supported, or settings of those that do not exist."""
    network, config = run.network, run.algorithm
    setting = f"network.recurrent={network.recurrent}"
    if network.recurrent == "none":
        if isinstance(config, PPOConfig) and config.sequence_length is not None:
            raise ConfigError(
                f"sequence_length={config.sequence_length} is for recurrent policies; set network.recurrent to gru or "
                "lstm, or leave it out"
            )
        return
    reason = None
    if not isinstance(config, PPOConfig):
        reason = f"algo={run.algo} has no recurrent policies; use algo=ppo"
    elif network.module is not None:
        reason = f"network.module={network.module} is called with observations alone"
    elif config.symmetry is not None:
        reason = f"symmetry={config.symmetry} does not say what the mirror image of a state of recurrent layers is"
    elif run.precision != "float32":
        reason = f"recurrent layers do not support precision={run.precision}; use float32"
    if reason is not None:
        raise ConfigError(f"{setting}: {reason}, or leave it out")


def check_custom_heads(path: str, algorithm: DQNConfig) -> None:
    """Raise `ConfigError` for settings of Lockstep's heads with a user's `network.module`."""
    for name in ("dueling", "noisy"):
        if getattr(algorithm, name):
            raise ConfigError(
                f"algorithm.{name}=true shapes Lockstep's own heads, but network.module={path} has its own; "
                f"use --set {name}=false"
            )


def check_replay_device(run: Run, num_gpus: int) -> None:
    """Raise `ConfigError` for `replay_device=cuda` where no rank has a GPU for its replay buffers.

    Args:
        run: the config.
        num_gpus: GPUs that the ranks of this host can use.
    """
    config = run.algorithm
    if not isinstance(config, ReplayConfig) or config.replay_device != "cuda":
        return
    reason = None
    if run.device == "cpu":
        reason = "device=cpu computes on CPUs"
    elif num_gpus == 0:
        reason = f"there is no GPU that {run.ml_framework} can use (`lockstep doctor` says why)"
    if reason is not None:
        raise ConfigError(f"replay_device=cuda, but {reason}; use --set replay_device=auto")


def check_host(run: Run, spec: EnvSpec, world: World, *, on_device: bool = False) -> None:
    """Raise `ConfigError` if this host lacks the memory or the disk space for the replay buffers of its ranks.

    Args:
        run: the config.
        spec: of its environments.
        world: the ranks.
        on_device: whether observations are in the memory of devices.
    """
    config = run.algorithm
    if not isinstance(config, ReplayConfig):
        return
    memory = bytes_of_host(run, spec, world, mapped=on_device or None)
    whole = bytes_of_host(run, spec, world, mapped=False)
    from_device = whole - memory if on_device else 0  # copied to the host before they are copied for the checkpoint
    check_memory(config.capacity, memory, copy=whole + from_device if config.checkpoint_replay else 0)
    if config.replay_path is not None:
        _check_disk(Path(config.replay_path), whole - memory)


def bytes_of_host(run: Run, spec: EnvSpec, world: World, *, mapped: bool | None = None) -> int:
    """Memory of all replay buffers on this rank's host.

    Args:
        run: the config, of an algorithm with a replay buffer.
        spec: of its environments.
        world: the ranks.
        mapped: exclude observations, which are in mapped files or on devices; default: those in files of the config.
    """
    config = run.algorithm
    assert isinstance(config, ReplayConfig)
    first = world.rank - world.local_rank
    shards = sum(len(world.shards_of(rank)) for rank in range(first, first + world.local_size))
    return shards * replay_bytes(
        spec,
        world.shard_size(run.num_envs, "num_envs"),
        world.shard_size(config.capacity, "capacity"),
        n_step=config.n_step,
        prioritized=config.prioritized,
        mapped=config.replay_path is not None if mapped is None else mapped,
    )


def _check_disk(path: Path, wanted: int) -> None:
    """Raise `ConfigError` for a directory that is not writable or has too little space."""
    free = shutil.disk_usage(_existing(path)).free
    why = _closed(path) or (f"{in_words(free)} are free there" if wanted > free else None)
    if why is None:
        return
    raise ConfigError(
        f"algorithm.replay_path={path} cannot take {in_words(wanted)} ({why}); "
        "use another directory or a smaller algorithm.capacity"
    )


def _existing(path: Path) -> Path:
    """The path if it exists, else its nearest existing parent."""
    return next(folder for folder in (path, *path.absolute().parents) if folder.exists())


def _closed(path: Path) -> str | None:
    """Why a directory, existing or not, is not writable; `None` if it is."""
    there = _existing(path)
    if not there.is_dir():
        return f"{there} is a file"
    return None if os.access(there, os.W_OK | os.X_OK) else f"{there} cannot be written to"
