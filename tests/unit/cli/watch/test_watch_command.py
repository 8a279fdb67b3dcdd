"""`lockstep watch` on made run directories: frames, keys, and that nothing is changed."""

import io
import json
import os
import pty
import select
import subprocess
import sys
import time
from pathlib import Path

import pytest
from rich.console import Console

from lockstep.cli import main as cli
from lockstep.cli.runs import list_run
from lockstep.cli.watch import command
from lockstep.cli.watch.chart import draw
from lockstep.cli.watch.frame import frame
from lockstep.cli.watch.watched_run import WatchedRun
from lockstep.distributed.timers import PHASES
from lockstep.errors import ConfigError
from lockstep.record.run_dir import RunDir, lock_run_dir
from lockstep.record.text import compact
from lockstep.run import Run, override

RUN = Run(task="CartPole-v1", num_envs=8, total_steps=100_000, seed=3)
WAITS = (0.5, 0.02, 0.4)
"""Share of the time that each rank waits: the second is the slowest."""


def phases(elapsed):
    """Seconds of each phase: waiting and learning only."""
    spent = {name: [0.0] * len(WAITS) for name in PHASES}
    return spent | {"wait": [elapsed * w for w in WAITS], "learn": [elapsed * (1 - w) for w in WAITS]}


@pytest.fixture
def run_dir(tmp_path, monkeypatch):
    """A run of three ranks that is in progress: 20 lines, an evaluation, two checkpoints."""
    monkeypatch.chdir(tmp_path)
    made = RunDir.create("runs/mine", RUN)
    for i in range(1, 21):
        metrics = {"loss/value": 1 / i, "time/steps_per_second": 2000.0, "episode/return_mean_100": 5.0 * i}
        made.write_metrics(1000 * i, float(i), metrics)
        made.write_ranks(1000 * i, float(i), phases(float(i)), [300 << 20, 310 << 20, 320 << 20])
    made.write_evaluation(10_000, [40.0, 60.0], [40, 60])
    for step in (10_000, 20_000):
        (made.path / "checkpoints" / f"step_{step}").mkdir(parents=True)
    hosts = [{"host": "alpha", "ranks": [0]}, {"host": "beta", "ranks": [1, 2]}]
    (made.path / "preflight.json").write_text(json.dumps({"world_size": 3, "hosts": hosts}))
    lock = lock_run_dir(made.path)
    yield made
    os.close(lock)
    made.close()


def text_of(path, name=None, *, width=90, height=30, by_seconds=False):
    run = WatchedRun(path)
    run.update()
    console = Console(file=io.StringIO(), width=width)
    console.print(frame(run, name, width, height, by_seconds=by_seconds, keys=True))
    return console.file.getvalue()


def test_a_checkpoint_tells_steps_beyond_the_last_line(run_dir):
    assert "20 000 / 100 000 steps (20%)" in text_of(run_dir.path)
    (run_dir.path / "checkpoints" / "LATEST").write_text("step_24000\n")
    assert "24 000 / 100 000 steps (24%)" in text_of(run_dir.path)
    assert list_run(run_dir.path).steps == 24_000
    (run_dir.path / "metrics.jsonl").unlink()
    assert list_run(run_dir.path).steps == 24_000, "before the first line"


def test_frame_of_a_run_on_logged_data_has_its_estimate(run_dir):
    run_dir.write_metrics(21_000, 21.0, {"estimate/weighted_sequential_dr": 12.5})
    assert text_of(run_dir.path, width=120).splitlines()[3].endswith("   estimate from logged data 12.50")


