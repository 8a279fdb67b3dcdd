"""Fresh virtual environments with Lockstep installed from its wheel, by pip or by uv.

`make dist` names the folder of the built wheel in `LOCKSTEP_DIST`; all Python versions and both installers are then
tested. Otherwise the wheel is built here, and only this Python and pip are.
"""

import functools
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
DIST = os.environ.get("LOCKSTEP_DIST")
UV = ROOT / ".venv-dist" / "bin" / "uv"
TORCH_INDEX = os.environ.get("TORCH_INDEX")
THIS = ".".join(map(str, sys.version_info[:2]))
PYTHONS = ("3.11", "3.12", "3.13", "3.14") if DIST else (THIS,)
INSTALLERS = (
    {version: ("uv", "pip") if version == "3.11" else ("uv",) for version in PYTHONS} if DIST else {THIS: ("pip",)}
)
LOCKS = {"torch": "requirements.lock", "jax": "requirements-jax.lock", "": "requirements-jax.lock"}
BOUND_S = 900.0
SMALL = (
    "num_envs=8", "total_steps=1024", "algorithm.num_steps=8", "algorithm.num_epochs=1", "algorithm.num_minibatches=2",
    "network.hidden=[16,16]", "evaluate_every=null", "evaluate_episodes=4", "log_every=256",
)  # fmt: skip


@functools.cache
def wheel() -> Path:
    """The wheel under test."""
    folder = Path(DIST) if DIST else Path(tempfile.mkdtemp(prefix="lockstep-wheel-"))
    if not DIST:
        source = folder / "source"
        ignored = shutil.ignore_patterns(".*", "runs", "build", "dist", "site", "__pycache__", "*.egg-info")
        shutil.copytree(ROOT, source, ignore=ignored)
        pip = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation"]
        subprocess.run([*pip, "--wheel-dir", folder, source], check=True, timeout=BOUND_S)
    (found,) = folder.glob("*.whl")
    return found.resolve()


@functools.cache
def interpreter(version: str) -> str:
    """The path of a Python of this version; skips the test if the machine has none."""
    pyenv = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv")) / "versions"
    candidates = [sys.executable] if version == THIS else []
    candidates += [str(path) for path in sorted(pyenv.glob(f"{version}.*/bin/python"), reverse=True)]
    candidates += [found] if (found := shutil.which(f"python{version}")) else []
    for candidate in candidates:
        done = subprocess.run([candidate, "-c", "import sys, venv"], capture_output=True)
        if done.returncode == 0:
            return candidate
    pytest.skip(f"this machine has no Python {version}")


class CleanEnvironment:
    """A fresh virtual environment with the wheel, where no command of the system is found, a compiler least of all."""

    def __init__(self, folder: Path, version: str, installer: str, extra: str) -> None:
        self.folder, self.bin, self.python = folder, folder / "venv" / "bin", interpreter(version)
        kept = {k: v for k, v in os.environ.items() if not k.startswith(("PYTHON", "VIRTUAL_ENV")) and k != "CC"}
        self.environment = kept | {"TMPDIR": str(folder)}  # which has no C code that another test compiled
        lines = [line.partition("#")[0].strip() for line in (ROOT / LOCKS[extra]).read_text().splitlines()]
        self.constraints = folder / "constraints.txt"
        self.constraints.write_text("\n".join(filter(None, lines)))
        self.wanted = f"{wheel()}[{extra}]" if extra else str(wheel())
        (self._install_by_uv if installer == "uv" else self._install_by_pip)()
        self.environment["PATH"] = str(self.bin)
        (folder / "examples").symlink_to(ROOT / "examples")

    def _install_by_pip(self) -> None:
        made = self.attempt(self.python, "-m", "venv", self.folder / "venv")
        assert made.returncode == 0, made.stderr
        index = ["--extra-index-url", TORCH_INDEX] if TORCH_INDEX else []
        pip = [self.bin / "python", "-m", "pip", "install", "--quiet", "--disable-pip-version-check", *index]
        done = self.attempt(*pip, "-c", self.constraints, self.wanted)
        if done.returncode:
            pytest.skip(f"pip cannot install here: {done.stderr.strip().splitlines()[-1]}")

    def _install_by_uv(self) -> None:
        made = self.attempt(
            UV, "venv", "--quiet", "--no-python-downloads", "--python", self.python, self.folder / "venv"
        )
        assert made.returncode == 0, made.stderr
        install = [UV, "pip", "install", "--python", self.bin / "python", "-c", self.constraints, *uv_sources()]
        planned = self.attempt(*install, "--dry-run", self.wanted)
        if planned.returncode:
            pytest.skip(f"uv cannot install here: {planned.stderr.strip().splitlines()[-1]}")
        if cuda := re.findall(r"^ \+ (nvidia-\S+|cuda-\S+)", planned.stderr, re.MULTILINE):
            # Several gigabytes, of which nothing is used on a CPU.
            pytest.skip(f"the index has only a CUDA build of torch ({cuda[0]}): set TORCH_INDEX to one of CPU builds")
        done = self.attempt(*install, "--quiet", self.wanted)
        assert done.returncode == 0, done.stderr

    def run(self, *words: object) -> str:
        """The output of a command of the environment, which has to succeed."""
        done = self.attempt(self.bin / str(words[0]), *words[1:])
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    def attempt(self, *words: object) -> subprocess.CompletedProcess[str]:
        """The result of a command, successful or not."""
        return subprocess.run(
            [str(word) for word in words],
            cwd=self.folder,
            env=self.environment,
            capture_output=True,
            text=True,
            timeout=BOUND_S,
            check=False,
        )

    def train(self, name: str, *words: str) -> dict:
        """The summary of a short training on CartPole."""
        settings = [word for setting in SMALL for word in ("--set", setting)]
        self.run("lockstep", "train", "cartpole", *words, "--run-dir", name, *settings)
        return json.loads((self.folder / name / "summary.json").read_text())

    def installed(self) -> set[str]:
        """The distributions that are installed."""
        code = "from importlib.metadata import distributions; print(*{one.name.lower() for one in distributions()})"
        return set(self.run("python", "-c", code).split())


def uv_sources() -> list[str]:
    """Where uv finds packages, besides its index: it does not read pip's settings."""
    words = ["--find-links", os.environ["PIP_FIND_LINKS"]] if os.environ.get("PIP_FIND_LINKS") else []
    return words + (["--index", TORCH_INDEX, "--index-strategy", "unsafe-best-match"] if TORCH_INDEX else [])
