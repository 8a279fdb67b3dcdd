"""The commands of the pages that train tasks of robot suites, or train with another library, typed with less to do."""

import os
import sys
from pathlib import Path

import pytest

sys.path.append(str(Path(__file__).parents[1] / "rules"))
from pages import CHINESE, PAGES, blocks, commands, missing_packages, name, needed_packages
from test_commands import run

pytestmark = pytest.mark.isaac
RESULTS = "results"  # folder of pages whose commands are long measurements
SUITES = {"isaaclab_tasks", "mjlab", "skrl", "rl_games", "rsl_rl"}


def suite_commands(page: Path) -> list[str]:
    return [command for command in commands(page) if SUITES & set(needed_packages(command))]


GUIDES = [page for page in PAGES if suite_commands(page) and CHINESE not in page.name and page.parent.name != RESULTS]


@pytest.mark.parametrize("page", GUIDES, ids=name)
def test_commands_of_robot_suites_run(page, tmp_path, monkeypatch):
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    monkeypatch.setenv("ISAACSIM_ASSET_ROOT", os.environ.get("ISAACSIM_ASSET_ROOT", str(Path(sys.prefix) / "assets")))
    typed = [command for command in suite_commands(page) if not missing_packages(command)]
    if not typed:
        pytest.skip(f"needs {', '.join(missing_packages(suite_commands(page)[0]))}")
    for block in blocks(page):
        if block.file:
            (tmp_path / block.file).write_text(block.body)
    for command in typed:
        printed = run(command, tmp_path)
        if "--ranks 2" in command or "--nproc_per_node=2" in command:
            assert "parameters equal on both ranks" in printed or "parameters are equal on all 2 ranks" in printed
