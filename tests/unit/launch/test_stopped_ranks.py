"""`lockstep.train(run)`: the summary of a run that a signal stopped; what is refused leaves no file."""

import json
import signal

import pytest

from lockstep import train
from lockstep.errors import ConfigError, RunError
from lockstep.launch import train_ranks
from lockstep.record.run_dir import SUMMARY_FILE
from lockstep.run import Run


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGUSR1, signal.SIGHUP])
def test_a_signal_is_no_error(number, monkeypatch, tmp_path):
    def launch(command, *, run_dir, **_):
        (run_dir / SUMMARY_FILE).write_text(json.dumps({"status": "interrupted", "error": f"signal {number.name}"}))
        return 128 + number

    monkeypatch.setattr(train_ranks, "launch", launch)
    run = Run(task="lockstep/Cartpole-v0", device="cpu")
    assert train(run, ranks=2, run_dir=tmp_path / "run")["status"] == "interrupted"


def test_a_rank_that_a_signal_killed_is_an_error(monkeypatch, tmp_path):
    """The launcher's code looks like that of a signal to it."""

    def launch(command, *, run_dir, **_):
        (run_dir / SUMMARY_FILE).write_text(json.dumps({"status": "failed", "error": "rank 1 was killed by SIGTERM"}))
        return 128 + signal.SIGTERM

    monkeypatch.setattr(train_ranks, "launch", launch)
    with pytest.raises(RunError, match="the ranks ended with code 143"):
        train(Run(task="lockstep/Cartpole-v0", device="cpu"), ranks=2, run_dir=tmp_path / "run")


@pytest.mark.parametrize("other", ["run_dir", "init_from"])
@pytest.mark.parametrize("ranks", [None, 2])
def test_a_run_that_continues_takes_no_directory_and_no_start(other, ranks):
    """They were ignored."""
    with pytest.raises(ConfigError, match=f"resume=runs/a continues that run .*, and {other}=runs/b is of a new run"):
        train(resume="runs/a", ranks=ranks, **{other: "runs/b"})


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"num_minibatches": 3}, "num_minibatches=3 does not divide .*; use 2 or 4, or change num_steps"),
        ({"algo": "sac"}, "algo=sac"),
        ({"network.critic_hidden": [8], "network.shared": True}, "network.critic_hidden"),
    ],
)
@pytest.mark.parametrize("ranks", [None, 2])
def test_what_cannot_be_learned_is_refused_before_the_run_directory_is_made(changes, said, ranks, tmp_path):
    changes = {"num_steps": 8} | changes if "algo" not in changes else changes
    with pytest.raises(ConfigError, match=said):
        train(Run(task="CartPole-v1", device="cpu"), ranks=ranks, run_dir=tmp_path / "run", **changes)
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("counts", [{"ranks": "2"}, {"profile": "a"}])
def test_counts_of_other_types_are_refused(counts, tmp_path):
    with pytest.raises(
        ConfigError, match=f"{next(iter(counts))}='{next(iter(counts.values()))}' must be a whole number"
    ):
        train(Run(task="CartPole-v1"), run_dir=tmp_path / "run", **counts)
