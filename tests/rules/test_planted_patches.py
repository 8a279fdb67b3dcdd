"""The planted bugs fit the source and the index. `make test-planted` runs them, which takes longer."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from planted_patches import ROOT, Patch, all_skipped, index, patches

# Messages of Python, pytest and NumPy; all others come from the tests or the source.
FOREIGN_MESSAGES = {
    "Arrays are not equal",
    "At index 0 diff",
    "At index 1 diff",
    "DID NOT RAISE",
    "Not equal to tolerance",
    "Regex pattern did not match",
    "killed by SIGABRT",
    "not enough values to unpack",
    "too many values to unpack",
}
MESSAGE = re.compile(r"[\w ,'-]+ [\w ,'-]+ [\w ,'-]+")  # at least three words, none of them a pattern


def test_every_patch_has_one_line_in_the_index():
    lines = [name for name, _ in index()]
    names = [patch.name for patch in patches()]
    assert sorted(lines) == sorted(set(lines)), "INDEX.md lists a patch twice"
    assert set(names) - set(lines) == set(), "patches without a line in INDEX.md"
    assert set(lines) - set(names) == set(), "lines in INDEX.md without a patch"


def test_every_patch_applies():
    stale = [problem for patch in patches() if (problem := _stale(patch))]
    if stale:
        pytest.fail("\n".join([f"stale patches: {len(stale)}", *stale]), pytrace=False)


def test_every_patch_defines_the_names_it_uses(tmp_path: Path):
    for patch in patches():
        for file, text in patch.patched(ROOT).items():
            if file.endswith(".py"):
                (tmp_path / f"{patch.name}__{Path(file).stem}.py").write_text(text)
    ruff = [
        sys.executable,
        "-m",
        "ruff",
        "check",
        "--isolated",
        "--no-cache",
        "--select=F821",
        "--output-format=concise",
    ]
    done = subprocess.run([*ruff, tmp_path], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout


def test_every_patch_names_a_test():
    missing = [f"{patch.name}: {patch.test}" for patch in patches() if not _has_test(patch.test)]
    assert missing == [], "tests named by patches do not exist"


@pytest.mark.slow  # collects some fifty files
def test_every_case_that_a_patch_names_exists():
    cases = {patch.test: patch.name for patch in patches() if "[" in patch.test}
    assert cases, "nothing is proved"
    files = sorted({test.partition("::")[0] for test in cases})
    collect = [sys.executable, "-m", "pytest", "--collect-only", "-q", "-p", "no:cacheprovider", "-o", "addopts="]
    done = subprocess.run([*collect, *files], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-1000:]
    found = set(done.stdout.splitlines())
    missing = [f"{name}: {test}" for test, name in cases.items() if test not in found]
    assert missing == [], "cases named by patches do not exist"


def test_a_skipped_case_among_others_is_no_skipped_test(tmp_path: Path):
    """Else a bug that no case catches would count as one whose test cannot run here."""
    (tmp_path / "test_cases.py").write_text(
        "import pytest\n"
        "@pytest.mark.parametrize('case', range(3))\n"
        "def test_some(case):\n"
        "    if case == 0:\n"
        "        pytest.skip('not here')\n"
        "def test_all():\n"
        "    pytest.skip('not here')\n"
    )
    environment = {**os.environ, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    for name, skipped in (("test_some", False), ("test_all", True)):
        command = [sys.executable, "-m", "pytest", "-q", "--color=no", f"test_cases.py::{name}"]
        done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True)
        assert done.returncode == 0 and done.stdout.startswith("s"), done.stdout
        assert all_skipped(done.stdout) == skipped, done.stdout


def test_every_patch_expects_a_message_that_exists():
    text = "\n".join(path.read_text() for folder in ("src", "tests") for path in (ROOT / folder).rglob("*.py"))
    missing = {
        f"{patch.name}: {message}"
        for patch in patches()
        for message in patch.fails_with.strip("()").split("|")
        if MESSAGE.fullmatch(message) and message not in FOREIGN_MESSAGES and message not in text
    }
    assert missing == set(), "messages after `fails with:` that nothing raises any more"


def _stale(patch: Patch) -> str:
    try:
        patch.patched(ROOT)
    except ValueError as error:
        return str(error)
    return ""


def _has_test(test: str) -> bool:
    file, _, name = test.partition("::")
    return (ROOT / file).exists() and f"def {name.partition('[')[0]}(" in (ROOT / file).read_text()
