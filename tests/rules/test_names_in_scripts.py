"""Methods that benchmarks/overhead.py times exist: no suite runs it, and names may change without notice."""

import ast
import importlib
import importlib.util
from pathlib import Path

import pytest
from sources import tree_of

SCRIPT = Path(__file__).parents[2] / "benchmarks/overhead.py"


@pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="the classes that are timed need torch")
def test_methods_that_are_timed_exist():
    """`clock.around(Class, "method", ...)`, and `Class._method`."""
    tree = tree_of(SCRIPT)
    where = {
        alias.name: str(node.module)
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom) and str(node.module).startswith("lockstep")
        for alias in node.names
    }
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
