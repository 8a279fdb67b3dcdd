"""Start Isaac Lab's simulator in this process and make the environments of one of its tasks.

The part that its adapter and the workflows of other libraries share. `lockstep.envs.isaac` has what needs no simulator:
which ids exist, and what an older id is called now.

Isaac Lab 3 needs no Isaac Sim. Isaac Lab 2 does: its `AppLauncher` must have started it before anything else of Isaac
Lab is imported. Closing that app ends the process with exit code 0, so it is left to the end of the process.

Isaac Lab has one simulator per process, and seeds and draws from torch's global generator. It cannot be seeded by
environment index: ranks differ, and a rerun repeats, by one seed for each rank (`rank_seed`).
"""

import argparse
import contextlib
import hashlib
import importlib
import os
import re
import sys
from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Any, cast

from lockstep.config import settings
from lockstep.envs import isaac
from lockstep.errors import ConfigError

_ENTRY_POINT = "_cfg_entry_point"
_MAX_SEED = 2**31 - 1  # numpy's legacy seeding takes 32 bits; libraries add the rank to a seed
_is_open = False
_app: Any = None
"""Isaac Sim, once Isaac Lab 2 has started it in this process."""


@dataclass(slots=True)
class IsaacTask:
    """A task of Isaac Lab whose simulator runs."""

    task: str
    """Its id in the installed version."""
    env_cfg: Any
    """Isaac Lab's own config of the environments; may be changed until `make`."""
    agent_cfg: Any
    """The config that the task publishes for a trainer: a dict from YAML, or a config object (rsl_rl); or None."""

    def make(self, *, num_envs: int | None, seed: int, final_obs: bool = False) -> Any:
        """The environments, a Gymnasium wrapper around Isaac Lab's.

        Args:
            num_envs: number of environments of this process; None: as the task's config says.
            seed: of this process.
            final_obs: whether `extras["final_obs"]` has the observations before a reset. Isaac Lab sets the key in
                steps with a reset only, and leaves the old one there in later steps.

        Raises:
            ConfigError: the files of a robot are not here, or the task has several agents.
        """
        import gymnasium

        if num_envs is not None:
            self.env_cfg.scene.num_envs = num_envs
        self.env_cfg.seed = seed
        computes_final_obs = hasattr(self.env_cfg, "compute_final_obs")
        if computes_final_obs:
            self.env_cfg.compute_final_obs = final_obs
        try:
            env = gymnasium.make(self.task, cfg=self.env_cfg)
        except (FileNotFoundError, ModuleNotFoundError) as error:
            if isinstance(error, ModuleNotFoundError) and error.name not in ("omni", "omni.client"):
                raise
            raise ConfigError(
                f"task={self.task}: {error}; robots come from NVIDIA's server (pip install omniverseclient), or from a "
                f"folder with copies: ISAACSIM_ASSET_ROOT={os.environ.get('ISAACSIM_ASSET_ROOT', '(not set)')}"
            ) from error
        if hasattr(env.unwrapped, "possible_agents"):
            env.close()
            raise ConfigError(f"task={self.task} has several agents, which are not supported for Isaac Lab's tasks")
        if final_obs:
            _FinalObservations(env.unwrapped, are_computed=computes_final_obs)
        return env


class _FinalObservations:
    """Copies the observations before each reset of a step to `extras["final_obs"]`.

    Isaac Lab 3 sets that key itself. Some of its tasks observe live buffers, which the reset overwrites: they are
    copied first. Version 2 has no such key: they are computed here.

    Attributes of the environment that it replaces keep it alive.

    Args:
        env: the environment.
        are_computed: whether the environment sets the key.
    """

    def __init__(self, env: Any, *, are_computed: bool) -> None:
        self._env = env
        self._are_computed = are_computed
        self._step, self._reset_idx = env.step, env._reset_idx
        self._stepping = False
        env.step, env._reset_idx = self._record_step, self._record_reset

    def _record_step(self, action: Any) -> Any:
        self._stepping = True
        try:
            return self._step(action)
        finally:
            self._stepping = False

    def _record_reset(self, env_ids: Any) -> Any:
        if self._stepping:
            self._env.extras["final_obs"] = _copied(self._final())
        return self._reset_idx(env_ids)

    def _final(self) -> Any:
        if self._are_computed:
            return self._env.extras["final_obs"]
        manager = getattr(self._env, "observation_manager", None)
        return self._env._get_observations() if manager is None else manager.compute()


def _copied(observations: Any) -> Any:
    """A copy of groups of tensors, which may contain dictionaries and tuples."""
    if isinstance(observations, Mapping):
        return {name: _copied(part) for name, part in cast("Mapping[str, Any]", observations).items()}
    if isinstance(observations, tuple):
        return tuple(map(_copied, cast("tuple[Any, ...]", observations)))
    return observations.clone()


@contextlib.contextmanager
def open_task(
    task: str, device: str, agent_entry_point: str | None = None, overrides: Sequence[str] = ()
) -> Generator[IsaacTask]:
    """Start the simulator for `task` in this process; it runs inside the context. Environments are closed before.

    Args:
        task: an id of the installed version, see `isaac.current_id`.
        device: `cpu` or `cuda:N`, of simulation and tensors.
        agent_entry_point: which of the configs that the task publishes for trainers to read, for example
            `rl_games_cfg_entry_point`; None: none.
        overrides: settings and presets as Isaac Lab's own command line takes them (`env.decimation=4`,
            `physics=newton_mjwarp`).
    """
    global _is_open
    if _is_open:
        raise ConfigError(f"task={task}: a process has one simulator of Isaac Lab, and it is open already")
    _is_open = True
    try:
        if isaac.major_version() == 2:
            yield _open_task_with_app(task, device, agent_entry_point, overrides)
        else:
            with _open_task(task, device, agent_entry_point, overrides) as opened:
                yield opened
    finally:
        _is_open = False


