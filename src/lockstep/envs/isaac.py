"""Isaac Lab's task ids: which are registered, what an id of an older version is called now, and why one cannot run.

Isaac Lab is never imported here: an import may start a simulator. The ids are read from its source files.
"""

import functools
import re
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec

from lockstep.envs.load import near
from lockstep.envs.package_folders import package_folders
from lockstep.errors import ConfigError

PREFIXES = ("Isaac-", "IsaacContrib-")
"""Of the ids of Isaac Lab's tasks."""
_EQUALS = {"Isaac-Cartpole": "lockstep/Cartpole-v0"}
"""Built-in tasks with the same MDP, which run without a simulator."""
_REGISTERED = re.compile(r"""\bid\s*=\s*["'](Isaac[\w.-]*)["']""")
_RENAMED = (
    (r"Anymal-([BCD])\b", r"Anymal\1"),
    (r"Unitree-(A1|Go1|Go2)\b", r"Unitree\1"),
    (r"Dexsuite-Kuka-Allegro-(Lift|Reorient)", r"\1-KukaAllegro"),
    (r"OpenArm-Bi\b", "OpenArmBi"),
    (r"Repose-", "Reorient-"),
    (r"Shadow-Vision", "Shadow-Camera"),
    (r"Shadow-Hand-Over", "Shadow-Handover"),
    (r"^Isaac-Franka-Cabinet-Direct", "Isaac-Open-Drawer-Franka-Direct"),
    (r"Cart-Double-Pendulum", "Pendulum-MARL"),
)
"""Names of tasks in Isaac Lab 2 as regular expressions, and their names in 3."""
_INSTALL_CPU = (
    "with Python 3.11 or 3.12, in an environment of its own, on a CPU: "
    "pip install torch==2.13.0 warp-lang==1.17.0 mujoco==3.12.0 mujoco-warp==3.12.0 usd-exchange==3.0.1 "
    "newton-usd-schemas==0.6.0 gymnasium==1.4.0 hydra-core prettytable trimesh scipy pillow psutil filelock "
    "lazy_loader einops rich && pip install --no-deps newton==1.6.1 && "
    "pip install --no-deps --ignore-requires-python isaaclab==3.0.0"
)
_INSTALL_GPU = "with Python 3.12 and an NVIDIA GPU: pip install isaaclab==3.0.0"
_ASSETS = "(robots come from a server, or from the folder ISAACSIM_ASSET_ROOT)"


def is_isaac(task: str) -> bool:
    """Whether `task` is one of Isaac Lab's ids."""
    return task.startswith(PREFIXES)


def is_installed() -> bool:
    """Whether Isaac Lab with its tasks is installed; searched for without an import."""
    return not _missing()


def major_version() -> int:
    """The installed major version: 2 needs Isaac Sim, 3 runs without it. 0 if it is not known."""
    try:
        return int(version("isaaclab").partition(".")[0])
    except (PackageNotFoundError, ValueError):
        return 0


@functools.cache
def task_ids() -> tuple[str, ...]:
    """The ids that the installed version registers, sorted; empty without Isaac Lab."""
    found: set[str] = set()
    for folder in package_folders("isaaclab_tasks"):
        for file in folder.rglob("__init__.py"):
            found.update(_REGISTERED.findall(file.read_text(encoding="utf-8", errors="replace")))
    return tuple(sorted(task for task in found if is_isaac(task)))


def current_id(task: str) -> tuple[str, str]:
    """The id of `task` in the installed version.

    Isaac Lab 3 has no `-v0` ids, no alias for them, and new names for some tasks.

    Returns:
        The id, and a line for the user about the translation; empty if none was needed.

    Raises:
        ConfigError: Isaac Lab is not installed, or has no such task.
    """
    if not is_installed():
        raise refusal(task)
    known = task_ids()
    if task in known:
        return task, ""
    for candidate in _candidates(task):
        if candidate in known:
            variant = " with the settings for training, not for play" if "-Play" in task else ""
            return candidate, f"task {task} is called {candidate} in the installed Isaac Lab{variant}"
    similar = near(_candidates(task)[0], list(known))
    raise ConfigError(
        f"task={task} does not exist in the installed Isaac Lab, where variants of cameras and spaces are presets of "
        f"one task (presets=NAME){similar}"
    )


def install_lines() -> str:
    """How to install Isaac Lab, on a CPU and with a GPU."""
    return f"{_INSTALL_CPU}; or {_INSTALL_GPU} {_ASSETS}"


def refusal(task: str) -> ConfigError:
    """The error that explains why `task` cannot run here and what to do."""
    equal = next((_EQUALS[one] for one in [task, *_candidates(task)] if one in _EQUALS), None)
    same = f"the same MDP runs here as --task={equal}; or " if equal else ""
    return ConfigError(
        f"task={task} is Isaac Lab's, and it is not installed (missing: {', '.join(_missing())}); {same}install it\n"
        f"  {_INSTALL_CPU}\n  {_INSTALL_GPU} {_ASSETS}"
    )


def _missing() -> list[str]:
    return [name for name in ("isaaclab", "isaaclab_tasks") if find_spec(name) is None]


def _candidates(task: str) -> list[str]:
    """Possible ids of `task` in Isaac Lab 3, the most likely first."""
    name = re.sub(r"-v\d+$", "", task)
    names = [name, re.sub(r"-Play$", "", name)]
    for pattern, replacement in _RENAMED:
        names = [re.sub(pattern, replacement, one) for one in names]
    return [candidate for one in names for candidate in (one, one.replace("Isaac-", "IsaacContrib-", 1))]
