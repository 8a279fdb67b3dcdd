"""What the pages about launchers show of scripts and manifests is what `lockstep submit` writes."""

import re
import shlex
from pathlib import Path

import pytest

from lockstep.cli import main as cli

FOLDER = Path(__file__).parents[4] / "docs" / "launchers"
PAGES = sorted(FOLDER.glob("*.md"))
GENERATED = re.compile(r"<!-- generated: lockstep (.+?) -->\n\n```text\n(.*?)^```$", re.MULTILINE | re.DOTALL)
SH = re.compile(r"^```sh([^\n]*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def found(pattern):
    return [(page.name, *match) for page in PAGES for match in re.findall(pattern, page.read_text())]


def test_every_page_shows_commands():
    assert len(PAGES) == 12
    without = [page.name for page in PAGES if "```" not in page.read_text()]
    assert without == ["README.md"]
    assert all(f"]({page.name}" in (FOLDER / "README.md").read_text() for page in PAGES if page.name != "README.md")


@pytest.mark.usefixtures("here")
@pytest.mark.parametrize(("page", "command", "shown"), found(GENERATED), ids=lambda value: value[:13])
def test_what_is_shown_is_what_is_written(capsys, page, command, shown):
    assert cli.main(shlex.split(command)) == 0
    assert capsys.readouterr().out == shown


def test_two_pages_show_what_is_written():
    assert [page for page, *_ in found(GENERATED)] == ["kubernetes.md", "slurm.md"]


@pytest.mark.usefixtures("here")
def test_dry_runs_print(capsys):
    """The commands that only print are typed as they are."""
    dry = [line for _, _, text in found(SH) for line in text.splitlines() if "--dry-run" in line]
    assert len(dry) == 4
    for line in dry:
        assert cli.main(shlex.split(line)[1:]) == 0
        assert "lockstep train" in capsys.readouterr().out
