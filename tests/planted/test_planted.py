"""A test that cannot fail is a defect: each patch here is a bug, and the test it names has to catch it.

A patch begins with why it is a bug, then says `test:` (which test) and `fails with:` (a regular expression for what
that test then says), then comes a unified diff. It is applied to a copy; nothing in `src` knows of it.
"""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PATCHES = sorted(Path(__file__).parent.glob("*.patch"))
HUNK = re.compile(r"^@@ .*\n((?:[ +-].*\n|\n)+)", re.MULTILINE)


def field(text: str, name: str) -> str:
    found = re.search(rf"^{name}: (.+)$", text, re.MULTILINE)
    assert found, f"the patch does not say {name}:"
    return found[1]


def edits(patch: str) -> list[tuple[str, str, str]]:
    """`(file, old lines, new lines)` of every hunk."""
    found = []
    for part in re.split(r"^--- a/", patch, flags=re.MULTILINE)[1:]:
        for hunk in HUNK.findall(part):
            lines = hunk.splitlines(keepends=True)
            old = "".join(line[1:] for line in lines if line[0] in " -")
            found.append((part.split("\n")[0], old, "".join(line[1:] for line in lines if line[0] in " +")))
    assert found, "the patch changes nothing"
    return found


def apply(patch: str, root: Path) -> None:
    """Change `root` by a unified diff, by its lines, wherever in the file they stand."""
    for name, old, new in edits(patch):
        file = root / name
        text = file.read_text()
        assert text.count(old) == 1, f"the patch is stale: {name} does not hold these lines once:\n{old}"
        file.write_text(text.replace(old, new))


@pytest.mark.parametrize("path", PATCHES, ids=lambda path: path.stem)
def test_patches_apply(path, tmp_path):
    patch = path.read_text()
    for name in {name for name, _, _ in edits(patch)}:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, tmp_path / name)
    apply(patch, tmp_path)
    file, _, test = field(patch, "test").partition("::")
    assert f"def {test.partition('[')[0]}(" in (ROOT / file).read_text(), "the patch names a test that does not exist"


@pytest.mark.planted
@pytest.mark.parametrize("path", PATCHES, ids=lambda path: path.stem)
def test_planted_bugs_are_caught(path, tmp_path):
    patch = path.read_text()
    for name in ("src", "tests"):
        shutil.copytree(ROOT / name, tmp_path / name, ignore=shutil.ignore_patterns("__pycache__", "*.egg-info"))
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    apply(patch, tmp_path)
    test = field(patch, "test")
    environment = {k: v for k, v in os.environ.items() if not k.startswith("PYTEST_")}
    environment |= {"PYTHONPATH": str(tmp_path / "src"), "PYTHONDONTWRITEBYTECODE": "1"}
    command = [sys.executable, "-m", "pytest", test, "-p", "no:cacheprovider", "--color=no", "-o", "addopts=-q"]
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=300)
    said = done.stdout + done.stderr
    if done.returncode == 0 and done.stdout.startswith("s"):
        pytest.skip("the test that should catch it cannot run here")
    assert done.returncode == 1, f"the planted bug was not caught, or the test could not run:\n{said[-3000:]}"
    failed = "\n".join(line for line in done.stdout.splitlines() if line.startswith("E  "))
    assert re.search(field(patch, "fails with"), failed), f"another assertion failed:\n{failed[-3000:]}\n{said[-1000:]}"
