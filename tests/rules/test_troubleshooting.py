"""The messages that docs/troubleshooting.md explains are messages of the source."""

import ast
import re
from collections.abc import Iterator

from pages import ROOT, tables
from sources import tree_of

PAGE = ROOT / "docs/troubleshooting.md"
PLACE = "…"
"""What stands on the page for a name or a number."""


def templates(tree: ast.AST) -> Iterator[str]:
    """All texts of a module; an f-string has one `PLACE` for each of its values."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node.value
        elif isinstance(node, ast.JoinedStr):
            yield "".join(str(part.value) if isinstance(part, ast.Constant) else PLACE for part in node.values)


def messages() -> list[str]:
    """The quoted messages in the first column of the page's tables."""
    return [one for row in tables(PAGE.read_text(), "message") for one in re.findall(r"`([^`]{12,})`", row[0])]


def unknown(message: str, modules: list[list[str]]) -> bool:
    """Whether no module has every piece of a message in its texts."""
    pieces = [piece.strip() for piece in message.split(PLACE) if len(piece.strip()) > 3]
    return not any(all(any(piece in text for text in texts) for piece in pieces) for texts in modules)


def test_messages_are_those_of_the_source():
    modules = [list(templates(tree_of(path))) for path in sorted(ROOT.glob("src/lockstep/**/*.py"))]
    told = messages()
    assert len(told) > 35
    assert [message for message in told if unknown(message, modules)] == []
    assert unknown("… ranks share … usable chairs", modules)


def test_messages_are_in_order():
    """So that a reader finds one: by its first letters, within a table."""
    for part in PAGE.read_text().split("\n## "):
        first = [re.search(r"`([^`]*)`", row[0])[1].lower() for row in tables(part, "message")]
        letters = [re.sub("[^a-z]", "", message) for message in first]
        assert letters == sorted(letters)
