"""Virtual environments of other libraries, one each, with pinned packages."""

import subprocess
import sys
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from lockstep.cli.bench.workloads import ENVIRONMENTS


class InstallationError(Exception):
    """The packages of a library cannot be installed."""


def python_of(name: str, folder: Path) -> Path:
    """The interpreter of an environment, which is made if it does not exist.

    Args:
        name: of `ENVIRONMENTS`.
        folder: of all environments.

    Raises:
        InstallationError: with the last line that venv or pip wrote.
    """
    environment = folder / name
    python = environment / "bin" / "python"
    complete = environment / "complete"
    packages = pinned(name)
    if not complete.exists() or complete.read_text().split() != packages:
        print(f"installing {', '.join(packages)} into {environment}", file=sys.stderr, flush=True)
        _create(environment)
        # Torch comes first: with it, no other package chooses another build of it.
        for group in ([one for one in packages if one.startswith("torch==")], packages):
            if group:
                _install(python, group)
        complete.write_text("\n".join(packages))
    return python.absolute()


def pinned(name: str) -> list[str]:
    """The packages of an environment, each with its version."""
    found: list[str] = []
    for package in ENVIRONMENTS[name]:
        if "==" in package:
            found.append(package)
            continue
        try:
            found.append(f"{package}=={version(package).partition('+')[0]}")
        except PackageNotFoundError:
            found.append(package)
    return found


def _create(environment: Path) -> None:
    _run([sys.executable, "-m", "venv", "--clear", str(environment)])


def _install(python: Path, packages: list[str]) -> None:
    _run([str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check", *packages])


def _run(command: list[str]) -> None:
    """Run `PYTHON -m MODULE ...`."""
    done = subprocess.run(command, capture_output=True, text=True, errors="replace", check=False)
    if done.returncode:
        # without ensurepip, venv says so on stdout
        lines = (done.stderr.strip() or done.stdout.strip()).splitlines()
        raise InstallationError(lines[-1] if lines else f"{command[2]} ended with code {done.returncode}")
