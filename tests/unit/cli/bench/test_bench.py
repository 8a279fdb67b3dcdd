"""`lockstep bench` with stand-ins for what it measures."""

import json
import os
import re
import signal
import sys
import threading
import time
from dataclasses import replace
from pathlib import Path

import psutil
import pytest

from lockstep.cli.bench import process
from lockstep.cli.bench.results import RESULTS_FILE, TABLES_FILE
from lockstep.cli.bench.workloads import ENVIRONMENTS, WORKLOADS, Contender, Workload
from lockstep.cli.main import main
from quick import others_slow

SCRIPT = """
import json, sys
from pathlib import Path
log = Path(__file__).with_name("log")
calls = log.read_text().split() if log.exists() else []
log.write_text(" ".join([*calls, sys.argv[1]]))
if sys.argv[1] == "broken":
    sys.exit("it does not know this task")
value = {"ours": 300, "theirs": 100, "two": 450}[sys.argv[1]]
print("something else first")
print(json.dumps({"value": value + len(calls) * 0.001, "peak_mb": 10, "versions": {"peer": "1.0"}}))
"""


@pytest.fixture
def contenders(tmp_path, monkeypatch):
    """Two workloads of three contenders; the scripts write down in which order they are called."""
    (tmp_path / "contender.py").write_text(SCRIPT)
    monkeypatch.setattr(process, "CONTENDERS", tmp_path)

    def contender(name: str, **more) -> Contender:
        return Contender(name=name, title=name.title(), script="contender.py", arguments=(name,), **more)

    workloads = {
        "speed": Workload(
            title="a task",
            contenders=(contender("ours"), contender("theirs", environment="sb3"), contender("two", ranks=2)),
            targets={"theirs": 2.5},
        ),
        "broken": Workload(
            title="another",
            contenders=(contender("ours"), contender("broken"), contender("two", needs_flag="--purejaxrl DIR")),
        ),
    }
    for module in ("command", "results"):
        monkeypatch.setattr(f"lockstep.cli.bench.{module}.WORKLOADS", workloads, raising=False)
    return tmp_path


def bench(folder: Path, *words: str) -> int:
    return main(
        ["bench", *words, "--run-dir", str(folder / "out"), "--repetitions", "2", "--python", f"sb3={sys.executable}"]
    )


def test_contenders_are_measured_in_turn_and_compared_by_the_median_of_ratios(contenders, capsys):
    assert bench(contenders, "speed") == 0
    assert (contenders / "log").read_text().split() == ["ours", "theirs", "two"] * 2
    cells = {
        line.split(" | ")[0].lstrip("| "): line.split(" | ")
        for line in capsys.readouterr().out.splitlines()
        if "|" in line
    }
    assert cells["Theirs"][2].startswith("3.00 (") and cells["Theirs"][3] == "2.50"
    assert cells["Two"][2].startswith("1.50 (")  # two ranks over one, not one over two
    rows = [json.loads(line) for line in (contenders / "out" / RESULTS_FILE).read_text().splitlines()]
    assert [row["repetition"] for row in rows] == [0, 0, 0, 1, 1, 1]
    assert "peer 1.0" in (contenders / "out" / TABLES_FILE).read_text()


def test_ranks_of_a_library_are_compared_with_its_own_single_rank(contenders, monkeypatch, capsys):
    from lockstep.cli.bench import command

    ours, theirs, two = command.WORKLOADS["speed"].contenders
    of_theirs = replace(two, one_rank="theirs")
    monkeypatch.setattr(command, "WORKLOADS", {"speed": Workload(title="a task", contenders=(ours, theirs, of_theirs))})
    bench(contenders, "speed")
    out = capsys.readouterr().out
    assert re.search(r"\| Theirs \|.*\| 3\.00 \(", out) and re.search(r"\| Two \|.*\| 4\.50 \(", out)


def test_less_is_better_turns_the_ratio_round(contenders, monkeypatch, capsys):
    from lockstep.cli.bench import command

    workload = command.WORKLOADS["speed"]
    seconds = Workload(title=workload.title, contenders=workload.contenders, unit="s", higher_is_better=False)
    monkeypatch.setattr(command, "WORKLOADS", {"speed": seconds})
    bench(contenders, "speed")
    out = capsys.readouterr().out
    assert re.search(r"\| Theirs \|.*\| 0\.33 \(", out) and re.search(r"\| Two \|.*\| 0\.67 \(", out)


