"""`python -m lockstep.workflows.rl_games --task=Isaac-Cartpole-v0 --distributed`: train with rl_games itself."""

import copy
import importlib
import math
from typing import Any, cast

from lockstep.errors import ConfigError
from lockstep.workflows.library_command import main
from lockstep.workflows.library_run import LibraryRun, tensors_of

_ENV_TYPE = "LockstepEnv"


def train(run: LibraryRun) -> None:
    """Train with rl_games on this rank."""
    with run.open_env() as (env, agent):
        settings = _settings(run, agent)
        config = settings["params"]["config"]
        if "horizon_length" not in config:
            raise ConfigError("--agent: params.config has no horizon_length; add it")
        run.begin(settings, int(config["horizon_length"]), int(config.get("max_epochs", 1)))
        _check_minibatch(config, run.num_envs)
        wrapped = _vector_env(env, settings)
        vecenv: Any = importlib.import_module("rl_games.common.vecenv")
        configurations: Any = importlib.import_module("rl_games.common.env_configurations")
        vecenv.register(_ENV_TYPE, lambda *_, **__: wrapped)  # pyright: ignore[reportUnknownLambdaType]
        configurations.register(config["env_name"], {"vecenv_type": _ENV_TYPE, "env_creator": lambda **_: wrapped})  # pyright: ignore[reportUnknownLambdaType]
        runner, observer = _runner()
        runner.load(settings)
        runner.params["config"] = _PinnedDevice(runner.params["config"], str(run.device))
        runner.run({"train": True, "play": False})
        algorithm = observer.algo
        networks = {"model": algorithm.model}
        if getattr(algorithm, "has_central_value", False):
            networks["central_value"] = algorithm.central_value_net
        run.finish(tensors_of(networks, "named_parameters"), tensors_of(networks, "named_buffers"))


class _PinnedDevice(dict[str, Any]):
    """Settings whose device stays: with `multi_gpu` rl_games sets a GPU, also where there is none."""

    def __init__(self, settings: dict[str, Any], device: str) -> None:
        super().__init__(settings)
        super().__setitem__("device", device)
        super().__setitem__("device_name", device)

    def __setitem__(self, key: str, value: Any) -> None:
        if key not in ("device", "device_name"):
            super().__setitem__(key, value)


def _settings(run: LibraryRun, agent: Any) -> dict[str, Any]:
    """The library's settings, with those that are fixed for ranks."""
    given = cast("dict[str, Any]", agent) if isinstance(agent, dict) else {}
    if "config" not in (given.get("params") or {}):
        raise ConfigError("--agent: an rl_games config has its settings under `params`, with a `config` among them")
    settings = copy.deepcopy(given)
    world, config = run.world, settings["params"]["config"]
    settings["params"]["seed"] = run.seed - world.rank  # rl_games adds the rank
    settings["params"].setdefault("torch_threads", 0)  # those of OMP_NUM_THREADS; else rl_games takes up to 4
    config["multi_gpu"] = world.size > 1
    config["device"] = config["device_name"] = str(run.device)
    config["num_actors"] = run.num_envs
    config["train_dir"] = str(run.path)
    config["full_experiment_name"] = "rl_games"
    config.setdefault("env_name", "rlgpu")
    if run.device.type == "cpu":
        config.setdefault("torch_compile", False)  # a compilation takes longer than it saves there
    if run.request.max_iterations is not None:
        config["max_epochs"] = run.request.max_iterations
    return settings


def _check_minibatch(config: dict[str, Any], num_envs: int) -> None:
    """rl_games requires minibatches that divide the rollout of each rank."""
    horizon, size = int(config["horizon_length"]), config.get("minibatch_size")
    if size is not None and horizon * num_envs % int(size):
        step = int(size) // math.gcd(horizon, int(size))
        below, above = num_envs // step * step, -(-num_envs // step) * step
        raise ConfigError(
            f"num_envs={num_envs}: rl_games cuts the horizon_length={horizon} x num_envs steps of each rank into "
            f"minibatches of minibatch_size={size}; use --num_envs {f'{below} or {above}' if below else above}"
        )


def _runner() -> tuple[Any, Any]:
    """The runner, and an observer that keeps the algorithm: the runner drops it."""
    observers: Any = importlib.import_module("rl_games.common.algo_observer")
    torch_runner: Any = importlib.import_module("rl_games.torch_runner")

    class Observer(observers.IsaacAlgoObserver):
        algo: Any = None

        def after_init(self, algo: Any) -> None:
            super().after_init(algo)
            self.algo = algo

    observer = Observer()
    return torch_runner.Runner(observer), observer


def _vector_env(env: Any, settings: dict[str, Any]) -> Any:
    if hasattr(env.unwrapped, "sim"):
        wrappers: Any = importlib.import_module("isaaclab_rl.rl_games")
        return wrappers.RlGamesVecEnvWrapper.from_agent_cfg(env, settings)
    from lockstep.torch.envs.library_wrappers import rl_games_env

    return rl_games_env(env)


if __name__ == "__main__":
    from lockstep.launch.child import die_with_launcher, exit_process

    die_with_launcher()
    exit_process(main("rl_games", train))
