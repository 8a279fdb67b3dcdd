"""The settings that the run of a task alone begins with: an agent configuration of another library, or our defaults."""

import sys
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

from lockstep.config import settings
from lockstep.config.agents.reader import AgentSettings
from lockstep.config.agents.settings import LIBRARIES, agent_settings
from lockstep.envs import isaac
from lockstep.envs.make import is_tensor_task, takes_groups
from lockstep.errors import ConfigError
from lockstep.launch.gpus import visible_gpus
from lockstep.run import Run, override
from lockstep.session.task_defaults import task_defaults
from lockstep.system.files import read_text
from lockstep.world import World

_SUITES = (*isaac.PREFIXES, "Mjlab-")
"""Prefixes of tasks whose suites publish agent configurations."""
_NUM_ENVS = 4096
"""Where a task's own configuration has one environment, as in mjlab."""


def with_agent(run: Run, agent: str | None, changes: Mapping[str, str]) -> Run:
    """The run with the settings of an agent configuration; without one, with the defaults of its kind of task.

    Args:
        run: the run of a task alone.
        agent: a YAML file; or the name of a configuration that Isaac Lab or mjlab publishes for the task. By default
            its first one that can be read.
        changes: settings that the user gives, by name. Those of framework and device are applied here, since what an
            agent configuration becomes depends on them; the caller applies all of them afterwards.
    """
    num_envs = _num_envs(changes["num_envs"]) if "num_envs" in changes else None
    run = override(run, {name: changes[name] for name in ("ml_framework", "device") if name in changes})
    if agent is not None and agent.endswith((".yaml", ".yml")):
        return _with_file(run, agent, num_envs)
    if run.task.startswith(_SUITES):
        return _with_published(run, agent, num_envs, changes)
    if agent is not None:
        raise ConfigError(
            f"--agent {agent}: only tasks of Isaac Lab and mjlab publish agent configurations; give a YAML file of "
            f"{', '.join(LIBRARIES)}"
        )
    return task_defaults(run.task, changes)


def _num_envs(text: str) -> int:
    """The number of environments that the user gives, read as YAML like all settings."""
    found: int = settings.converted("num_envs", settings.parse(text, f"num_envs={text}"), int)
    if found < 1:
        raise ConfigError(f"num_envs={found} must be at least 1")
    return found


def has_agent(task: str, agent: str | None) -> bool:
    """Whether `with_agent` reads an agent configuration for the task, if there is one."""
    return agent is not None or task.startswith(_SUITES)


def _with_file(run: Run, path: str, num_envs: int | None) -> Run:
    try:
        config = settings.parse(read_text(Path(path)), path)
    except ConfigError as error:
        raise ConfigError(f"--agent: {error}") from None
    if not isinstance(config, Mapping):
        raise ConfigError(f"--agent {path} must be a mapping")
    config = cast(Mapping[str, Any], config)
    keys = {"params": "rl_games", "models": "skrl", "num_steps_per_env": "rsl_rl", "n_steps": "sb3"}
    library = next((name for key, name in keys.items() if key in config), None)
    if library is None:
        raise ConfigError(
            f"--agent {path} has none of the keys {', '.join(keys)}, by which the files of {', '.join(LIBRARIES)} are "
            "recognized"
        )
    envs = num_envs or run.num_envs
    found = _with_groups_of(run.task, library, agent_settings(library, config, envs))
    return _applied(run, envs, found, f"{library} file {path}")


def _with_published(run: Run, agent: str | None, num_envs: int | None, changes: Mapping[str, str]) -> Run:
    from lockstep.torch.envs.published_agents import published_agents

    task = isaac.current_id(run.task)[0] if isaac.is_isaac(run.task) else run.task
    published = published_agents(task)
    names = sorted(published.configs, key=lambda name: list(LIBRARIES).index(_library_of(name)))
    if agent is not None and agent not in published.configs:
        raise ConfigError(f"--agent {agent}: {task} publishes {', '.join(names) or 'no agent configuration'}")
    envs = num_envs or (published.num_envs if published.num_envs > 1 else _NUM_ENVS)
    refusals: list[str] = []
    for name in names if agent is None else [agent]:
        try:
            library = _library_of(name)
            found = _with_groups_of(run.task, library, agent_settings(library, published.configs[name], envs))
        except ConfigError as error:
            if agent is not None:
                raise
            refusals.append(str(error))
            continue
        others = ", ".join(other for other in names if other != name)
        return _applied(
            run, envs, found, f"{name} configuration of {task}" + (f" (others: {others})" if others else "")
        )
    for refusal in refusals:
        _print_note(refusal)
    _print_note(f"{task} publishes no agent configuration that can be read; the settings are Lockstep's own defaults")
    return override(task_defaults(task, changes), {"task": run.task, "num_envs": envs})


def _with_groups_of(task: str, library: str, found: AgentSettings) -> AgentSettings:
    """The settings with groups of observations that the task has.

    Only files of rsl_rl name groups; those of the others mean Isaac Lab's `policy` for the value network. Mjlab calls
    it `actor`. Tasks on the host, and most other classes on tensors, have none of a suite's groups.
    """
    if library == "rsl_rl" and takes_groups(task):
        return found
    kept = {name: value for name, value in found.settings.items() if not name.endswith("_keys")}
    notes = found.differences
    if library == "rsl_rl" and len(kept) < len(found.settings):
        notes += (_left_out_groups(task),)
    if "env.critic_keys" in found.settings and task.startswith(_SUITES):
        kept["env.critic_keys"] = ("actor",) if task.startswith("Mjlab-") else found.settings["env.critic_keys"]
    return replace(found, settings=kept, differences=notes)


def _left_out_groups(task: str) -> str:
    if is_tensor_task(task):
        why = "takes no policy_keys and critic_keys: the policy receives its group policy, the value network critic"
        return f"obs_groups of the file are left out; {task} {why}, where it has one"
    return (
        f"obs_groups of the file are those of tasks on torch tensors, and left out; for task={task} env.policy_keys "
        "and env.critic_keys choose"
    )


def _library_of(name: str) -> str:
    """The library of a published configuration, such as `rsl_rl` of `rsl_rl_with_symmetry`."""
    return next(library for library in LIBRARIES if name.startswith(library))


def _applied(run: Run, num_envs: int, found: AgentSettings, source: str) -> Run:
    """The run with the settings found, reported by rank 0."""
    _print_note(f"settings from the {source}")
    for difference in found.differences:
        _print_note(difference)
    if found.no_effect:
        _print_note(f"without effect here: {', '.join(found.no_effect)}")
    chosen = {**found.settings, "num_envs": num_envs}
    if chosen.get("precision") == "bfloat16" and (run.device == "cpu" or visible_gpus(run.ml_framework) == 0):
        chosen["precision"] = "float32"
        _print_note("mixed precision is left out: these libraries use it on GPUs only")
    if run.ml_framework == "jax" and chosen.get("kl_reference", "rollout") != "rollout":
        chosen["kl_reference"] = "rollout"
        _print_note("the learning rate follows the KL from the policy of the rollout: JAX has no other kl_reference")
    return override(run, chosen)


def _print_note(text: str) -> None:
    if World.from_environment().rank == 0:
        print(f"lockstep: note: {text}", file=sys.stderr)
