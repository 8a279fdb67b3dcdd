"""Ranks that somebody else started (torchrun, mpirun, srun): refusals reach every rank, each with its exit code."""

import json
import os
import subprocess
import sys

import pytest
from running import lines, small

from lockstep.launch.rank_environment import free_port
from lockstep.run import dump, load

BOUND_S = 60


def start(tmp_path, *arguments, **options):
    """`(code, stderr)` of 2 ranks of `lockstep train` with a small run."""
    (tmp_path / "run.yaml").write_text(dump(small("lockstep/Corridor-v0", total_steps=256)))
    return start_again(tmp_path, "run.yaml", *arguments, **options)


def start_again(tmp_path, *arguments, per_rank=((), ()), **variables):
    """`(code, stderr)` of 2 ranks of `lockstep train`, started as torchrun starts them."""
    clean = {k: v for k, v in os.environ.items() if not k.startswith(("LOCKSTEP_LAUNCHER", "TORCHELASTIC"))}
    common = clean | {
        "WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port()),
        "OMP_NUM_THREADS": "1", **variables,
    }  # fmt: skip
    ranks = [
        subprocess.Popen(
            [sys.executable, "-m", "lockstep.train", *arguments, *per_rank[rank]],
            env=common | {"RANK": str(rank), "LOCAL_RANK": str(rank)},
            cwd=tmp_path,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(2)
    ]
    try:
        return [(rank.wait(BOUND_S), rank.stderr.read()) for rank in ranks]
    finally:
        for rank in ranks:
            rank.kill()
            rank.communicate()


def one_line(said, *words):
    """Every rank says one line, and no traceback."""
    for code, text in said:
        found = [line for line in text.splitlines() if line.startswith("lockstep: error:")]
        assert code == 2, text
        assert len(found) == 1, text
        assert all(word in found[0] for word in words), text
        assert "Traceback" not in text


def test_ranks_join_and_each_has_its_log(tmp_path):
    said = start(
        tmp_path, "--headless", "--distributed", "--run-dir=out", per_rank=(("--local-rank=0",), ("--local-rank=1",))
    )
    assert [code for code, _ in said] == [0, 0], said
    assert {path.name for path in (tmp_path / "out" / "logs").iterdir()} >= {"rank_0.log", "rank_1.log"}
    assert len(lines(tmp_path / "out", "evaluations.jsonl")) == 1


def test_a_run_directory_that_cannot_be_written_is_refused_by_all(tmp_path):
    (tmp_path / "file").write_text("")
    one_line(start(tmp_path, "--run-dir=file/out"), "file")
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "thing").write_text("")
    one_line(start(tmp_path, "--run-dir=full"), "full")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["file", "full", "run.yaml"]


def test_unequal_commands_are_refused_by_all_and_leave_nothing(tmp_path):
    one_line(
        start(tmp_path, "--run-dir=out", per_rank=((), ("--seed=1",))),
        "rank 1 differs from rank 0 in seed (1 instead of 0)",
    )
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--set", "num_envs=15"], ["num_envs=15", "use 14 or 16"]),
        (["--set", "num_shards=1"], ["num_shards=1", "2 ranks"]),
        (["--ranks=3"], ["--ranks 3", "2 processes"]),
    ],
)
def test_what_cannot_be_is_refused_by_all(tmp_path, arguments, words):
    one_line(start(tmp_path, *arguments), *words)
    assert [path.name for path in tmp_path.iterdir()] == ["run.yaml"]


def test_all_ranks_go_on_with_a_run(tmp_path):
    assert [code for code, _ in start(tmp_path, "--run-dir=out", "--set=checkpoint_every=128")] == [0, 0]
    ends = [line["step"] for line in lines(tmp_path / "out", "evaluations.jsonl")]
    said = start_again(tmp_path, "--resume=out", "--set=total_steps=512", "--distributed")
    assert [code for code, _ in said] == [0, 0], said
    assert sum("note: total_steps is 512" in text for _, text in said) == 1
    assert load(tmp_path / "out" / "run.yaml").total_steps == 512
    summary = json.loads((tmp_path / "out" / "summary.json").read_text())
    assert (ends, summary["env_steps"], summary["resumed_from"]) == ([256], 512, "checkpoints/step_256")
    longer = ("--resume=out", "--set=total_steps=1024")
    one_line(start_again(tmp_path, *longer, "--max-restarts=3"), "torchrun restarts its own ranks")
    one_line(start_again(tmp_path, *longer, "--set=seed=5"), "seed=5")
    one_line(start_again(tmp_path, *longer, per_rank=((), ("--set=log_every=9",))), "rank 1 differs", "log_every (9 ")
    assert load(tmp_path / "out" / "run.yaml").log_every != 9
