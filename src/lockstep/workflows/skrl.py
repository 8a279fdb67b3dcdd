"""`python -m lockstep.workflows.skrl --task=Isaac-Cartpole-v0 --distributed [--ml_framework jax]`: train with skrl."""

import copy
import importlib
from typing import Any, cast

import numpy as np

from lockstep.errors import ConfigError
from lockstep.workflows.library_command import main
from lockstep.workflows.library_run import LibraryRun, tensors_of


def train(run: LibraryRun) -> None:
    """Train with skrl on this rank."""
    skrl: Any = importlib.import_module("skrl")
    framework = run.request.ml_framework
    config = getattr(skrl.config, framework)
    config.device = str(run.device) if framework == "torch" or run.world.size == 1 else None
    with run.open_env() as (env, agent):
        settings = _settings(run, agent)
        rollout = int(settings["agent"]["rollouts"])
        run.begin(settings, rollout, int(settings["trainer"]["timesteps"]) // rollout)
        # The wrapper seeds the environments with this key when it resets them. It reads the key before the runner sets
        # the seed, so that by default all ranks reset with 0 and collect the same data.
        config.key = run.seed
        if run.world.size > 1:
            run.note("each rank resets its environments with its own seed; skrl alone uses 0 on all of them")
        wrappers: Any = importlib.import_module(f"skrl.envs.wrappers.{framework}")
        runners: Any = importlib.import_module(f"skrl.utils.runner.{framework}")
        runner = runners.Runner(wrappers.wrap_env(env, "isaaclab"), settings)
        runner.run()
        if run.world.rank == 0:
            steps = int(settings["trainer"]["timesteps"])
            (run.path / "skrl" / "checkpoints").mkdir(
                parents=True, exist_ok=True
            )  # skrl makes it for its intervals only
            runner.agent.write_checkpoint(timestep=steps, timesteps=steps)
        parameters, state = _torch_arrays(runner.agent) if framework == "torch" else _jax_arrays(runner.agent)
        run.finish(parameters, state)


def _settings(run: LibraryRun, agent: Any) -> dict[str, Any]:
    """The library's settings, with those that are fixed for ranks."""
    if not isinstance(agent, dict) or not {"agent", "trainer", "models"} <= set(agent):  # pyright: ignore[reportUnknownArgumentType]
        raise ConfigError("--agent: a config of skrl's runner has models, agent and trainer")
    settings = cast("dict[str, Any]", copy.deepcopy(agent))  # pyright: ignore[reportUnknownArgumentType]
    settings["seed"] = run.seed - run.world.rank  # skrl adds the rank
    settings["trainer"]["close_environment_at_exit"] = False
    experiment = settings["agent"].setdefault("experiment", {})
    experiment["directory"] = str(run.path)
    experiment["experiment_name"] = "skrl"
    if "rollouts" not in settings["agent"]:
        raise ConfigError(
            f"agent class={settings['agent'].get('class')} has no rollouts; this workflow trains on-policy agents"
        )
    if run.request.max_iterations is not None:
        settings["trainer"]["timesteps"] = run.request.max_iterations * settings["agent"]["rollouts"]
    if "timesteps" not in settings["trainer"]:
        raise ConfigError("--agent: trainer has no timesteps; add it, or give --max_iterations N")
    return settings


def _torch_arrays(agent: Any) -> tuple[dict[str, Any], dict[str, Any]]:
    """Parameters of the models, and state of the preprocessors."""
    models = {name: model for name, model in agent.models.items() if model is not None}
    stateful = {name: one for name, one in agent.checkpoint_modules.items() if hasattr(one, "named_buffers")}
    return tensors_of(models, "named_parameters"), tensors_of(stateful, "named_buffers")


def _jax_arrays(agent: Any) -> tuple[dict[str, Any], dict[str, Any]]:
    """Parameters of the models, and state of the preprocessors."""
    jax: Any = importlib.import_module("jax")

    def arrays(name: str, tree: Any) -> dict[str, Any]:
        leaves: Any = jax.tree_util.tree_leaves_with_path(tree)
        return {name + jax.tree_util.keystr(path): np.asarray(leaf) for path, leaf in leaves}

    parameters: dict[str, Any] = {}
    for name, model in agent.models.items():
        if model is not None:
            parameters |= arrays(name, model.state_dict.params)
    state: dict[str, Any] = {}
    for name, module in agent.checkpoint_modules.items():
        if "preprocessor" in name:
            state |= arrays(name, module.state_dict)
    return parameters, state


if __name__ == "__main__":
    from lockstep.launch.child import die_with_launcher, exit_process

    die_with_launcher()
    exit_process(main("skrl", train))
