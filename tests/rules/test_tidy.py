"""What people leave behind: loose ends, debris, files that lost their idea."""

import ast
import re
import shutil
import subprocess
from pathlib import Path

import pytest
from sources import tree_of

ROOT = Path(__file__).parents[2]
DEBRIS = re.compile(
    r"(^|/)(runs|build|dist|\.venv[^/]*|__pycache__|\.pytest_cache|\.ruff_cache|[^/]*\.egg-info)/"
    r"|\.(pyc|orig|rej|swp|log|tfevents.*)$|(^|/)(core|nohup\.out|\.DS_Store)$"
)
LOOSE_END = re.compile(r"\b(TODO|FIXME|XXX|HACK)\b(?!\(#\d+\))")
MAX_FUNCTION_LINES = 60
# Longer, and why.
LONG_FUNCTIONS: dict[str, str] = {}


def tracked(*patterns: str) -> list[str]:
    if shutil.which("git") is None or not (ROOT / ".git").exists():
        pytest.skip("not a git checkout")
    listed = subprocess.run(["git", "ls-files", "-z", *patterns], cwd=ROOT, capture_output=True, text=True, check=True)
    return [name for name in listed.stdout.split("\0") if name and (ROOT / name).exists()]


def test_no_debris_is_tracked():
    assert [name for name in tracked() if DEBRIS.search(name)] == []


def test_loose_ends_name_their_issue():
    """`TODO(#12): ...`, never a bare one."""
    this = str(Path(__file__).relative_to(ROOT))
    found = [
        f"{name}:{number}: {line.strip()}"
        for name in tracked("*.py", "*.toml", "Makefile", "*.yaml", ".ci/*")
        if name != this
        for number, line in enumerate((ROOT / name).read_text().splitlines(), 1)
        if LOOSE_END.search(line)
    ]
    assert found == []


def test_functions_are_short():
    long = {
        f"{name}:{node.name}"
        for name in tracked("src/*.py")
        for node in ast.walk(tree_of(ROOT / name))
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef))
        if (node.end_lineno or 0) - node.lineno + 1 > MAX_FUNCTION_LINES
    }
    assert long == set(LONG_FUNCTIONS)


def test_test_files_have_names_of_their_own():
    """Folders of tests are no packages: two files of one name cannot be collected together, as `make test-*` do."""
    names = [Path(name).name for name in tracked("tests/*.py")]
    assert sorted({name for name in names if names.count(name) > 1} - {"conftest.py"}) == []


def test_every_word_of_make_has_a_recipe():
    """A phony target without one succeeds and does nothing: `.ci/run` would not notice."""
    makefile = (ROOT / "Makefile").read_text()
    words = set(re.search(r"^\.PHONY: (.*)", makefile, re.M)[1].split())
    for name in (".ci/run", "README.md", "CONTRIBUTING.md"):
        words |= set(re.findall(r"^make ([a-z-]+)", (ROOT / name).read_text(), re.M))
    recipes = set(re.findall(r"^([a-z-]+):.*\n\t", makefile, re.M))
    assert sorted(words - recipes) == []


def test_no_file_is_named_for_nothing():
    names = {"utils.py", "util.py", "common.py", "misc.py", "core.py", "helpers.py", "base.py"}
    assert [name for name in tracked("src/*.py") if Path(name).name in names] == []


def test_locks_pin_every_version():
    locks = sorted(ROOT.glob("requirements*.lock"))
    assert len(locks) >= 3
    for lock in locks:
        pins = [line for line in lock.read_text().splitlines() if line and not line.startswith("#")]
        assert all(
            re.fullmatch(r"""[A-Za-z0-9._-]+==[0-9][0-9a-z.]*(; python_version < "[0-9.]+")?""", pin) for pin in pins
        ), lock.name
        assert pins == sorted(set(pins), key=str.lower), lock.name


def test_torch_is_pinned_without_a_build():
    """`torch==2.13.0+cpu` would keep a machine with GPUs on a CPU build; the JAX environment has no torch at all."""
    pins = (ROOT / "requirements.lock").read_text().splitlines()
    assert any(re.fullmatch(r"torch==[0-9.]+", pin) for pin in pins)
    assert "torch==" not in (ROOT / "requirements-jax.lock").read_text()
