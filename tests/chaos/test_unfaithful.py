"""A rank that takes another step than the others is caught in the same update and named, together with where it is."""

import re
import sys
from pathlib import Path

import pytest
from chaos_runs import TIMEOUT_S, folder_for, small

from lockstep.errors import RunError
from lockstep.launch.local import launch, spawn

pytestmark = pytest.mark.chaos

SCRIPT = str(Path(__file__).with_name("unfaithful.py"))


def run(folder, ranks, how, capfd):
    """The exit code and what was said."""
    folder_for(folder, small(check_every=1))
    (folder / "run").mkdir()
    (folder / "run" / "run.yaml").write_text((folder / "run.yaml").read_text())
    command = [
        sys.executable,
        SCRIPT,
        how,
        str(folder / "run" / "run.yaml"),
        "--run-dir",
        str(folder / "run"),
        "--started-by-lockstep",
    ]
    code = launch(command, ranks=ranks, run_dir=folder / "run", timeout_s=90)
    return code, capfd.readouterr().err


@pytest.mark.parametrize("ranks", [2, 4])
def test_a_rank_that_skips_average_gradients_once(tmp_path, capfd, ranks):
    code, said = run(tmp_path, ranks, "skip", capfd)
    assert code == 1, said
    assert "ranks are in different collectives" in said, said
    assert re.search(r"rank 1 is in (log|moments|check_equal)", said), said
    assert re.search(r"rank [023] is in average_gradients", said), said


@pytest.mark.parametrize("ranks", [2, 4])
def test_two_collectives_in_swapped_order(tmp_path, capfd, ranks):
    code, said = run(tmp_path, ranks, "swap", capfd)
    assert code == 1, said
    assert "ranks are in different collectives" in said, said
    assert re.search(r"rank 1 is in check_equal", said), said
    assert re.search(r"rank [023] is in log", said), said


def swapped(rank, shared_memory):
    """Two sums of the same size: without numbers and tags this gives wrong numbers in silence."""
    import torch

    from lockstep.torch.comm import Comm

    names = ["first", "second"] if rank != 1 else ["second", "first"]
    with Comm(timeout_s=TIMEOUT_S, shared_memory=shared_memory) as comm:
        return [comm.sum(torch.full((8,), float(len(name))), name).tolist() for name in names]


@pytest.mark.parametrize("ranks", [2, 4])
@pytest.mark.parametrize("shared_memory", [True, False])
def test_two_sums_of_one_size_in_swapped_order(ranks, shared_memory):
    with pytest.raises(RunError, match=r"ranks are in different collectives: rank \d is in (first|second)"):
        spawn(swapped, ranks, (shared_memory,), timeout_s=90)
