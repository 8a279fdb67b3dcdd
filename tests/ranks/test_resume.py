"""A run that was cut short and resumed, on any number of ranks, ends as one that never stopped: `==` on everything."""

import json
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from running import ROBOTS, job, lines, slow_tests_selected, small, timeless, train_all

from lockstep.record import checkpoint
from lockstep.run import load
from quick import others_slow

TASKS = {
    "CartPole-v1": {"normalize_observation": True, "learning_rate_schedule": "linear"},
    "lockstep/Reach-v0": {**ROBOTS, "env.kwargs.max_episode_steps": 11},
    "lockstep/Match-v0": {"learning_rate_schedule": "adaptive", "target_kl": 0.02},
}
QUICK = ("CartPole-v1", "lockstep/Reach-v0")


def pinned(task, **changes):
    every = {"checkpoint_every": 4 * 128, "evaluate_every": 6 * 128, "log_every": 3 * 128, "num_shards": 4}
    return small(task, **{**every, **TASKS.get(task, {}), **changes})


@pytest.fixture(scope="module")
def cut(request, tmp_path_factory):
    """For each task of the selected tests: a run that never stopped and one that raised in update 12, on 2 ranks."""
    folder, jobs = tmp_path_factory.mktemp("resume"), {}
    tasks = TASKS if slow_tests_selected(request) else QUICK
    for task in tasks:
        name = task.rpartition("/")[2]
        jobs[f"{task} whole"] = job(pinned(task), folder, f"{name}-whole")
        jobs[f"{task} cut"] = job(pinned(task), folder, f"{name}-cut", fails_at=11)
    told = train_all(2, jobs)
    assert all("the test ends this run" in outcome.error for task in tasks for outcome in told[f"{task} cut"])
    return {task: (Path(jobs[f"{task} whole"].folder), Path(jobs[f"{task} cut"].folder)) for task in tasks}


@pytest.mark.parametrize("ranks", others_slow([1, 3, 4], 1))
def test_resumed_on_any_number_of_ranks_it_ends_as_if_never_stopped(cut, ranks, tmp_path):
    jobs = {}
    for task, (_, folder) in cut.items():
        copy = shutil.copytree(folder, tmp_path / folder.name)
        jobs[task] = job(pinned(task), tmp_path, "unused", resume=str(copy))
    told = train_all(ranks, jobs)
    for task, (whole, _) in cut.items():
        expected = json.loads((whole / "summary.json").read_text())
        summary, resumed = told[task][0].summary, jobs[task].resume
        assert told[task][0].error == ""
        assert summary["resumed_from"] is not None  # which one depends on the disk; nothing below does
        assert summary["params_fingerprint"] == expected["params_fingerprint"]
        for key in ("env_steps", "updates", "episodes", "return_mean_100", "eval_return_mean", "status"):
            assert summary[key] == expected[key], key
        assert timeless(resumed) == timeless(whole)
        assert lines(resumed, "evaluations.jsonl") == lines(whole, "evaluations.jsonl")
        assert sum(rank["episodes"] for rank in summary["ranks"]) == summary["episodes"]
        times = [line["time_s"] for line in lines(resumed)]
        assert times == sorted(times)


@pytest.mark.slow
def test_resumed_twice_and_from_an_older_checkpoint(cut, tmp_path):
    task = "CartPole-v1"
    whole, folder = cut[task]
    copy = shutil.copytree(folder, tmp_path / "copy")
    train_all(3, {"again": job(pinned(task), tmp_path, "unused", resume=str(copy), fails_at=7)})
    older = str(checkpoint.find(copy)[-1])
    told = train_all(2, {"end": job(pinned(task), tmp_path, "unused", resume=older)})["end"][0]
    assert told.summary["resumed_from"] == f"checkpoints/{Path(older).name}"
    assert told.summary["params_fingerprint"] == json.loads((whole / "summary.json").read_text())["params_fingerprint"]
    assert timeless(str(copy)) == timeless(str(whole))


