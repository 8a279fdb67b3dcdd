"""Mutation tests: each patch here is a bug, applied to a copy of the source, and the test that it names must fail."""

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import fork_server
from planted_patches import ROOT, Patch, all_skipped, patches

_TIMEOUT_S = 600


@pytest.fixture(scope="session")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of what the tests need, compiled once.

    Bytecode is checked by the hash of its source: a patched file is compiled again even if its size and time are equal.
    """
    root = tmp_path_factory.mktemp("source")
    for name in ("src", "tests"):
        shutil.copytree(ROOT / name, root / name, ignore=shutil.ignore_patterns("__pycache__", "*.egg-info", "*.patch"))
    shutil.copy(ROOT / "pyproject.toml", root)
    compile_all = [sys.executable, "-m", "compileall", "-q", "--invalidation-mode", "checked-hash", "src"]
    subprocess.run(compile_all, cwd=root, check=True)
    return root


@pytest.fixture
def planted(source: Path, patch: Patch) -> Iterator[Path]:
    """The copy with one bug in it."""
    original = {name: (source / name).read_text() for name in {hunk.file for hunk in patch.hunks}}
    for name, text in patch.patched(source).items():
        (source / name).write_text(text)
    yield source
    for name, text in original.items():
        (source / name).write_text(text)


@pytest.mark.planted
@pytest.mark.parametrize("patch", patches(), ids=lambda patch: patch.name)
def test_planted_bug_is_caught(planted: Path, patch: Patch) -> None:
    environment = {k: v for k, v in os.environ.items() if not k.startswith("PYTEST_")}
    environment |= {"PYTHONPATH": str(planted / "src"), "PYTHONDONTWRITEBYTECODE": "1"}
    command = [sys.executable, "-m", "pytest", patch.test, "-x", "-p", "no:cacheprovider", "--color=no"]
    fork_server.use("jax" if "jax" in patch.test else "torch")  # saves most of the start of hundreds of processes
    done = subprocess.run(
        [*command, "-o", "addopts=-q"],
        cwd=planted,
        env=environment,
        capture_output=True,
        text=True,
        timeout=_TIMEOUT_S,
    )
    printed = done.stdout + done.stderr
    if done.returncode == 0 and all_skipped(done.stdout):
        pytest.skip("the test that should catch it cannot run here")
    assert done.returncode == 1, f"the planted bug was not caught, or the test could not run:\n{printed[-3000:]}"
    failed = "\n".join(line for line in done.stdout.splitlines() if line.startswith("E  "))
    assert re.search(patch.fails_with, failed), f"another assertion failed:\n{failed[-3000:]}\n{printed[-1000:]}"