def test_frame_of_a_run_in_progress(run_dir):
    shown = text_of(run_dir.path)
    lines = shown.splitlines()
    assert lines[0].split() == ["runs/mine", "running"]
    assert lines[1] == "CartPole-v1, ppo, torch, 3 ranks, seed 3"
    assert lines[2] == "20 000 / 100 000 steps (20%)   2 000 steps/s   20 s of training   ETA 1 min 20 s"
    assert lines[3] == "evaluation at step 10 000: 50.00 over 2 episodes   training return 100.0"
    assert "episode/return_mean_100: 100.0 (2 of 4)" in shown  # one evaluation is no curve yet
    rows = [line.split() for line in lines if line.strip().startswith(("0  ", "1  ", "2  "))]
    assert rows == [
        ["0", "alpha", "50%", "50%", "300", "MiB"],
        ["1", "beta", "98%", "2%", "310", "MiB"],
        ["2", "beta", "60%", "40%", "320", "MiB"],
    ]
    assert "slowest: rank 1; it waits 2% of the time, others 45%" in shown
    assert "checkpoints: 2, the newest at step 20 000, 0 s ago" in shown
    assert len(lines) <= 30 and max(map(len, lines)) <= 90


def test_a_curve_is_chosen_by_name_and_drawn_against_seconds(run_dir):
    shown = text_of(run_dir.path, "loss/value", by_seconds=True)
    assert "loss/value: 0.05000 (4 of 4)" in shown and "20 s" in shown
    assert "1.000 ┤" in shown and "0.05000 ┤" in shown


def test_a_metric_of_few_lines_stays_a_curve(run_dir, capsys):
    """As an estimate that is made once in many lines."""
    name = "estimate/weighted_sequential_dr"
    for i in range(21, 390):
        run_dir.write_metrics(1000 * i, float(i), {"loss/value": 1 / i} | ({name: 0.01 * i} if i % 100 == 0 else {}))
    run = WatchedRun(run_dir.path)
    run.update()
    assert name in run.names() and run.curve(name).steps == [100_000, 200_000, 300_000]
    assert cli.main(["watch", str(run_dir.path), "--once", "--metric", name]) == 0
    assert f"{name}: 3.000" in capsys.readouterr().out


def test_curves_lose_the_steps_that_a_resumed_run_makes_again(run_dir):
    run = WatchedRun(run_dir.path)
    run.update()
    run_dir.rewind(15_000, 10_000)
    for step in range(16_000, 24_000, 1000):
        run_dir.write_metrics(step, step / 1000, {"loss/policy": 2.5})
    run.update()
    assert run.curve("loss/value").steps == [*range(1000, 16_000, 1000)]
    assert run.curve("loss/policy").steps == [*range(16_000, 24_000, 1000)]


def eta_of(path, monkeypatch, run, lines):
    """The ETA in seconds after each of the lines: step, seconds and metrics."""
    monkeypatch.chdir(path)
    made, found = RunDir.create("runs/eta", run), []
    lock = lock_run_dir(made.path)
    watched = WatchedRun(made.path)
    for step, elapsed, metrics in lines:
        made.write_metrics(step, elapsed, metrics)
        watched.update()
        found.append(watched.eta_s)
    os.close(lock)
    made.close()
    return found


def test_eta_is_from_the_speed_of_the_last_lines_without_the_first(tmp_path, monkeypatch):
    slower = [(1000 * i, 60.0 + i + (i > 5) * (i - 5), {}) for i in range(1, 18)]  # 1 s per 1000 steps, later 2 s
    found = eta_of(tmp_path, monkeypatch, RUN, slower)
    assert found[0] is None, "the first line has compilation"
    assert found[1] == pytest.approx(98.0)
    assert found[-1] == pytest.approx(2 * 83.0), "of lines that are long past"


def test_no_eta_while_a_replay_is_filled(tmp_path, monkeypatch):
    run = override(RUN, {"algo": "dqn", "learning_starts": 2000})
    learned = {"optim/learning_rate": 1e-3}
    # The gradient step at 2000 does not make the steps before it ones that learn. A resumed run fills another replay.
    lines = [(1000, 1.0, {}), (2000, 2.0, learned), (3000, 12.0, learned), (4000, 13.0, {}), (5000, 14.0, learned)]
    found = eta_of(tmp_path, monkeypatch, run, [*lines, (6000, 34.0, learned)])
    assert found == [None, None, pytest.approx(970.0), None, None, pytest.approx(1880.0)]


