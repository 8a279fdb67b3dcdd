"""Isaac Lab's task ids, which are refused with an explanation before anything starts."""

from importlib.util import find_spec

from lockstep.errors import ConfigError

_EQUALS = {"Isaac-Cartpole-v0": "lockstep/Cartpole-v0"}
"""Built-in tasks with the same MDP, which run without a simulator."""


def is_isaac(task: str) -> bool:
    """Whether `task` is one of Isaac Lab's ids."""
    return task.startswith("Isaac-")


def refusal(task: str) -> ConfigError:
    """The error that explains why `task` cannot run here and what to do.

    Isaac Lab is searched for without an import, which may start the simulator.
    """
    missing = [name for name in ("isaaclab", "isaaclab_tasks", "isaacsim") if find_spec(name) is None]
    if missing:
        reason = (
            f"task={task} is Isaac Lab's, and it is not installed (missing: {', '.join(missing)}); "
            "on a machine with an NVIDIA RTX GPU, in an environment of its own: "
            'pip install "isaaclab[isaacsim,all]" --extra-index-url https://pypi.nvidia.com'
        )
    else:
        reason = f"task={task} is Isaac Lab's; it is installed here, but this version of Lockstep cannot start it yet"
    equal = _EQUALS.get(task)
    return ConfigError(f"{reason}. The same MDP runs here as --task={equal}" if equal else reason)
