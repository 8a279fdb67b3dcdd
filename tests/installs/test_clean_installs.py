"""`pip install lockstep-rl[jax]` suffices without torch, and `lockstep-rl[torch]` without JAX, in fresh environments.

Packages come from wherever pip gets them here, in the versions of our locks; without an index the tests skip.
"""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]
BOUND_S = 900.0
SMALL = (
    "num_envs=8", "total_steps=1024", "algorithm.num_steps=8", "algorithm.num_epochs=1", "algorithm.num_minibatches=2",
    "network.hidden=[16,16]", "evaluate_every=null", "evaluate_episodes=4", "log_every=256",
)  # fmt: skip


class Environment:
    """A fresh virtual environment with Lockstep as a user installs it."""

    def __init__(self, folder: Path, extra: str, lock: str) -> None:
        self.folder, self.bin = folder, folder / "venv" / "bin"
        shutil.copytree(
            ROOT, folder / "source", ignore=shutil.ignore_patterns(".*", "runs", "__pycache__", "*.egg-info")
        )
        self.environment = {k: v for k, v in os.environ.items() if not k.startswith(("PYTHON", "VIRTUAL_ENV"))}
        constraints = folder / "constraints.txt"
        lines = [line.partition("#")[0].strip() for line in (ROOT / lock).read_text().splitlines()]
        constraints.write_text("\n".join(filter(None, lines)))
        made = self._try(sys.executable, "-m", "venv", folder / "venv")
        assert made.returncode == 0, made.stderr
        pip = [self.bin / "python", "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
        index = os.environ.get("TORCH_INDEX")
        installed = self._try(
            *pip, *(["--extra-index-url", index] if index else []), "-c", constraints, f"{folder / 'source'}[{extra}]"
        )
        if installed.returncode:
            reason = installed.stderr.strip().splitlines()[-1]
            pytest.skip(f"pip cannot install here: {reason}")

    def run(self, *words: object) -> str:
        """What a command of the environment prints; it has to succeed."""
        done = self._try(self.bin / str(words[0]), *words[1:])
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    def _try(self, *words: object) -> subprocess.CompletedProcess[str]:
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
        settings = [word for setting in SMALL for word in ("--set", setting)]
        self.run("lockstep", "train", "cartpole", *words, "--run-dir", name, *settings)
        return json.loads((self.folder / name / "summary.json").read_text())


def installed(environment: Environment) -> set[str]:
    listed = json.loads(environment.run("python", "-m", "pip", "list", "--format=json", "--disable-pip-version-check"))
    return {one["name"].lower() for one in listed}


def test_without_torch_jax_trains_cartpole_and_everything_around_it_works(tmp_path):
    made = Environment(tmp_path, "jax", "requirements-jax.lock")
    assert "torch" not in installed(made)
    for name, words in (("one", []), ("two", ["--ranks", "2"])):
        summary = made.train(name, "--ml-framework", "jax", *words)
        assert (summary["status"], summary["ml_framework"]) == ("finished", "jax")
        assert summary["env_steps"] == 1024
    assert len({rank["params_fingerprint"] for rank in summary["ranks"]}) == 1
    assert "over 3 episodes" in made.run("lockstep", "evaluate", "one", "--episodes", "3")
    launcher = ["-m", "lockstep.launch.jax", "--nproc_per_node=2", "-m", "lockstep.train", "--task=CartPole-v1"]
    settings = [word for setting in SMALL for word in ("--set", setting)]
    made.run("python", *launcher, "--distributed", "--ml_framework=jax", "--run-dir=three", *settings)
    doctor = made.run("lockstep", "doctor")
    assert "torch is not installed" in doctor and "all-reduce between 2 ranks of this machine, jax" in doctor
    done = made._try(made.bin / "lockstep", "train", "cartpole")
    assert done.returncode == 2, done.stderr
    assert "ml_framework=torch" in done.stderr and "pip install" in done.stderr and len(done.stderr.splitlines()) == 1


def test_without_jax_torch_trains_cartpole(tmp_path):
    made = Environment(tmp_path, "torch", "requirements.lock")
    assert not {"jax", "jaxlib", "optax"} & installed(made)
    summary = made.train("two", "--ranks", "2")
    assert (summary["status"], summary["ml_framework"]) == ("finished", "torch")
    assert "over 3 episodes" in made.run("lockstep", "evaluate", "two", "--episodes", "3")
    assert "jax is not installed" in made.run("lockstep", "doctor")
    done = made._try(made.bin / "lockstep", "train", "cartpole", "--ml-framework", "jax")
    assert done.returncode == 2, done.stderr
    assert "ml_framework=jax" in done.stderr and "pip install" in done.stderr and len(done.stderr.splitlines()) == 1
