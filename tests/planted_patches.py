"""The mutation tests of tests/planted: each patch is a bug, with the test that must catch it and the message to expect.

A patch starts with `test:` (the id of a test) and `fails with:` (a regular expression that the failure must match),
followed by a unified diff. tests/planted/INDEX.md lists every patch with the bug in it.
"""

import re
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[1]
FOLDER = ROOT / "tests" / "planted"
INDEX = FOLDER / "INDEX.md"
_HUNK = re.compile(r"^(@@ .*)\n((?:[ +-].*\n|\n)+)", re.MULTILINE)
_ENTRY = re.compile(r"^- `(\w+)`: (.+)$", re.MULTILINE)


@dataclass(frozen=True)
class Hunk:
    """Lines of a file and what replaces them."""

    file: str
    header: str
    old: str
    new: str


@dataclass(frozen=True)
class Patch:
    """A planted bug."""

    name: str
    test: str
    fails_with: str
    hunks: tuple[Hunk, ...]

    def patched(self, root: Path) -> dict[str, str]:
        """The new text of every file that the patch changes.

        Raises:
            ValueError: a hunk's lines are not in its file, or are there more than once.
        """
        texts: dict[str, str] = {}
        for hunk in self.hunks:
            path = root / hunk.file
            if hunk.file not in texts and not path.exists():
                raise ValueError(f"{self.name}: {hunk.file} does not exist")
            text = texts.get(hunk.file) or path.read_text()
            if (count := text.count(hunk.old)) != 1:
                raise ValueError(
                    f"{self.name}: {hunk.file} has these lines {count} times, not once ({hunk.header}):\n{hunk.old}"
                )
            texts[hunk.file] = text.replace(hunk.old, hunk.new)
        return texts


def patches() -> list[Patch]:
    """All patches, by name."""
    return [_read(path) for path in sorted(FOLDER.glob("*.patch"))]


def all_skipped(printed: str) -> bool:
    """Whether the last line of pytest, as `-q` prints it, tells of skipped tests and of no others."""
    return re.search(r"^\d+ skipped\b", printed, re.MULTILINE) is not None


def index() -> list[tuple[str, str]]:
    """`(name, bug)` of every line of the index."""
    return _ENTRY.findall(INDEX.read_text())


def _read(path: Path) -> Patch:
    head, *files = re.split(r"^--- a/", path.read_text(), flags=re.MULTILINE)
    fields = dict(re.findall(r"^(test|fails with): (.+)$", head, re.MULTILINE))
    hunks = [_hunk(part.split("\n", 1)[0], *found) for part in files for found in _HUNK.findall(part)]
    if set(fields) != {"test", "fails with"} or not hunks:
        raise ValueError(f"{path.name} must have the lines `test:` and `fails with:`, and a unified diff")
    return Patch(path.stem, fields["test"], fields["fails with"], tuple(hunks))


def _hunk(file: str, header: str, body: str) -> Hunk:
    lines = body.splitlines(keepends=True)
    old = "".join(line[1:] for line in lines if line[0] in " -")
    new = "".join(line[1:] for line in lines if line[0] in " +")
    return Hunk(file, header, old, new)
