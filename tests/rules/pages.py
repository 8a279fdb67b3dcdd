"""The project's pages, read as Markdown."""

import re
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGES = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), *ROOT.glob("examples/*.md")])
CHINESE = ".zh-CN.md"
FENCE = re.compile(r"^```(.*?)\n(.*?)^```$", re.MULTILINE | re.DOTALL)

# What a command needs that only some environments have: text of the command, and the package.
PACKAGES = {
    "Isaac-": "isaaclab_tasks",
    "Mjlab-": "mjlab",
    "workflows.skrl": "skrl",
    "workflows.rl_games": "rl_games",
    "workflows.rsl_rl": "rsl_rl",
    "--ml_framework jax": "jax",
}


@dataclass(frozen=True)
class Block:
    """What stands between fences. ` ```yaml my_run.yaml ` is a file that the page's commands find beside them."""

    language: str
    file: str
    body: str


def blocks(page: Path) -> list[Block]:
    """All fenced blocks of a page, in order."""
    found: list[Block] = []
    for info, body in FENCE.findall(page.read_text()):
        language, _, file = info.strip().partition(" ")
        found.append(Block(language, file, body))
    return found


def commands(page: Path) -> list[str]:
    """Every line of the page's `sh` blocks, without comments."""
    lines = [line for block in blocks(page) if block.language == "sh" for line in block.body.splitlines()]
    return [line.partition(" #")[0].strip() for line in lines if line.strip() and not line.startswith("#")]


def needed_packages(command: str) -> list[str]:
    """The packages of `PACKAGES` that a command needs."""
    return [package for text, package in PACKAGES.items() if text in command]


def missing_packages(command: str) -> list[str]:
    """The packages that a command needs and this environment lacks."""
    return [package for package in needed_packages(command) if find_spec(package) is None]


def prose(page: Path) -> str:
    """A page without its fenced blocks and without what stands in backticks."""
    return re.sub(r"`[^`]*`", "", FENCE.sub("", page.read_text()))


def tables(text: str, header: str) -> list[list[str]]:
    """The rows of all tables whose first column is headed `header`."""
    rows: list[list[str]] = []
    inside = False
    for line in text.splitlines():
        if not line.startswith("|"):
            inside = False
            continue
        cells = [cell.strip().replace(r"\|", "|") for cell in re.split(r"(?<!\\)\|", line)[1:-1]]
        if cells[0] == header:
            inside = True
        elif inside and set(cells[0]) - set("-: "):
            rows.append(cells)
    return rows


def name(page: Path) -> str:
    """A page as a test's id."""
    return str(page.relative_to(ROOT))
