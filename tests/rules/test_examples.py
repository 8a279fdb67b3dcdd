"""Examples are short enough to read in one go, and the tour names them all."""

import json
from pathlib import Path

import pytest

FOLDER = Path(__file__).parents[2] / "examples"
FILES = sorted(path for path in FOLDER.iterdir() if path.suffix in (".py", ".sh", ".ipynb"))
MAX_LINES = 100


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_example_is_short_and_listed(path):
    text = path.read_text()
    if path.suffix == ".ipynb":  # the cells as a reader sees them
        text = "\n".join("".join(cell["source"]) for cell in json.loads(text)["cells"])
    assert len(text.splitlines()) <= MAX_LINES
    assert f"({path.name})" in (FOLDER / "README.md").read_text()
