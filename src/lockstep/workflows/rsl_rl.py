"""`python -m lockstep.workflows.rsl_rl --task=Isaac-Ant --ranks 2`: train with rsl_rl itself."""

import importlib
import inspect
from importlib.metadata import version
from typing import Any

from lockstep.errors import ConfigError
from lockstep.workflows.library_command import main
from lockstep.workflows.library_run import LibraryRun, tensors_of


def train(run: LibraryRun) -> None:
    """Train with rsl_rl on this rank."""
    with run.open_env() as (env, agent):
        runners: Any = importlib.import_module("rsl_rl.runners")
        settings = _settings(agent)
        _check_form(settings)
        settings |= {"seed": run.seed, "device": str(run.device)}
        if settings.get("resume"):
            raise ConfigError("agent resume=true: this workflow begins with new parameters; set it false")
        if run.request.max_iterations is not None:
            settings["max_iterations"] = run.request.max_iterations
        for name in ("num_steps_per_env", "max_iterations"):
            if name not in settings:
                raise ConfigError(f"--agent: the settings of rsl_rl have no {name}; add it")
        run.begin(settings, int(settings["num_steps_per_env"]), int(settings["max_iterations"]))
        name = settings.get("class_name", "OnPolicyRunner")
        if not hasattr(runners, name):
            raise ConfigError(f"agent class_name={name} is no runner of rsl_rl")
        runner = _runner_class(getattr(runners, name), run)(
            _vector_env(env, settings.get("clip_actions")),
            settings,
            log_dir=str(run.path / "rsl_rl") if run.world.rank == 0 else None,
            device=str(run.device),
        )
        runner.learn(
            settings["max_iterations"], init_at_random_ep_len=bool(settings.get("init_at_random_ep_len", True))
        )
        networks = dict(inspect.getmembers(runner.alg, lambda value: hasattr(value, "named_parameters")))
        run.finish(tensors_of(networks, "named_parameters"), tensors_of(networks, "named_buffers"))


def _settings(agent: Any) -> dict[str, Any]:
    """The settings of the runner, as a dict."""
    if isinstance(agent, dict):
        return dict(agent)  # pyright: ignore[reportUnknownArgumentType, reportUnknownVariableType]
    utils: Any = importlib.import_module("isaaclab_rl.rsl_rl")
    configs: Any = importlib.import_module("isaaclab.utils")
    return configs.to_dict(utils.handle_deprecated_rsl_rl_cfg(agent, version("rsl-rl-lib")))


def _check_form(settings: dict[str, Any]) -> None:
    """Refuse a file for rsl_rl before version 5, if the installed one is newer: it says `KeyError: 'actor'`."""
    if "policy" not in settings or {"actor", "critic"} & settings.keys():
        return
    found = version("rsl-rl-lib")
    if int(found.partition(".")[0]) >= 5:
        raise ConfigError(
            f"--agent: policy is a key of rsl_rl before version 5, and {found} is installed; write actor and critic "
            "instead (docs/guides/coming-from-rsl-rl.md has a file)"
        )


def _runner_class(base: Any, run: LibraryRun) -> Any:
    """The runner, with the process group that is open: its own needs a GPU and opens nccl."""
    world = run.world

    def configure(self: Any) -> None:
        self.gpu_world_size = world.size
        self.gpu_local_rank = world.local_rank
        self.gpu_global_rank = world.rank
        self.is_distributed = world.size > 1
        multi_gpu = {"global_rank": world.rank, "local_rank": world.local_rank, "world_size": world.size}
        self.cfg["multi_gpu"] = multi_gpu if world.size > 1 else None

    return type(base.__name__, (base,), {"_configure_multi_gpu": configure})


def _vector_env(env: Any, clip_actions: float | None) -> Any:
    if hasattr(env.unwrapped, "sim"):
        wrappers: Any = importlib.import_module("isaaclab_rl.rsl_rl")
        return wrappers.RslRlVecEnvWrapper(env, clip_actions=clip_actions)
    from lockstep.torch.envs.library_wrappers import rsl_rl_env

    return rsl_rl_env(env, clip_actions)


if __name__ == "__main__":
    from lockstep.launch.child import die_with_launcher, exit_process

    die_with_launcher()
    exit_process(main("rsl_rl", train))