def test_a_run_without_checkpoint_begins_anew(tmp_path):
    run = pinned("CartPole-v1", checkpoint_every=None)
    told = train_all(2, {"whole": job(run, tmp_path, "whole"), "cut": job(run, tmp_path, "cut", fails_at=5)})
    assert lines(str(tmp_path / "cut")) != []
    again = train_all(1, {"cut": job(run, tmp_path, "unused", resume=str(tmp_path / "cut"))})["cut"][0].summary
    assert again["resumed_from"] is None
    assert again["params_fingerprint"] == told["whole"][0].summary["params_fingerprint"]
    assert timeless(str(tmp_path / "cut")) == timeless(str(tmp_path / "whole"))


def test_given_first_parameters_are_kept_before_the_first_step(cut, tmp_path):
    policy = str(cut["CartPole-v1"][0] / "policy.safetensors")
    run = pinned("CartPole-v1")
    begin = {"init_from": (policy, policy)}
    told = train_all(
        2, {"whole": job(run, tmp_path, "whole", **begin), "cut": job(run, tmp_path, "cut", fails_at=0, **begin)}
    )
    again = train_all(1, {"cut": job(run, tmp_path, "unused", resume=str(tmp_path / "cut"))})["cut"][0].summary
    assert again["resumed_from"] == "checkpoints/step_0"
    assert again["params_fingerprint"] == told["whole"][0].summary["params_fingerprint"]


def test_a_run_that_is_not_pinned_keeps_the_shards_it_began_with(tmp_path):
    run = pinned("CartPole-v1", num_shards=None)
    train_all(2, {"cut": job(run, tmp_path, "cut", fails_at=9)})
    told = train_all(1, {"end": job(run, tmp_path, "unused", resume=str(tmp_path / "cut"))})["end"][0]
    assert (told.summary["num_shards"], told.summary["world_size"], told.summary["env_steps"]) == (2, 1, 2560)
    longer = pinned("CartPole-v1", num_shards=None, total_steps=5120)
    more = train_all(3, {"more": job(longer, tmp_path, "unused", resume=str(tmp_path / "cut"))})["more"]
    assert all("num_shards=2 is fewer than the 3 ranks" in outcome.error for outcome in more)


def test_environments_that_cannot_be_saved_begin_anew_and_the_run_says_so_once(tmp_path, capfd):
    run = pinned("rank_envs:Ticking", total_steps=12 * 128)
    train_all(2, {"cut": job(run, tmp_path, "cut", fails_at=9)})
    capfd.readouterr()
    told = train_all(2, {"end": job(run, tmp_path, "unused", resume=str(tmp_path / "cut"))})["end"]
    said = capfd.readouterr().out
    assert said.count("environments of rank_envs:Ticking cannot be saved: they begin new episodes") == 1
    assert told[0].summary["status"] == "finished"
    assert told[0].summary["env_steps"] == 12 * 128


def test_more_steps_are_added_to_a_finished_run(tmp_path):
    run = pinned("CartPole-v1", learning_rate_schedule="constant", total_steps=10 * 128)
    longer = pinned("CartPole-v1", learning_rate_schedule="constant")
    told = train_all(2, {"short": job(run, tmp_path, "short"), "long": job(longer, tmp_path, "long")})
    same = train_all(1, {"same": job(run, tmp_path, "unused", resume=str(tmp_path / "short"))})["same"][0].summary
    assert same["params_fingerprint"] == told["short"][0].summary["params_fingerprint"]
    assert same["env_steps"] == 1280
    last = lines(str(tmp_path / "short"), "evaluations.jsonl")[-1]
    assert last["step"] == 1280, "of the final parameters, outside the period"
    more = train_all(1, {"more": job(longer, tmp_path, "unused", resume=str(tmp_path / "short"))})["more"][0].summary
    assert more["params_fingerprint"] == told["long"][0].summary["params_fingerprint"]
    assert timeless(str(tmp_path / "short")) == timeless(str(tmp_path / "long"))
    assert last in lines(str(tmp_path / "short"), "evaluations.jsonl")
    assert load(tmp_path / "short" / "run.yaml") == longer


