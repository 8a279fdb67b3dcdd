"""The public names: docs/api.md lists them, and what users read imports nothing else."""

import ast
import re
import subprocess
import sys

import pytest
from pages import PAGES, ROOT, blocks, name

sys.path.append(str(ROOT / "docs"))
import api

PUBLIC = api.public()
MODULES = {"lockstep", *PUBLIC}
EXAMPLES = sorted(ROOT.glob("examples/*.py"))


def undocumented(source: str) -> list[str]:
    """What a program imports of Lockstep that docs/api.md does not list."""
    found = []
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            found += [alias.name for alias in node.names if alias.name not in MODULES]
        elif isinstance(node, ast.ImportFrom) and node.module is not None:
            names = [(node.module, alias.name) for alias in node.names]
            found += [f"{module}.{key}" for module, key in names if key not in PUBLIC.get(module, ())]
    return [one for one in found if one.partition(".")[0] == "lockstep" and one not in MODULES]


def test_the_page_is_up_to_date():
    assert api.PAGE.read_text() == api.render(), "docs/api.md is out of date; write it anew: make api"


def test_a_sentence_over_several_lines_is_one_result():
    cut = [line for line in api.PAGE.read_text().splitlines() if re.match(r" *- [a-z]", line)]
    assert not cut, "items that begin within a sentence"


def test_no_name_is_described_twice_in_the_same_words():
    described = api.PAGE.read_text().split("\n### ")[1:]
    for text in described:
        paragraphs = [part for part in text.partition("\nMethods:\n")[0].split("\n\n") if part[0].isupper()]
        twice = {part for part in paragraphs if paragraphs.count(part) > 1 and not part.endswith(":")}
        assert not twice, text.partition("\n")[0]


@pytest.mark.parametrize("module", [module for module in PUBLIC if module != "lockstep.jax"])
def test_every_public_name_can_be_imported(module):
    assert all(hasattr(__import__(module, fromlist=["*"]), key) for key in PUBLIC[module])


def test_every_public_name_of_jax_can_be_imported():
    code = f"import lockstep.jax as module; assert all(hasattr(module, key) for key in {PUBLIC['lockstep.jax']})"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_every_public_name_has_a_docstring():
    empty = re.findall(r"^\| \[`(\w+)`\]\(\S+\) \| +\|$", api.PAGE.read_text(), re.MULTILINE)
    assert empty == []


@pytest.mark.parametrize("example", EXAMPLES, ids=name)
def test_examples_import_public_names_only(example):
    assert undocumented(example.read_text()) == []


@pytest.mark.parametrize("page", [page for page in PAGES if "docs/decisions" not in str(page)], ids=name)
def test_pages_import_public_names_only(page):
    """A block that is a file stands alone; the others of a page continue each other."""
    shown = [block for block in blocks(page) if block.language == "python"]
    programs = [block.body for block in shown if block.file] + ["".join(b.body for b in shown if not b.file)]
    assert [one for program in programs for one in undocumented(program)] == []


@pytest.mark.parametrize("recipe", ["cartpole", "pong"])
def test_written_recipes_import_public_names_only(recipe):
    from lockstep import recipes

    assert undocumented(recipes.source(recipe)) == []


def test_an_internal_import_is_found():
    assert undocumented("from lockstep.world import World") == ["lockstep.world.World"]
    assert undocumented("import lockstep.torch.comm") == ["lockstep.torch.comm"]
    assert undocumented("from lockstep import World, recipes\nfrom lockstep.torch import PPO\nimport torch") == []
