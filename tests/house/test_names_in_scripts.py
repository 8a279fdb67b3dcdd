"""Scripts of benchmarks/ and examples/, which no suite runs whole, use names that the source has."""

import ast
import importlib
import importlib.util
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SCRIPTS = sorted([*(ROOT / "benchmarks").glob("*.py"), *(ROOT / "examples").glob("*.py")])


@cache
def names_of(module: str) -> frozenset[str]:
    """What can be imported from a module of the source: its top-level names and its submodules."""
    place = (ROOT / "src").joinpath(*module.split("."))
    files = [
        path for path in (place.with_suffix(".py"), place / "__init__.py", place / "__init__.pyi") if path.exists()
    ]
    assert files, f"there is no module {module}"
    found = {path.stem for path in place.glob("*")} if place.is_dir() else set[str]()
    for path in files:
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, (ast.ImportFrom, ast.Import)):
                found |= {alias.asname or alias.name for alias in node.names}
            elif isinstance(node, (ast.FunctionDef, ast.ClassDef)):
                found.add(node.name)
            elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
                found.add(node.id)
    return frozenset(found)


def imported(tree: ast.Module) -> Iterator[tuple[str, str]]:
    """Module and name of each import from Lockstep."""
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "lockstep":
            yield from ((node.module or "", alias.name) for alias in node.names)


@pytest.mark.parametrize("path", SCRIPTS, ids=lambda path: path.name)
def test_names_that_scripts_import_exist(path):
    found = list(imported(ast.parse(path.read_text())))
    assert [f"{module}.{name}" for module, name in found if name not in names_of(module)] == []


@pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="the classes that are timed need torch")
def test_methods_that_benchmarks_replace_exist():
    """`clock.around(Class, "method", ...)`, and `Class._method`: private names that may change without notice."""
    path = ROOT / "benchmarks" / "overhead.py"
    tree = ast.parse(path.read_text())
    where = {name: module for module, name in imported(tree)}
    used = [
        (node.args[0].id, node.args[1].value)
        for node in ast.walk(tree)
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "around"
    ]
    used += [
        (node.value.id, node.attr)
        for node in ast.walk(tree)
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id in where
        if node.attr.startswith("_")
    ]
    assert len(used) >= 7
    owners = {name: getattr(importlib.import_module(where[name]), name) for name, _ in used}
    assert [f"{owner}.{method}" for owner, method in used if not hasattr(owners[owner], method)] == []