@contextlib.contextmanager
def _open_task(task: str, device: str, agent_entry_point: str | None, overrides: Sequence[str]) -> Generator[IsaacTask]:
    # The order matters: the launcher is imported before the tasks, and the config is complete before the launch.
    app: Any = importlib.import_module("isaaclab.app")
    importlib.import_module("isaaclab_tasks")  # registers the tasks
    tasks: Any = importlib.import_module("isaaclab_tasks.utils")
    _check_entry_point(task, agent_entry_point)
    parser = argparse.ArgumentParser()
    app.add_launcher_args(parser)
    launcher_args = parser.parse_args(["--device", device])
    env_cfg, agent_cfg = tasks.resolve_task_config(task, agent_entry_point, overrides=list(overrides))
    env_cfg.sim.device = device
    with contextlib.ExitStack() as stack:
        try:
            stack.enter_context(app.launch_simulation(env_cfg, launcher_args))
        except SystemExit as ended:
            raise ConfigError(
                f"task={task}: Isaac Lab ended the start of its simulator with code {ended.code}; its message is "
                "above. A task that needs Isaac Sim runs without it only if it has a preset for that, such as "
                "env.kwargs.physics=newton_mjwarp (with lockstep.workflows: physics=newton_mjwarp)"
            ) from None
        yield IsaacTask(task, env_cfg, agent_cfg)


def _open_task_with_app(task: str, device: str, agent_entry_point: str | None, overrides: Sequence[str]) -> IsaacTask:
    """The task in Isaac Lab 2."""
    start_app(task, device)
    importlib.import_module("isaaclab_tasks")  # registers the tasks; fails before the app has started
    tasks: Any = importlib.import_module("isaaclab_tasks.utils")
    _check_entry_point(task, agent_entry_point)
    env_cfg = tasks.load_cfg_from_registry(task, "env_cfg_entry_point")
    agent_cfg = None if agent_entry_point is None else tasks.load_cfg_from_registry(task, agent_entry_point)
    for override in overrides:
        _override(task, env_cfg, override)
    env_cfg.sim.device = device
    return IsaacTask(task, env_cfg, agent_cfg)


def _check_entry_point(task: str, agent_entry_point: str | None) -> None:
    """Raise `ConfigError` if the task, which is registered, does not publish that config for a trainer."""
    import gymnasium

    published = [
        key for key in gymnasium.spec(task).kwargs if key.endswith(_ENTRY_POINT) and key != f"env{_ENTRY_POINT}"
    ]
    if agent_entry_point is not None and agent_entry_point not in published:
        raise ConfigError(
            f"task={task} publishes no {agent_entry_point}, but {', '.join(published) or 'no settings at all'}; choose "
            "one with --agent NAME, or give the library's own config file: --agent FILE.yaml"
        )


def start_app(task: str, device: str) -> None:
    """Start Isaac Sim for Isaac Lab 2, once per process."""
    global _app
    if _app is not None:
        return
    if find_spec("isaacsim") is None:
        raise ConfigError(
            f"task={task}: Isaac Lab 2 is installed, and it needs Isaac Sim: pip install 'isaaclab[isaacsim]'; or use "
            "version 3, which runs without it: pip install isaaclab==3.0.0"
        )
    launcher: Any = importlib.import_module("isaaclab.app").AppLauncher
    parser = argparse.ArgumentParser()
    launcher.add_app_launcher_args(parser)
    cameras = ["--enable_cameras"] if re.search("Camera|RGB|Depth|Vision", task) else []
    with _bare_command_line():
        _app = launcher(parser.parse_args(["--headless", "--device", device, *cameras])).app


@contextlib.contextmanager
def _bare_command_line() -> Generator[None]:
    """Hide the arguments of this process from Isaac Sim, which reads them too."""
    arguments = sys.argv
    sys.argv = arguments[:1]
    try:
        yield
    finally:
        sys.argv = arguments


def _override(task: str, env_cfg: Any, override: str) -> None:
    """Set one `env.NAME=VALUE`; Isaac Lab 2 has no presets."""
    name, _, value = override.partition("=")
    prefix, *path = name.split(".")
    if prefix != "env" or not path:
        raise ConfigError(f"task={task}: {override} needs Isaac Lab 3; version 2 takes env.NAME=VALUE only")
    target = env_cfg
    for attribute in path[:-1]:
        target = getattr(target, attribute, None)
    if not hasattr(target, path[-1]):
        raise ConfigError(f"task={task}: its configuration has no {'.'.join(path)}")
    setattr(target, path[-1], settings.parse(value, override))


def rank_seed(seed: int, rank: int) -> int:
    """The seed of a rank: `seed` itself on rank 0, so that one rank repeats the library's own run.

    Other ranks get a hash. `seed + rank` would repeat streams wherever environment i of a rank is seeded `seed + i`.
    """
    if rank == 0:
        return seed
    digest = hashlib.blake2b(f"{seed}/{rank}".encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little") % _MAX_SEED
