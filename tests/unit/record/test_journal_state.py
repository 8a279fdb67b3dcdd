"""A journal that goes on from a saved state writes what the one that never stopped would have written."""

import json

import numpy as np
import pytest

from lockstep.distributed.timers import PHASES
from lockstep.errors import RunError
from lockstep.record.checkpoint import read_state, write_state
from lockstep.record.journal import Journal
from lockstep.record.progress import Progress
from lockstep.record.run_dir import RunDir
from lockstep.run import Run, override
from lockstep.world import World

RUN = Run(task="CartPole-v1")
NO_PHASES = dict.fromkeys(PHASES, 0.0)


@pytest.fixture
def journal(tmp_path):
    opened = []

    def open_one(name, run=RUN):
        run_dir = RunDir.join(tmp_path / name) if (tmp_path / name).exists() else RunDir.create(tmp_path / name, run)
        opened.append(Journal(run, World(), run_dir, started_by_lockstep=True))
        return opened[-1]

    yield open_one
    for one in opened:
        one.close()


def rollout(one, progress, returns):
    progress.updates += 1
    progress.env_steps += 10
    progress.episodes += len(returns)
    one.episodes[0].add(progress.updates, len(returns), sum(returns))
    one.add_episodes(np.array([len(returns), sum(returns), 2.0 * len(returns)]))


def log(one, progress):
    one.log(progress, {}, one.rows(NO_PHASES, 0.5 * progress.updates))


def evaluate(one, progress, mean):
    return one.record_evaluation(progress, [mean, mean], [3, 3], 9.0, 0.5 * progress.updates)


def first_half(one, progress):
    rollout(one, progress, [1.0, 2.0])
    log(one, progress)
    assert evaluate(one, progress, 5.0)
    rollout(one, progress, [4.0])  # not told yet: neither in a line nor among the recent


def second_half(one, progress):
    rollout(one, progress, [8.0, 16.0])
    log(one, progress)
    best = [evaluate(one, progress, 4.0), evaluate(one, progress, 10.0)]
    return best, {key: value for key, value in one.summary.items() if key.startswith(("eval", "solved"))}


def written(tmp_path, name, file="metrics.jsonl"):
    return [json.loads(line) for line in (tmp_path / name / file).read_text().splitlines()]


def test_what_was_saved_between_two_lines_is_in_the_next(journal, tmp_path):
    whole, progress = journal("whole"), Progress(100)
    first_half(whole, progress)
    expected = second_half(whole, progress)

    cut, progress = journal("cut"), Progress(100)
    first_half(cut, progress)
    parts = {"journal": cut.state(), "episodes": cut.episodes[0].state()}
    parts = read_state(tmp_path / "state", write_state(tmp_path / "state", parts))
    saved = Progress(**progress.state())
    second_half(cut, progress)  # which nobody will know of
    cut.close()

    resumed = journal("cut")
    resumed.restore(parts["journal"])
    resumed.episodes[0].restore(parts["episodes"])
    resumed.resume()
    assert len(written(tmp_path, "cut")) == 1, "lines of steps that are taken anew stay"
    found = second_half(resumed, saved)
    assert written(tmp_path, "cut") == written(tmp_path, "whole")
    assert written(tmp_path, "cut", "evaluations.jsonl") == written(tmp_path, "whole", "evaluations.jsonl")
    assert found == expected
    ranks = written(tmp_path, "cut", "ranks.jsonl")
    assert [(line["step"], line["time_s"], set(line["phases_s"])) for line in ranks] == [
        (10, 0.5, set(PHASES)),
        (30, 1.5, set(PHASES)),
    ]
    assert all(len(line["memory"]) == 1 and line["memory"][0] > 1 << 20 for line in ranks)
    line = written(tmp_path, "cut")[1]
    assert line["episode/count"] == 3
    assert line["episode/return_mean"] == pytest.approx((4 + 8 + 16) / 3)
    assert line["episode/return_mean_100"] == pytest.approx((1 + 2 + 4 + 8 + 16) / 5)
    assert expected[0] == [False, True]
    assert resumed.episodes[0].count == 5


def test_a_checkpoint_of_an_older_version_has_each_episode_by_itself(journal, tmp_path):
    one, progress = journal("older"), Progress(100)
    one.restore(one.state() | {"recent": [1.0, 2.0]})
    one.episodes[0].restore({"count": 3, "new": [[0, 4.0]]})
    log(one, progress)
    assert written(tmp_path, "older")[0]["episode/return_mean_100"] == pytest.approx((1 + 2 + 4) / 3)


def test_line_of_gpus_has_their_memory(journal, tmp_path, capsys):
    one, progress = journal("gpu"), Progress(100)
    rollout(one, progress, [1.0])
    one.log(progress, {}, one.rows(NO_PHASES, 0.5, device_memory=3 << 29))
    assert written(tmp_path, "gpu", "ranks.jsonl")[0]["device_memory"] == [3 << 29]
    assert "GPU 1.5 GiB" in capsys.readouterr().out


def test_the_speed_without_gradient_steps_is_no_eta(journal, capsys):
    """A replay is filled, at the start of a run or when it is resumed without the one it had."""
    one, progress = journal("eta", override(RUN, {"algo": "dqn"})), Progress(100)
    for metrics in ({}, {"optim/learning_rate": 1e-3}, {"optim/learning_rate": 1e-3}, {}):
        rollout(one, progress, [1.0])
        one.log(progress, metrics, one.rows(NO_PHASES, 0.5))
    filling, beginning, learning, filling_again = (
        line for line in capsys.readouterr().out.splitlines() if " steps/s" in line
    )
    assert "ETA" not in filling
    assert "ETA" not in beginning, "some of its steps only filled the replay"
    assert "ETA" in learning
    assert "ETA" not in filling_again


def test_an_algorithm_without_replay_has_an_eta_whatever_its_metrics(journal, capsys):
    one, progress = journal("own_metrics"), Progress(100)
    rollout(one, progress, [1.0])
    one.log(progress, {"loss/policy": 0.5}, one.rows(NO_PHASES, 0.5))
    assert "ETA" in capsys.readouterr().out


def test_a_run_whose_gradient_steps_are_all_left_out_says_so_once(journal, capsys):
    one, progress = journal("skips"), Progress(100)
    for skipped in (0.5, 1.0, 1.0):
        rollout(one, progress, [1.0])
        one.log(progress, {"optim/skipped": skipped}, one.rows(NO_PHASES, 0.5 * progress.updates))
    said = capsys.readouterr()
    assert (said.out + said.err).count("warning: every gradient step before step 20 was left out") == 1
    assert (said.out + said.err).count("was left out") == 1


def test_a_warning_of_what_was_not_written_names_the_run_and_the_reason(journal, tmp_path, capsys):
    one = journal("full")

    def fail(error):
        raise error

    assert one.write_or_warn(lambda: None)
    assert not one.write_or_warn(lambda: fail(OSError(28, "No space left on device")))
    assert not one.write_or_warn(lambda: fail(RunError("video.gif could not be drawn")))
    first, second = (line for line in capsys.readouterr().out.splitlines() if "warning: " in line)
    assert first.endswith(f"warning: a file in {tmp_path / 'full'} could not be written (No space left on device)")
    assert second.endswith("warning: video.gif could not be drawn")