def test_a_second_start_measures_only_what_is_missing(contenders):
    bench(contenders, "speed")
    results = contenders / "out" / RESULTS_FILE
    lines = results.read_text().splitlines(keepends=True)
    results.write_text("".join(lines[:-1]) + lines[-1][:10])  # killed while it wrote the last line
    (contenders / "log").unlink()
    bench(contenders, "speed")
    assert (contenders / "log").read_text().split() == ["two"]
    assert len(results.read_text().splitlines()) == 6


def test_a_contender_that_fails_is_reported_with_its_reason_and_not_tried_again(contenders, capsys):
    assert bench(contenders) == 1
    assert "Not measured: Broken: it does not know this task" in capsys.readouterr().out
    assert (contenders / "log").read_text().split().count("broken") == 1
    bench(contenders, "--retry-failed")
    assert (contenders / "log").read_text().split().count("broken") == 3


def test_a_library_that_cannot_be_installed_is_reported(contenders, monkeypatch, capsys):
    from lockstep.cli.bench import environments

    monkeypatch.setitem(ENVIRONMENTS, "sb3", ("no-such-package-of-anybody==1.0",))
    monkeypatch.setattr(environments, "_create", lambda environment: environment.mkdir(parents=True))
    monkeypatch.setattr(environments, "_install", lambda python, packages: _refuse(packages))
    words = ["bench", "speed", "--run-dir", str(contenders / "out"), "--repetitions", "1"]
    assert main([*words, "--environments", str(contenders / "environments")]) == 1
    assert "Not measured: Theirs: not installed: no such package" in capsys.readouterr().out


@pytest.mark.real_start  # the interpreter is a script
@pytest.mark.parametrize(
    ("venv", "reason"),
    [
        ("print('some advice')\nprint('ensurepip is not available')\nsys.exit(1)", "ensurepip is not available"),
        ("sys.exit('Error: no room')", "Error: no room"),
        ("sys.exit(3)", "venv ended with code 3"),
    ],
)
def test_an_environment_that_cannot_be_made_is_reported(venv, reason, contenders, monkeypatch, capsys):
    (contenders / "python").write_text(f"#!{sys.executable}\nimport sys\n{venv}\n")
    (contenders / "python").chmod(0o755)
    monkeypatch.setattr("lockstep.cli.bench.environments.sys.executable", str(contenders / "python"))
    monkeypatch.setattr("lockstep.cli.bench.command.sys.executable", sys.executable)
    words = ["bench", "speed", "--only", "theirs", "--run-dir", str(contenders / "out"), "--repetitions", "1"]
    assert main([*words, "--environments", str(contenders / "environments")]) == 1
    assert f"Not measured: Theirs: not installed: {reason}\n" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("peer", "reason"),
    [
        ("#!/bin/sh\n", "ended with code 0 without a result; its last line: (none)"),
        ("#!/bin/sh\necho done\n", "ended with code 0 without a result; its last line: done"),
        ("#!/bin/sh\necho 3\n", "ended with code 0 without a result; its last line: 3"),
        ("#!/bin/sh\necho '{}'\n", "ended with code 0 without a result; its last line: {}"),
        ("#!/bin/sh\nprintf '\\377'\n", "ended with code 0 without a result; its last line: \ufffd"),
        ("#!/no/such/program\n", "cannot be started: No such file or directory"),
    ],
)
def test_an_interpreter_that_gives_no_result_is_reported(peer, reason, contenders, capsys):
    (contenders / "python").write_text(peer)
    (contenders / "python").chmod(0o755)
    words = ["bench", "speed", "--only", "ours,theirs", "--run-dir", str(contenders / "out"), "--repetitions", "1"]
    assert main([*words, "--python", f"sb3={contenders / 'python'}"]) == 1
    out = capsys.readouterr().out
    assert "| Ours | 300" in out and reason in out


def test_a_process_of_a_launcher_is_refused(contenders, monkeypatch, capsys):
    """Each would record our own contenders as failed."""
    for name, value in {"RANK": "1", "WORLD_SIZE": "2", "LOCAL_RANK": "1", "MASTER_PORT": "1"}.items():
        monkeypatch.setenv(name, value)
    assert main(["bench", "speed", "--run-dir", str(contenders / "out")]) == 2
    assert "lockstep bench starts ranks itself, and torchrun started this process" in capsys.readouterr().err
    assert not (contenders / "out").exists()


