"""The planted bugs fit the source and the index. `make test-planted` runs them, which takes longer."""

import pytest

from planted_patches import ROOT, Patch, index, patches


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


def test_every_patch_names_a_test():
    missing = [f"{patch.name}: {patch.test}" for patch in patches() if not _has_test(patch.test)]
    assert missing == [], "tests named by patches do not exist"


def _stale(patch: Patch) -> str:
    try:
        patch.patched(ROOT)
    except ValueError as error:
        return str(error)
    return ""


def _has_test(test: str) -> bool:
    file, _, name = test.partition("::")
    return (ROOT / file).exists() and f"def {name.partition('[')[0]}(" in (ROOT / file).read_text()