def test_a_signal_cuts_an_evaluation_short_and_the_resumed_run_begins_with_it(tmp_path):
    whole = pinned("rank_envs:Ringing", total_steps=9 * 128)
    rung = pinned("rank_envs:Ringing", total_steps=9 * 128, **{"env.kwargs.mark": str(tmp_path / "mark")})
    told = train_all(2, {"whole": job(whole, tmp_path, "whole"), "cut": job(rung, tmp_path, "cut")})
    stopped = [outcome.summary for outcome in told["cut"]]  # one rank was asked, both stop
    assert [(s["status"], s["error"], s["env_steps"]) for s in stopped] == [
        ("interrupted", "stopped by SIGTERM", 6 * 128)
    ] * 2
    assert not (tmp_path / "cut" / "evaluations.jsonl").exists()
    again = train_all(1, {"cut": job(rung, tmp_path, "unused", resume=str(tmp_path / "cut"))})["cut"][0].summary
    assert again["resumed_from"] == f"checkpoints/step_{6 * 128}"
    assert again["params_fingerprint"] == told["whole"][0].summary["params_fingerprint"]
    assert timeless(str(tmp_path / "cut")) == timeless(str(tmp_path / "whole"))
    assert lines(str(tmp_path / "cut"), "evaluations.jsonl") == lines(str(tmp_path / "whole"), "evaluations.jsonl")


def command(*more):
    counts = {"num_envs": 16, "num_steps": 8, "num_minibatches": 2, "num_shards": 4, "total_steps": 6400}
    counts |= {"num_epochs": 2, "log_every": 500, "evaluate_every": 2500, "evaluate_episodes": 4}
    chosen = {**counts, "checkpoint_every": "null", "stop_when_solved": "false"}
    args = [word for name, value in chosen.items() for word in ("--set", f"{name}={value}")]
    return [sys.executable, "-m", "lockstep.cli", "train", "CartPole-v1", *args, *more]


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory):
    folder = tmp_path_factory.mktemp("undisturbed") / "run"
    subprocess.run(command("--run-dir", folder), check=True, capture_output=True, timeout=120)
    return folder


@pytest.mark.parametrize(
    "number",
    [
        pytest.param(signal.SIGTERM, id="SIGTERM"),
        pytest.param(signal.SIGINT, id="SIGINT", marks=pytest.mark.slow),
        pytest.param(signal.SIGUSR1, id="SIGUSR1", marks=pytest.mark.slow),
        pytest.param(signal.SIGHUP, id="SIGHUP", marks=pytest.mark.slow),
    ],
)
def test_a_signal_leaves_a_checkpoint_from_which_the_run_goes_on_exactly(undisturbed, number, tmp_path):
    cut = tmp_path / "cut"
    process = subprocess.Popen(
        command("--ranks", "2", "--run-dir", cut), stdout=subprocess.PIPE, stderr=subprocess.STDOUT
    )
    while not (cut / "metrics.jsonl").exists() or len((cut / "metrics.jsonl").read_text().splitlines()) < 3:
        assert process.poll() is None, process.communicate()[0].decode()
        time.sleep(0.02)
    asked = time.monotonic()
    process.send_signal(number)
    said = process.communicate(timeout=30)[0].decode()
    assert time.monotonic() - asked < 10
    assert process.returncode == 128 + number, said
    assert "continue with: lockstep train --resume" in said
    summary = json.loads((cut / "summary.json").read_text())
    assert summary["status"] == "interrupted"
    assert summary["env_steps"] < 6400
    assert {path.name for path in (cut / "checkpoints").iterdir()} == {"LATEST", f"step_{summary['env_steps']}"}
    again = [sys.executable, "-m", "lockstep.cli", "train", "--resume", cut, "--ranks", "1"]
    done = subprocess.run(again, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    ends = [json.loads((folder / "summary.json").read_text()) for folder in (undisturbed, cut)]
    assert ends[0]["params_fingerprint"] == ends[1]["params_fingerprint"]
    assert ends[1]["resumed_from"] == f"checkpoints/step_{summary['env_steps']}"
    assert timeless(str(cut)) == timeless(str(undisturbed))
    assert lines(str(cut), "evaluations.jsonl") == lines(str(undisturbed), "evaluations.jsonl")