# Stands for a contender that trains in a process of its own, as those of Lockstep do.
WITH_CHILD = """
import os, subprocess, sys, tempfile
from pathlib import Path
with tempfile.TemporaryDirectory(dir=Path(__file__).parent, prefix="temporary-"):
    child = "import os, time, pathlib; pathlib.Path(sys.argv[1]).write_text(str(os.getpid())); time.sleep(600)"
    words = [sys.executable, "-c", "import sys; " + child, str(Path(__file__).with_name("child"))]
    subprocess.{call}
"""
WAITS = "run(words)"
WAITS_WITHOUT_CARE = "Popen(words).wait(); os._exit(0)"


@pytest.mark.parametrize("call", others_slow([WAITS, WAITS_WITHOUT_CARE], WAITS_WITHOUT_CARE))
def test_a_contender_that_takes_too_long_ends_with_all_of_its_processes(call, contenders, monkeypatch, capsys):
    (contenders / "contender.py").write_text(WITH_CHILD.format(call=call))
    monkeypatch.setattr(process, "_TIMEOUT_S", 6.0)
    assert main(["bench", "speed", "--only", "ours", "--run-dir", str(contenders / "out"), "--repetitions", "1"]) == 1
    assert "not done after 6 s" in capsys.readouterr().out
    assert not alive(int((contenders / "child").read_text())) and not list(contenders.glob("temporary-*"))


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_the_contender_and_keeps_what_was_measured(number, contenders, capsys):
    assert main(["bench", "speed", "--only", "ours", "--run-dir", str(contenders / "out"), "--repetitions", "1"]) == 0
    (contenders / "contender.py").write_text(WITH_CHILD.format(call=WAITS))

    def interrupt() -> None:
        while not ((contenders / "child").exists() and (contenders / "child").read_text()):
            time.sleep(0.02)
        os.kill(os.getpid(), number)

    thread = threading.Thread(target=interrupt)
    thread.start()
    assert bench(contenders, "speed", "--only", "ours") == 128 + number
    thread.join()
    assert f"interrupted by {number.name} (signal {number}); the same command continues" in capsys.readouterr().err
    assert not alive(int((contenders / "child").read_text()))
    assert len((contenders / "out" / RESULTS_FILE).read_text().splitlines()) == 1


def alive(pid: int) -> bool:
    """Whether a process runs; one that has ended may still wait for its parent."""
    return psutil.pid_exists(pid) and psutil.Process(pid).status() != psutil.STATUS_ZOMBIE


def _refuse(packages):
    from lockstep.cli.bench.environments import InstallationError

    assert packages == ["no-such-package-of-anybody==1.0"]
    raise InstallationError("no such package")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["cartpole"], "workload cartpole is unknown; did you mean cartpole_"),
        (["--only", "sb4"], "did you mean sbx or sb3?"),
        (["--repetitions", "0"], "--repetitions 0 must be a number, at least 1"),
        (["--scale", "-1"], "--scale -1 must be a number greater than 0"),
        (["--python", "sb3"], "write NAME=PYTHON"),
        (["--python", "sb3=/no/such"], "/no/such is no program"),
        (["--purejaxrl", "/no"], "there is no file purejaxrl/ppo.py"),
        (
            ["first_update", "--only", "skrl"],
            "--only skrl: no such library in first_update; there are lockstep,",
        ),
        (["--only", "purejaxrl"], "--only purejaxrl measures nothing without --purejaxrl DIR"),
    ],
)
def test_bad_input_is_refused_before_anything_starts(words, message, tmp_path, capsys):
    assert main(["bench", *words, "--run-dir", str(tmp_path / "out")]) == 2
    assert message in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def test_works_without_any_of_the_chosen_contenders_are_left_out(contenders, capsys):
    assert bench(contenders, "--only", "theirs") == 0
    assert "## broken" not in capsys.readouterr().out


@pytest.mark.parametrize("below", ["", "/below"])
def test_a_file_in_place_of_the_folder_is_refused(below, tmp_path, capsys):
    (tmp_path / "out").write_text("mine")
    assert main(["bench", "first_update", "--run-dir", f"{tmp_path}/out{below}"]) == 2
    assert f"--run-dir {tmp_path}/out{below} cannot be written" in capsys.readouterr().err