def test_what_is_written_later_is_shown_later(run_dir):
    run = WatchedRun(run_dir.path)
    run.update()
    run_dir.write_metrics(21_000, 21.0, {"loss/value": 0.5})
    run_dir.write_evaluation(21_000, [80.0], [80])
    run.update()
    assert (run.step, run.last_evaluation, run.curve("evaluation return").seconds) == (
        21_000,
        (21_000, 80.0, 1),
        [10, 21],
    )
    assert run.first_name() == "evaluation return"


def test_phases_after_a_resumed_start_are_those_since_it(run_dir):
    run_dir.write_ranks(21_000, 21.0, {name: [0.0, 0.0, 0.0] for name in PHASES} | {"env": [1.0, 1.0, 1.0]}, [0, 0, 0])
    run = WatchedRun(run_dir.path)
    run.update()
    assert [one.shares["env"] for one in run.rank_times()] == [1.0, 1.0, 1.0]
    assert run.slowest(run.rank_times()) is None


def test_run_that_begins_later_ends_and_fails(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    path = Path("runs/later")
    assert "runs/later: waiting for the run to begin" in text_of(path)
    made = RunDir.create(path, RUN)
    assert "no metrics yet" in text_of(path) and "cut short" in text_of(path)
    lock = lock_run_dir(path)
    assert "running" in text_of(path)
    os.close(lock)
    made.write_summary({"status": "failed", "error": "rank 1: out of\nmemory", "env_steps": 500, "world_size": 2})
    assert "failed" in text_of(path) and "rank 1: out of memory" in text_of(path)
    made.write_summary({"status": "solved", "env_steps": 900, "solved_at_step": 800, "world_size": 2})
    shown = text_of(path)
    assert "solved at step 800" in shown and "900 / 100 000" in shown and "ETA" not in shown


def test_evaluation_may_have_episodes_without_a_return(run_dir):
    run_dir.write_evaluation(12_000, [float("nan"), float("nan")], [1, 1])
    run_dir.write_evaluation(15_000, [float("nan"), 70.0], [1, 1])
    shown = text_of(run_dir.path, "evaluation return")
    assert "evaluation at step 15 000: 70.00 over 2 episodes" in shown and "evaluation return: 70.00" in shown


def test_damaged_lines_and_foreign_files_are_skipped(run_dir):
    (run_dir.path / "preflight.json").write_text(json.dumps({"hosts": [{"ranks": [0]}, 3, {"host": 1}]}))
    with (run_dir.path / "metrics.jsonl").open("a") as file:
        file.write('{"loss/value": 1.0}\n{"step": 21000, "time_s": NaN, "loss/value": 1.0}\n{"step": "x"}\n')
    with (run_dir.path / "evaluations.jsonl").open("a") as file:
        file.write('{"returns": [1.0]}\n{"step": 21000, "returns": [1e308, 1e308]}\n{"step": 1, "returns": {"a": 1}}\n')
    with (run_dir.path / "ranks.jsonl").open("a") as file:
        file.write('{"phases_s": {"env": [1.0, 1.0, 1.0]}}\n{"phases_s": {"env": 1}, "memory": 3}\n')
    (run_dir.path / "summary.json").write_text('{"solved_at_step": "soon", "world_size": "many", "env_steps": "abc"}')
    for name in ("loss/value", "evaluation return"):
        for by_seconds in (False, True):
            shown = text_of(run_dir.path, name, by_seconds=by_seconds)
            assert "3 ranks" in shown and "slowest: rank 1" in shown and "running" in shown
    run = WatchedRun(run_dir.path)
    run.update()
    assert run.curve("loss/value").values == [1 / i for i in range(1, 21)]


def test_each_device_of_a_process_is_a_rank(tmp_path):
    path = RunDir.create(tmp_path / "run", override(RUN, {"ml_framework": "jax", "devices_per_process": 2})).path
    with RunDir.join(path) as made:
        made.write_metrics(1000, 1.0, {"loss/value": 1.0})
        made.write_ranks(1000, 1.0, phases(1.0), [1 << 20] * 3)
    shown = text_of(path)
    assert "CartPole-v1, ppo, jax, 6 ranks, seed 3" in shown
    assert "process  learn" in shown and "slowest: process 1; it waits" in shown


def test_many_ranks_are_cut_to_those_that_wait_least(run_dir):
    spent = {name: [0.0] * 40 for name in PHASES}
    waits = [0.5 + 0.01 * (i % 7) for i in range(40)]
    run_dir.write_ranks(22_000, 22.0, spent | {"wait": waits, "learn": [1 - w for w in waits]}, [1 << 20] * 40)
    shown = text_of(run_dir.path, height=40)
    assert "8 of 40 ranks, those that wait least" in shown


def test_narrow_screen_shows_the_largest_phases_in_full(run_dir):
    def heads(width):
        lines = text_of(run_dir.path, width=width).splitlines()
        return next(line.split() for line in lines if line.lstrip().startswith("rank "))

    wide, narrow = heads(90), heads(30)
    assert narrow[-1] == "memory" and set(narrow) < set(wide) and "…" not in "".join(narrow)
    assert "learn" in narrow and "wait" not in narrow


@pytest.mark.parametrize(("width", "height"), [(60, 18), (80, 24), (100, 30), (60, 26)])
def test_frame_fits_the_screen_though_its_lines_wrap(run_dir, width, height):
    shown = text_of(run_dir.path, width=width, height=height)
    assert len(shown.splitlines()) <= height
    assert "checkpoints: 2" in shown and "q quit" in shown
    assert ("\u2524" in shown) == (height > 20)  # without room for a chart, its last value alone
    assert "evaluation return: 50.00" in shown or "episode/return_mean_100: 100.0" in shown


def test_memory_of_gpus_is_shown(run_dir):
    run_dir.write_ranks(21_000, 21.0, phases(21.0), [300 << 20] * 3, [7000 << 20, 7100 << 20, 7200 << 20])
    head, *rows = text_of(run_dir.path).partition("rank  ")[2].splitlines()[:4]
    assert head.split()[-2:] == ["memory", "GPU"]
    assert [row.split()[-4:] for row in rows] == [["300", "MiB", f"{7000 + 100 * i}", "MiB"] for i in range(3)]


def test_once_prints_one_frame_and_changes_nothing(run_dir, capsys):
    def state():
        return {path: (path.stat().st_mtime_ns, path.stat().st_size) for path in sorted(run_dir.path.rglob("*"))}

    before = state()
    assert cli.main(["watch", "runs/mine", "--once", "--metric", "loss/value"]) == 0
    assert cli.main(["watch"]) == 0  # the newest; not a terminal, so one frame
    out = capsys.readouterr().out
    assert out.count("CartPole-v1, ppo, torch, 3 ranks, seed 3") == 2 and "loss/value: 0.05000" in out
    assert state() == before


@pytest.mark.parametrize(
    ("words", "wanted"),
    [
        (["runs/mine", "--once", "--metric", "loss/nix"], "--metric loss/nix is not in runs/mine; it has"),
        (["runs/mine", "--once", "--metric", "lss/value"], "is not in runs/mine; did you mean loss/value?\n"),
        (["runs/mine", "--every", "0"], "--every 0 must be a number of seconds"),
        (["runs/mien", "--once"], "runs/mien does not exist; without --once, in a terminal, watch waits for it"),
        (["runs/mine/run.yaml"], "is a file; give the run directory, such as runs/mine"),
        (["runs"], "runs is a directory of several runs; name one of them, such as runs/mine"),
        (["runs", "--once"], "runs is a directory of several runs; name one of them, such as runs/mine"),
        (["measured"], "measured is a directory of several runs; name one of them, such as measured/ranks_1"),
        (["empty", "--once"], "empty holds no run (no run.yaml); without --once, in a terminal, watch waits for it"),
        ([""], "RUN is empty; name a run directory"),
    ],
)
def test_wrong_arguments_are_refused(run_dir, capsys, words, wanted):
    Path("empty").mkdir()
    RunDir.create("measured/ranks_1", RUN).close()
    Path("measured/scale.yaml").touch()
    assert cli.main(["watch", *words]) == 2
    assert wanted in capsys.readouterr().err


def test_several_runs_that_appear_where_one_was_waited_for_end_the_wait(run_dir, monkeypatch):
    screen = command._Screen(WatchedRun(Path("later")), None, 0.1)

    def made(seconds):
        if not Path("later").exists():
            RunDir.create("later/trial_1", RUN).close()
        return []

    monkeypatch.setattr(command, "_no_keys", made)
    monkeypatch.setattr(sys.stdin, "isatty", lambda: False)
    with pytest.raises(ConfigError, match=r"later is a directory of several runs; name one of them, such as later/tri"):
        screen.loop()


@pytest.mark.parametrize("term", ["dumb", "unknown"])
def test_terminal_that_cannot_redraw_gets_one_frame(run_dir, capsys, monkeypatch, term):
    monkeypatch.setenv("TERM", term)
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    assert cli.main(["watch", "runs/mine"]) == 0
    assert "CartPole-v1, ppo, torch, 3 ranks, seed 3" in capsys.readouterr().out


def test_keys_switch_the_curve_and_quit(run_dir):
    """In a terminal of its own."""
    parent, child = pty.openpty()
    environment = os.environ | {"TERM": "xterm", "COLUMNS": "100", "LINES": "30"}
    command = [sys.executable, "-m", "lockstep.cli", "watch", "runs/mine", "--every", "0.1"]
    process = subprocess.Popen(command, stdin=child, stdout=child, stderr=child, env=environment)
    os.close(child)
    seen = b""

    def wait_for(text):
        nonlocal seen
        until = time.monotonic() + 60
        while text not in seen:
            assert time.monotonic() < until, seen[-3000:]
            if select.select([parent], [], [], 0.1)[0]:
                seen += os.read(parent, 1 << 16)
        seen = b""

    wait_for(b"(2 of 4)")
    os.write(parent, b"n")
    wait_for(b"time/steps_per_second")
    os.write(parent, b"pp")  # at once
    wait_for(b"(1 of 4)")
    os.write(parent, b"\x1b[C\x1b[B\x1b[C")
    wait_for(b"(4 of 4)")
    os.write(parent, b"x")
    wait_for(b"  20 s\x1b")
    os.write(parent, b"nq")
    assert process.wait(30) == 0
    os.close(parent)


def test_chart_joins_points_and_labels_its_ends():
    lines = draw([0, 10, 20], [0.0, 5.0, 10.0], 40, 8, "steps")
    assert len(lines) == 8 and all(len(line) <= 40 for line in lines)
    assert lines[0].startswith("     10.00 ┤") and lines[5].startswith("       0.0 ┤")
    body = [line[12:] for line in lines[:6]]
    assert body[0].rstrip()[-1] != " " and body[5][0] != " "
    columns = [next(i for i, row in enumerate(body) if row[c : c + 1].strip()) for c in range(28)]
    assert columns == sorted(columns, reverse=True)  # it rises, without a gap
    assert lines[7].split() == ["0", "20", "steps"]


def test_chart_of_thousands_of_points_and_of_none():
    values = [float("nan") if i % 100 == 0 else i % 2 for i in range(10_000)]
    lines = draw(range(10_000), values, 60, 10, "steps")
    assert len(lines) == 10 and "9.999k steps" in lines[-1] and lines[0].startswith("    0.")
    assert draw([], [], 60, 10, "s")[0].strip() == "no values yet"
    assert draw([0, 1, 2], [1e308, -1e308, 4.0], 60, 10, "s") == draw([2], [4.0], 60, 10, "s")
    assert draw([1.0], [3.0], 60, 10, "s")[0].strip().startswith("4.5")
    assert [compact(value) for value in (950, 12_500, 3_200_000, 2.5e9)] == ["950", "12.5k", "3.2M", "2.5G"]
