"""docs/metrics.md names exactly the metrics that the code emits."""

import ast
import re
from importlib import import_module
from pathlib import Path

import pytest
from sources import tree_of

from lockstep.algorithms import offline
from lockstep.algorithms.all import ALGORITHMS
from lockstep.cli.sweep.sweep_file import metric_names
from lockstep.distributed.timers import PHASES
from lockstep.estimators import result as told
from lockstep.run import OfflineRun, Run

ROOT = Path(__file__).parents[2]
# A metric by its whole name between backticks, such as `loss/policy`; paths and commands have a dot, a space or more.
NAME = re.compile(r"`([a-z]+/[a-z0-9_]+)`")


def documented(text: str) -> set[str]:
    return set(NAME.findall(text))


def emitted() -> set[str]:
    """Names of the algorithms' tables, and the keys written in record/: `metrics["..."] = `, the phases' filled in."""
    names = {*offline.METRICS, *told.METRICS}
    for algo in ALGORITHMS:
        names |= {*import_module(f"lockstep.algorithms.{algo}").METRICS}
    for path in (ROOT / "src/lockstep/record").glob("*.py"):
        for node in ast.walk(tree_of(path)):
            if isinstance(node, ast.Assign):
                for target in node.targets:
                    names |= keys(target)
    return names


def keys(target: ast.expr) -> set[str]:
    if not (isinstance(target, ast.Subscript) and ast.unparse(target.value) == "metrics"):
        return set()
    if isinstance(target.slice, ast.Constant):
        return {target.slice.value}
    assert isinstance(target.slice, ast.JoinedStr), f"a metric's name that this test cannot read: {ast.unparse(target)}"
    template = ast.unparse(target.slice)
    return {eval(template, {"name": phase}) for phase in PHASES}


def test_docs_name_what_the_code_emits():
    assert documented((ROOT / "docs/metrics.md").read_text()) == emitted()


def test_scores_of_sweeps_are_what_the_code_emits():
    runs = [*(Run(task="any", algo=algo) for algo in ALGORITHMS), OfflineRun(data="any")]
    assert {name for run in runs for name in metric_names(run)} == emitted()


def test_emitted_sees_all_kinds():
    assert {"loss/policy", "episode/return_mean", "time/env_s", "time/env_s_max", "progress/updates"} <= emitted()


@pytest.mark.parametrize("text", ["| `loss/policy` | clipped |", "### `loss/policy`\n"])
def test_documented_reads_tables_and_headings(text):
    assert documented(text + "see `docs/x.md`, `make test`, `runs/`") == {"loss/policy"}