def test_a_folder_that_cannot_be_written_is_refused_before_anything_is_measured(contenders, capsys):
    assert main(["bench", "speed", "--only", "ours", "--run-dir", "/proc"]) == 2
    assert "--run-dir /proc cannot be written" in capsys.readouterr().err
    assert not (contenders / "log").exists()


GOOD = '{"work": "speed", "arm": "ours", "repetition": 0, "scale": 1.0, "value": 3.0}\n'


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (GOOD + '{"work": "spe\n' + GOOD, "results.jsonl: line 2 is no measurement"),
        (GOOD + '{"loss": 0.5}\n', "results.jsonl: line 2 is no measurement"),
        (GOOD.replace("0,", '"0",', 1), "results.jsonl: line 1 is no measurement"),
        (GOOD.replace("value", "loss"), "results.jsonl: line 1 is no measurement"),
        ("[1]\n", "results.jsonl: line 1 is no measurement"),
        ('{"loss": 0.5}', "results.jsonl: line 1 is no measurement"),
        ("\xff", "results.jsonl cannot be read"),
    ],
)
def test_results_of_something_else_are_refused_and_kept(text, message, contenders, capsys):
    (contenders / "out").mkdir()
    results = contenders / "out" / RESULTS_FILE
    results.write_text(text, encoding="latin-1")
    assert bench(contenders, "speed") == 2
    err = capsys.readouterr().err
    assert message in err and "name another --run-dir" in err
    assert results.read_text(encoding="latin-1") == text


def test_results_of_another_scale_are_not_mixed(contenders, capsys):
    bench(contenders, "speed")
    assert bench(contenders, "speed", "--scale", "0.5") == 2
    assert (
        f"the results in {contenders / 'out'} were measured with --scale 1; name another --run-dir"
        in capsys.readouterr().err
    )


def test_the_list_names_works_contenders_and_packages(capsys):
    assert main(["bench", "--list"]) == 0
    out = capsys.readouterr().out
    assert "cartpole_ppo" in out and out.count("stable-baselines3==2.9.2") == 1


def test_a_trial_measures_whole_updates_after_the_whole_warm_up(monkeypatch):
    commands = []
    done = (0, json.dumps({"value": 1.0}), "")
    monkeypatch.setattr(process, "_run", lambda command, *_: commands.append(command) or done)
    for workload in WORKLOADS.values():
        for contender in workload.contenders:
            process.measure(Path("python"), workload, contender, 0.01, None)
            warm_up, measured = (int(commands[-1][i]) for i in (-3, -1))
            assert warm_up >= workload.warm_up * contender.fraction_of_steps * contender.ranks
            assert measured >= workload.update * contender.ranks and measured % workload.update == 0, workload.title
            process.measure(Path("python"), workload, contender, 1.0, None)
            assert int(commands[-1][-1]) == round(workload.measured * contender.fraction_of_steps) * contender.ranks


def test_a_work_that_nobody_does_has_no_table(contenders, monkeypatch, capsys):
    from lockstep.cli.bench import command

    broken = command.WORKLOADS["broken"]
    monkeypatch.setattr(command, "WORKLOADS", {"broken": replace(broken, contenders=broken.contenders[1:2])})
    assert bench(contenders, "broken") == 1
    assert "## broken: another\n\nNot measured: Broken: it does not" in capsys.readouterr().out


def test_every_contender_has_its_script_and_every_target_its_contender():
    for workload in WORKLOADS.values():
        names = [contender.name for contender in workload.contenders]
        assert len(set(names)) == len(names) and set(workload.targets) <= set(names)
        for contender in workload.contenders:
            assert (process.CONTENDERS / contender.script).exists()
            assert contender.environment is None or contender.environment in ENVIRONMENTS
            assert contender.one_rank is None or (contender.ranks > 1 and contender.one_rank in names)
            assert (
                contender.fraction_of_steps == 1 or contender.fraction_of_steps * workload.warm_up >= 1024
            )  # one update of PPO
        assert workload.contenders[0].environment is None and workload.contenders[0].ranks == 1


@pytest.mark.slow
def test_the_measured_command_of_lockstep_runs(tmp_path):
    words = ["cartpole_ppo", "--only", "lockstep", "--scale", "0.05", "--repetitions", "1"]
    assert main(["bench", *words, "--run-dir", str(tmp_path / "out")]) == 0
    row = json.loads((tmp_path / "out" / RESULTS_FILE).read_text())
    assert row["value"] > 0 and row["peak_mb"] > 50 and "torch" in row["versions"]
