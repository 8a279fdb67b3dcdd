"""`lockstep scale` with runs of known times: efficiency, the split of its loss, resumption, refusals, and the page."""

import json
import shutil
import signal

import pytest

from lockstep.cli import main as cli
from lockstep.cli.scale import command
from lockstep.cli.scale.measurement import read_measurement
from lockstep.cli.scale.plan import Job, Plan, parse_ranks, run_of
from lockstep.distributed.timers import PHASES
from lockstep.record.run_dir import RunDir
from lockstep.record.summary import empty_summary
from lockstep.run import Run, override
from quick import others_slow

STEP_S, CALL_S, SYNC_S, WAIT_S = 0.01, 0.02, 0.03, 0.05
"""Seconds of an update for each environment of a rank, for whatever number of them, and for messages of several."""


def seconds_of(run, ranks):
    env = STEP_S * run.num_envs / ranks + CALL_S
    return dict.fromkeys(PHASES, 0.0) | {"env": env} | ({"sync": SYNC_S, "wait": WAIT_S} if ranks > 1 else {})


class Runs:
    """Stands in for training: writes what a run with known times would."""

    def __init__(self):
        self.made = []
        self.interrupt_at = self.fail = None

    def train(self, folder, job, run):
        if job.name == self.interrupt_at:
            return 130, int(signal.SIGINT)
        self.made.append(job.name)
        shutil.rmtree(folder / job.name, ignore_errors=True)
        if job.name == self.fail:
            command.log_path(folder, job).write_text("importing torch ...\nlockstep: error: the disk is full\n")
            return 1, 0
        batch = run.num_envs * run.algorithm.num_steps
        each = seconds_of(run, job.ranks)
        with RunDir.create(folder / job.name, run) as run_dir:
            for updates in range(run.log_every // batch, run.total_steps // batch + 1, run.log_every // batch):
                times = {f"time/{phase}_s": updates * value for phase, value in each.items()}
                line = {"progress/updates": float(updates), **times}
                run_dir.write_metrics(updates * batch, updates * sum(each.values()), line)
            ranks = [{"rank": rank, "host": "node", "device": "cpu", "wait_s": 0.0} for rank in range(job.ranks)]
            solved = {"solved_at_step": 4000 + job.number, "solved_at_s": 40.0 / job.ranks + job.number}
            ended = {"status": "finished", "world_size": job.ranks, "num_shards": job.ranks, "ranks": ranks}
            ended |= solved if job.mode == "return" and job.number < 2 else {}
            run_dir.write_summary(empty_summary(run) | ended | {"steps_per_second": batch / sum(each.values())})
        return 0, 0


@pytest.fixture
def runs(here, monkeypatch):
    made = Runs()
    monkeypatch.setattr(command, "_train", made.train)
    monkeypatch.setattr(command, "usable_cores", lambda: 2)
    return made


def scale(*words):
    return cli.main(["scale", *words])


def test_efficiency_and_losses_are_those_of_the_made_times(runs, here, capsys):
    assert scale("CartPole-v1", "--num-envs", "8", "--ranks", "1,2,4", "--run-dir", "s", "--repetitions", "2") == 0
    found = json.loads((here / "s" / "scale.json").read_text())
    base = STEP_S * 8 + CALL_S
    for mode, envs in (("weak", 8.0), ("strong", 4.0)):
        one = found["scaling"][mode][1]
        seconds = STEP_S * envs + CALL_S + SYNC_S + WAIT_S
        speed_up = base / seconds * (2 if mode == "weak" else 1)
        assert one["ranks"] == 2 and one["repetitions"] == 2
        assert one["speed_up"]["median"] == pytest.approx(speed_up)
        assert one["efficiency"]["low"] == pytest.approx(speed_up / 2)
        lost = one["lost"]
        assert lost["communication"] == pytest.approx(SYNC_S / seconds)
        assert lost["waiting"] == pytest.approx(WAIT_S / seconds)
        assert sum(lost.values()) == pytest.approx(1 - speed_up / 2)
    assert found["scaling"]["strong"][1]["lost"]["compute"] == pytest.approx(CALL_S / 2 / (0.06 + SYNC_S + WAIT_S))
    assert found["scaling"]["weak"][1]["lost"]["compute"] == pytest.approx(0)
    assert found["model"]["fitted_error"]["median"] < 0.05 and found["model"]["held_out_runs"] > 0
    printed = capsys.readouterr().out
    assert "warning: 4 ranks on 2 cores take turns" in printed
    assert "weak scaling: 8 environments per rank" in printed
    assert "of runs on numbers of ranks left out of the fit" in printed


def test_runs_of_a_repetition_are_in_turn_and_finished_ones_are_not_repeated(runs, here, capsys):
    words = ("CartPole-v1", "--ranks", "2,1", "--repetitions", "2", "--run-dir", "s")
    runs.interrupt_at = "strong_ranks_1_repetition_1"
    assert scale(*words) == 130
    first = ["strong_ranks_1_repetition_0", "weak_ranks_2_repetition_0", "strong_ranks_2_repetition_0"]
    assert runs.made == first
    out = capsys.readouterr().out
    assert (
        "continue with: lockstep scale s" in out
        and "repetition_0: done, " in out
        and "steps/s with the warm-up\n" in out
    )
    runs.interrupt_at = None
    assert scale("s") == 0
    assert runs.made == first + [name.replace("repetition_0", "repetition_1") for name in first]
    assert scale(*words) == 0 and len(runs.made) == 6  # the same command continues it, too
    assert scale(*words[:2], "1,4", *words[3:]) == 2
    assert "run_dir=s has a measurement with other settings" in capsys.readouterr().err


def test_time_to_a_return_counts_seeds_that_do_not_reach_it(runs, here, capsys):
    words = ("--ranks", "1,2", "--repetitions", "1", "--modes", "strong", "--run-dir", "s")
    assert scale("CartPole-v1", *words, "--return", "400", "--seeds", "0:3") == 0
    found = json.loads((here / "s" / "scale.json").read_text())["time_to_return"]
    assert [(one["ranks"], one["seeds"], one["reached"]) for one in found] == [(1, 3, 2), (2, 3, 2)]
    assert [one["seconds"]["median"] for one in found] == [40.5, 20.5]
    assert "return_ranks_2_seed_2: done, return not reached" in capsys.readouterr().out


def test_failed_run_is_reported_and_made_again(runs, here, capsys):
    runs.fail = "weak_ranks_2_repetition_0"
    words = ("CartPole-v1", "--ranks", "1,2", "--repetitions", "1", "--run-dir", "s")
    assert scale(*words) == 1
    printed = capsys.readouterr().out
    assert "weak_ranks_2_repetition_0 failed: the disk is full" in printed
    assert "make the failed runs again: lockstep scale s" in printed
    runs.fail = None
    assert scale("s") == 0
    assert runs.made.count("weak_ranks_2_repetition_0") == 2 and len(runs.made) == 4


def test_page_has_the_measurement(runs, here):
    words = ("--ranks", "1,2", "--repetitions", "2", "--run-dir", "s", "--return", "9", "--seeds", "0:2")
    assert scale("CartPole-v1", *words) == 0
    assert cli.main(["report", "s", "--html", "report.html"]) == 0
    page = (here / "report.html").read_text()
    for text in ("Speed-up by ranks", "Weak scaling: 16 environments per rank", "Time to a return of 9", "held out"):
        assert text in page, text
    assert page.index('id="scaling"') < page.index('id="task0"')
    assert cli.main(["report", ".", "--html", "above.html"]) == 0
    assert "Speed-up by ranks" in (here / "above.html").read_text()
    assert cli.main(["report", "s/strong_ranks_1_repetition_0", "--html", "one.html"]) == 0
    assert "Speed-up by ranks" not in (here / "one.html").read_text()


def test_returns_of_measured_runs_are_not_compared(runs, here):
    assert scale("CartPole-v1", "--ranks", "1,2", "--repetitions", "1", "--run-dir", "s") == 0
    assert cli.main(["report", "s", "--html", "report.html"]) == 0
    page = (here / "report.html").read_text()
    assert 'id="scaling"' in page and 'id="task0"' not in page
    assert "CartPole-v1: 3 runs" in page and "strong_ranks_2_repetition_0" in page


def test_log_line_that_was_cut_off_is_not_measured(runs, here):
    run, plan, job = Run(task="CartPole-v1"), Plan(ranks=(1, 2)), Job("strong", 1, 0)
    runs.train(here, job, run_of(run, plan, job))
    whole = read_measurement(here / job.name, run)
    with (here / job.name / "metrics.jsonl").open("a") as file:
        file.write('{"step": 99')
    assert whole is not None and read_measurement(here / job.name, run) == whole


def test_weak_scaling_keeps_the_work_of_a_rank():
    plan = Plan(ranks=(1, 4))
    sac = override(Run(task="Pendulum-v1", algo="sac"), {"num_envs": 8, "batch_size": 256, "updates_per_step": 1.0})
    weak = run_of(sac, plan, Job("weak", 4, 2))
    assert (weak.num_envs, weak.algorithm.batch_size, weak.algorithm.updates_per_step) == (32, 1024, 0.25)
    assert weak.algorithm.gradient_steps(32) == sac.algorithm.gradient_steps(8)
    assert weak.seed == sac.seed + 2 and weak.evaluate_every is None
    strong = run_of(sac, plan, Job("strong", 4, 0))
    assert (strong.num_envs, strong.algorithm.batch_size) == (8, 256)
    pinned = run_of(override(sac, {"num_shards": 8}), plan, Job("strong", 4, 0))
    assert pinned.evaluate_episodes == 8


def test_a_folder_without_a_measurement_is_named(capsys):
    assert scale("runs/nothing") == 2
    assert "--ranks is missing, and runs/nothing holds no measurement to continue;" in capsys.readouterr().err


def test_ranks_are_a_list_of_different_numbers():
    assert parse_ranks("4, 1,2") == (1, 2, 4)


@pytest.mark.parametrize(
    ("words", "error"),
    [
        (["--ranks", "2"], "--ranks 2 is a single number, with nothing to compare it with; give two or more: 1,2"),
        (["--ranks", "1"], "--ranks 1 is a single number, with nothing to compare it with; give two or more: 1,2"),
        (["--ranks", "1,1"], "--ranks 1,1 has a number twice"),
        (["--ranks", "1,auto"], "--ranks auto must be a list of numbers such as 1,2,4"),
        ([], "--ranks is missing"),
        (["--ranks", "1,2", "--modes", "up"], "--modes up must be weak, strong or weak,strong"),
        (["--ranks", "1,2", "--updates", "3"], "--updates 3 must be a number, at least 10"),
        (["--ranks", "1,2", "--return", "high"], "--return high must be a number"),
        (
            ["--ranks", "1,2", "--set", "total_steps=9"],
            "total_steps: the length of a measured run is that of --updates",
        ),
        (["--ranks", "1,2", "--max-iterations", "9"], "--max-iterations 9: the length of a measured run"),
        (
            ["--ranks", "1,2", "--set", "log_every=64"],
            "log_every=64: runs that measure the speed have a value of their",
        ),
        (["--ranks", "1,2", "--video"], "--video: runs that measure the speed have a value of their own; leave it out"),
        (["--ranks", "1,2", "--set", "stop_return=9"], "stop_return=9: runs that measure the speed never stop at a"),
        (["--ranks", "1,2", "--return", "9", "--set", "stop_return=8"], "--return 9 and stop_return=8 both say at"),
        (["--ranks", "1,2", "--return", "9", "--set", "stop_when_solved=0"], "--return 9 and stop_when_solved=0 both"),
        (["--ranks", "1,2", "--seeds", "0:2"], "--seeds 0:2 is for runs until a return"),
        (["--ranks", "1,3", "--num-envs", "8"], "the run on 3 ranks (strong scaling) cannot work: num_envs=8 does not"),
        (
            ["--ranks", "1,3", "--num-envs", "3", "--set", "num_steps=1"],
            "the run on 1 rank (strong scaling) cannot work",
        ),
        (["--ranks", "1,2", "--set", "num_shards=2"], "num_shards=2 fixes the shards"),
        (["--ranks", "1,4", "--modes", "strong", "--set", "num_shards=2"], "the run on 4 ranks (strong scaling)"),
        (["--ranks", "1,2", "--return", "9", "--set", "evaluate_every=null"], "use --set evaluate_every=N"),
        (["--ranks", "1,2", "--run-dir", "full"], "run_dir=full already holds files"),
    ],
)
def test_bad_input_is_refused_before_anything_starts(runs, here, capsys, words, error):
    (here / "full").mkdir()
    (here / "full" / "file").touch()
    assert scale("CartPole-v1", *words) == 2
    assert error in capsys.readouterr().err
    assert runs.made == [] and not (here / "runs").exists()


@pytest.mark.parametrize("setting", ["log_every=64", "evaluate_every=2048", "checkpoint_every=null"])
def test_runs_until_a_return_have_the_given_settings(here, setting):
    assert scale("CartPole-v1", "--ranks", "1,2", "--return", "9", "--set", setting, "--dry-run") == 0


@pytest.mark.parametrize(
    ("words", "flag"),
    others_slow(
        [
            (["--updates", "200"], "--updates 200"),
            (["--repetitions", "1"], "--repetitions 1"),
            (["--modes", "strong"], "--modes strong"),
            (["--seed", "7"], "--seed 7"),
            (["--set", "gamma=0.5"], "--set gamma=0.5"),
            (["--ml-framework", "jax"], "--ml-framework jax"),
        ],
        (["--updates", "200"], "--updates 200"),
        (["--set", "gamma=0.5"], "--set gamma=0.5"),
        several=True,
    ),
)
def test_an_earlier_measurement_keeps_its_plan_and_settings(runs, here, capsys, words, flag):
    assert scale("CartPole-v1", "--ranks", "1,2", "--run-dir", "one") == 0
    made = len(runs.made)
    assert scale("one", *words) == 2
    assert f"continues with its own plan and settings; leave out {flag}, or name a task" in capsys.readouterr().err
    assert scale("one", "--debug") == 0 and len(runs.made) == made


@pytest.mark.slow
@pytest.mark.parametrize("framework", ["torch", "jax"])
def test_real_runs_are_measured(here, framework):
    settings = ("--set", "num_steps=8", "--set", "hidden=[8]", "--ml-framework", framework)
    words = ("--num-envs", "8", "--ranks", "1,2", "--updates", "12", "--repetitions", "1", *settings)
    assert scale("CartPole-v1", *words, "--run-dir", "s") == 0
    found = json.loads((here / "s" / "scale.json").read_text())
    assert [one["ranks"] for one in found["scaling"]["weak"]] == [1, 2]
    for one in found["scaling"]["strong"]:
        assert sum(one["lost"].values()) == pytest.approx(1 - one["efficiency"]["median"])
    assert cli.main(["report", "s", "--html", "report.html"]) == 0
