"""`lockstep offline prepare`, as it is typed."""

import os
import re
import shlex
import signal
import subprocess
import sys

import pytest

from lockstep.cli import main as cli
from lockstep.data.dataset import Dataset
from lockstep.data.prepare import PrepareOptions, prepare_dataset
from made_logs import parametric, row, write


def call(capsys, *words):
    """Exit code and all that was said."""
    try:
        code = cli.main(["offline", "prepare", *map(str, words)])
    except SystemExit as error:
        code = error.code
    said = capsys.readouterr()
    return code, said.out + said.err


@pytest.fixture
def log(tmp_path):
    return write(tmp_path / "log.jsonl", [row(i, action=["left", "right"][i % 2]) for i in range(30)])


def test_prepare_prints_its_decisions(tmp_path, log, capsys):
    code, said = call(capsys, log, "--out", tmp_path / "data", "--actions", "right,left")
    assert code == 0, said
    assert "30 decisions in 1 trajectory of 30, discrete actions" in said
    assert "terminal: the last decision of a trajectory where no decision follows (the log marks nothing): 1" in said
    assert f"learn from it: lockstep offline train {tmp_path / 'data'}" in said
    assert Dataset.open(tmp_path / "data").info.actions == ("right", "left")
    code, said = call(capsys, log, "--out", tmp_path / "eval", "--like", tmp_path / "data")
    assert code == 0 and "learn from it" not in said
    assert f"estimate a policy on it: lockstep offline evaluate RUN --data {tmp_path / 'eval'}" in said


def test_options_reach_the_data(tmp_path, log, capsys):
    columns = tmp_path / "columns.yaml"
    columns.write_text("reward: reward\n")
    words = ["--max-episode-steps", "30", "--set", "feature_overrides.0=do_not_preprocess", "--set", "num-samples=50"]
    code, said = call(capsys, log, "--out", tmp_path / "a", *words, "--columns", columns, "--memory", "32M")
    assert code == 0, said
    data = Dataset.open(tmp_path / "a")
    assert data.state_features["0"].type == "do_not_preprocess"
    assert data.info.rules["options"]["norm"]["num_samples"] == 50
    assert (data.info.rules["cut"], data.info.rules["left_out"]) == (1, 1)
    code, said = call(capsys, log, "--out", tmp_path / "b", "--state-features", tmp_path / "a" / "state_features.json")
    assert code == 0, said
    assert Dataset.open(tmp_path / "b").state_features == data.state_features


def test_the_type_of_a_feature_with_dots_and_hyphens_is_set_by_its_name(tmp_path, capsys):
    rows = [row(i, state_features={"user.first-age": i % 7, "x": i}) for i in range(30)]
    write(tmp_path / "log.jsonl", rows)
    words = ["--set", "feature_overrides.user.first-age=quantile", "--set", "feature_overrides.x=enum"]
    code, said = call(capsys, tmp_path / "log.jsonl", "--out", tmp_path / "data", *words)
    assert code == 0, said
    features = Dataset.open(tmp_path / "data").state_features
    assert (features["user.first-age"].type, features["x"].type) == ("quantile", "enum")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--memory", "lots"], "--memory lots is not a size"),
        (["--memory", "1M"], "--memory 1M is too little; give at least 16M"),
        (["--actions", "left,"], "--actions left, has an empty name"),
        (["--actions", "left,up"], "right"),
        (["--max-episode-steps", "0"], "--max-episode-steps 0 must be a number, at least 1"),
        (["--max-episode-steps", "7"], "row 8: is decision 8 of its trajectory, but --max-episode-steps says 7"),
        (["--set", "num_samples"], "--set num_samples has no value"),
        (["--set", "quantiles=3"], "unknown setting quantiles"),
        (
            ["--set", "batch_size=5"],
            "batch_size is a setting of training: lockstep offline train DATA --set batch_size=5",
        ),
        (["--set", "algorithm.expectile=0.8"], "lockstep offline train DATA --set algorithm.expectile=0.8"),
        (["--set", "foo=3"], "unknown setting foo; there are num_samples, max_unique_enum_values"),
        (["--state-features", "none.json"], "none.json"),
        (["--kind", "parametric"], "log.jsonl are names; leave it out"),
        (["--like", "nothing"], "--like nothing does not exist; give data that are prepared already"),
        (["--like", "nothing", "--actions", "left,right"], "--like nothing already sets --actions"),
        (["--acts", "left,right"], "unknown argument --acts; did you mean --actions?"),
    ],
)
def test_invalid_arguments_are_one_error_line(tmp_path, log, capsys, words, message):
    code, said = call(capsys, log, "--out", tmp_path / "data", *words)
    assert code == 2
    assert message in said
    assert len(said.strip().splitlines()) == 1
    assert [path.name for path in tmp_path.iterdir()] == ["log.jsonl"], "something half-written stays"


def test_a_log_is_prepared_like_other_data(tmp_path, log, capsys):
    words = ["--max-episode-steps", "30", "--actions", "right,left,up", "--set", "feature_overrides.0=clip_log"]
    assert call(capsys, log, "--out", tmp_path / "data", *words)[0] == 0
    other = write(tmp_path / "other.jsonl", [row(i, action="up", mdp_id="else") for i in range(30)])
    code, said = call(capsys, other, "--out", tmp_path / "eval", "--like", tmp_path / "data")
    assert code == 0, said
    data, found = Dataset.open(tmp_path / "data"), Dataset.open(tmp_path / "eval")
    assert (found.info.actions, found.state_features) == (("right", "left", "up"), data.state_features)
    assert found.info.rules["cut"] == 1, "the limit of steps is forgotten"
    code, said = call(capsys, other, "--out", tmp_path / "b", "--like", tmp_path / "data", "--max-episode-steps", "40")
    assert (code, Dataset.open(tmp_path / "b").info.rules["cut"]) == (0, 0), said
    clicks = write(tmp_path / "clicks.jsonl", [row(i, metrics={"clicks": 1.0}) for i in range(30)])
    code, said = call(capsys, clicks, "--out", tmp_path / "c", "--like", tmp_path / "data")
    assert code == 2
    assert "metrics of the log (clicks) are not those of the --like data (none)" in said


def test_a_log_cannot_be_prepared_like_a_log(tmp_path, log, capsys):
    code, said = call(capsys, log, "--out", tmp_path / "data", "--like", log)
    assert (code, f"--like {log} is a file, not prepared data" in said) == (2, True), said


def test_a_log_of_another_kind_is_not_prepared_like_other_data(tmp_path, log, capsys):
    numbers = write(tmp_path / "numbers.jsonl", [row(i, action=[i / 10]) for i in range(30)])
    for name, file in (("names", log), ("numbers", numbers)):
        assert call(capsys, file, "--out", tmp_path / name)[0] == 0
    code, said = call(capsys, numbers, "--out", tmp_path / "x", "--like", tmp_path / "names")
    assert (code, "names has actions that are names (discrete), and those of" in said) == (2, True), said
    code, said = call(capsys, log, "--out", tmp_path / "x", "--like", tmp_path / "numbers")
    assert (code, "numbers has actions that are numbers or features, and those of" in said) == (2, True), said


def test_settings_of_the_preparation_are_none_of_training(tmp_path, log, capsys):
    assert call(capsys, log, "--out", tmp_path / "data")[0] == 0
    for changed in ("min_stddev=0.1", "feature_overrides.0=enum"):
        assert cli.main(["offline", "train", str(tmp_path / "data"), "--set", changed]) == 2
        assert (
            f"prepare the log again, lockstep offline prepare LOG --out DIR --set {changed}" in capsys.readouterr().err
        )


WAITING = """
import sys, time
import lockstep.data.prepare
from lockstep.cli import main as cli

def scan_log(*_):
    print("reading", flush=True)
    time.sleep(120)

lockstep.data.prepare.scan_log = scan_log
sys.exit(cli.main(sys.argv[1:]))
"""


def test_a_signal_ends_a_preparation_and_leaves_nothing(tmp_path, log):
    command = [sys.executable, "-c", WAITING, "offline", "prepare", str(log), "--out", str(tmp_path / "data")]
    before = sorted(os.listdir(tmp_path))
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout.readline() == "reading\n"
        assert sorted(os.listdir(tmp_path)) != before
        process.send_signal(signal.SIGTERM)
        try:
            assert process.wait(timeout=60) == 128 + signal.SIGTERM
        finally:
            process.kill()
    assert sorted(os.listdir(tmp_path)) == before


def test_like_takes_over_column_names(tmp_path, capsys):
    head, line = "session;step;speed;choice;payoff\n", "a;{i};{i}.5;left;1\n"
    for name in ("log.csv", "more.csv"):
        (tmp_path / name).write_text(head + "".join(line.format(i=i) for i in range(5)))
    columns = tmp_path / "columns.yaml"
    columns.write_text(
        "mdp_id: session\nsequence_number: step\nstate_features: [speed]\naction: choice\nreward: payoff\n"
    )
    assert call(capsys, tmp_path / "log.csv", "--out", tmp_path / "data", "--columns", columns)[0] == 0
    code, said = call(capsys, tmp_path / "more.csv", "--out", tmp_path / "eval", "--like", tmp_path / "data")
    assert code == 0, said
    assert Dataset.open(tmp_path / "eval").info.state_features == ("speed",)
    other = write(tmp_path / "other.jsonl", [row(i, mdp_id=..., who="a") for i in range(5)])
    code, said = call(capsys, other, "--out", tmp_path / "b", "--like", tmp_path / "data")
    assert (code, "has no column session, which --columns (or the data of --like) names for mdp_id" in said) == (
        2,
        True,
    )
    own = tmp_path / "own.yaml"
    own.write_text('state_features: {speed: "x"}\n')
    again = write(tmp_path / "x.jsonl", [row(i, state_features=..., x=1.0) for i in range(5)])
    code, said = call(capsys, again, "--out", tmp_path / "c", "--like", tmp_path / "data", "--columns", own)
    assert code == 0, said


def test_like_prepares_a_log_that_has_the_names_of_the_schema(tmp_path, capsys):
    columns = tmp_path / "columns.yaml"
    columns.write_text("mdp_id: session\nstate_features: [speed]\n")
    named = [row(i, mdp_id=..., state_features=..., session="a", speed=float(i)) for i in range(5)]
    first = write(tmp_path / "first.jsonl", named)
    assert call(capsys, first, "--out", tmp_path / "data", "--columns", columns)[0] == 0
    other = write(tmp_path / "other.jsonl", [row(i, state_features={"speed": float(i)}) for i in range(5)])
    code, said = call(capsys, other, "--out", tmp_path / "eval", "--like", tmp_path / "data")
    assert code == 0, said
    data, like = (Dataset.open(tmp_path / name) for name in ("data", "eval"))
    assert like.info.state_features == ("speed",) and like.features_digest == data.features_digest
    assert (like.column("state")[0:5] == data.column("state")[0:5]).all()


def test_skipped_rows_are_reported_with_the_reason(tmp_path, capsys):
    rows = [row(i, terminated=False, why="x") for i in range(3)]
    log = write(tmp_path / "log.jsonl", [*rows, *(row(i, mdp_id="b", terminated=i == 1) for i in range(2))])
    code, said = call(capsys, log, "--out", tmp_path / "data")
    assert code == 0, said
    assert "columns left out, since no column of a log has such a name: why" in said
    assert f"left out: 1 decision (such as that of {log}, row 3). Nothing tells what followed" in said
    assert "log these, or mark the end (terminated)" in said


def test_candidates_are_prepared_like_other_data(tmp_path, capsys):
    first = write(tmp_path / "log.jsonl", [parametric(i) for i in range(20)])
    assert call(capsys, first, "--out", tmp_path / "data", "--kind", "parametric")[0] == 0
    code, said = call(capsys, first, "--out", tmp_path / "eval", "--like", tmp_path / "data")
    assert code == 0, said
    data, found = Dataset.open(tmp_path / "data"), Dataset.open(tmp_path / "eval")
    assert (found.info.kind, found.features_digest) == ("parametric", data.features_digest)


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ({"state_features": {}}, "no row has any state_features"),
        ({"reward": -1e39}, "row 1: reward -1e+39 is too large for 32 bits"),
        ({"metrics": {"clicks": 1e300}}, "row 1: the metric clicks 1e+300 is too large for 32 bits"),
    ],
)
def test_a_log_that_cannot_be_learned_from_is_refused(tmp_path, capsys, more, message):
    log = write(tmp_path / "log.jsonl", [row(i, **more) for i in range(5)])
    code, said = call(capsys, log, "--out", tmp_path / "data")
    assert (code, message in said) == (2, True), said
    assert [path.name for path in tmp_path.iterdir()] == ["log.jsonl"], "something half-written stays"


def test_existing_data_is_kept_without_force(tmp_path, log, capsys):
    out = tmp_path / "data"
    assert call(capsys, log, "--out", out)[0] == 0
    code, said = call(capsys, log, "--out", out)
    assert (code, f"{out} is prepared already" in said) == (0, True)
    code, said = call(capsys, log, "--out", out, "--max-episode-steps", 30)
    assert (code, "--force" in said) == (2, True)
    assert call(capsys, log, "--out", out, "--max-episode-steps", 30, "--force")[0] == 0
    assert Dataset.open(out).info.rules["cut"] == 1


def test_processes_that_prepare_the_same_data_at_once_do_it_once(tmp_path, log):
    out = tmp_path / "data"
    command = [sys.executable, "-m", "lockstep.cli", "offline", "prepare", str(log), "--out", str(out)]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
    running = [subprocess.Popen(command, **pipes) for _ in range(3)]
    said = [process.communicate(timeout=120)[0] for process in running]
    assert [process.returncode for process in running] == [0, 0, 0], said
    assert sum("is prepared already" in text for text in said) == 2, said
    assert sorted(path.name for path in tmp_path.iterdir()) == ["data", "log.jsonl"]
    prepare_dataset(
        [log], out, PrepareOptions(), show=lambda text: pytest.fail(text) if "already" not in text else None
    )


@pytest.mark.parametrize(
    ("word", "hint"),
    [("--rank", "did you mean --ranks or"), ("--num-envs", "see lockstep offline train --help")],
)
def test_a_flag_that_training_from_logs_does_not_have(capsys, word, hint):
    assert cli.main(["offline", "train", "data", word, "2"]) == 2
    assert f"unknown argument {word}; {hint}" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("typed", "hint"), [("dqnn", "; did you mean dqn?"), ("BCQ", " (discrete BCQ is dqn with --set bcq_threshold=0.1)")]
)
@pytest.mark.parametrize("words", [["--algo", "{}"], ["--set", "algo={}"]])
def test_every_algorithm_is_named_where_one_does_not_exist(tmp_path, log, capsys, typed, hint, words):
    assert call(capsys, log, "--out", tmp_path / "data")[0] == 0
    assert cli.main(["offline", "train", str(tmp_path / "data"), *(word.format(typed) for word in words)]) == 2
    said = capsys.readouterr().err
    assert f"--algo {typed} does not exist; there are dqn, parametric_dqn, iql, td3_bc, cql, bc{hint}" in said


@pytest.mark.parametrize("judged_by", [None, "data", "other", "half"])
def test_a_run_ends_with_an_estimate_and_what_to_type_next(tmp_path, capfd, judged_by):
    data, run = tmp_path / "data", tmp_path / "my run"
    for name, those in {"data": range(60), "other": range(60, 120), "half": range(30, 90)}.items():
        rows = [
            row(i, mdp_id=str(m), action=["left", "right"][m % 2], propensity=0.5, reward=m % 5)
            for m in those
            for i in range(2)
        ]
        log, like = write(tmp_path / f"{name}.jsonl", rows), [] if name == "data" else ["--like", str(data)]
        assert cli.main(["offline", "prepare", str(log), "--out", str(tmp_path / name), *like]) == 0
    words = [] if judged_by is None else ["--set", f"eval_data={tmp_path / judged_by}"]
    words += ["--set", "use_time_diff=true", "--set", "time_diff_unit=1000"] if judged_by == "half" else []
    words += ["--set", "epochs=1", "--set", "batch_size=32", "--set", "device=cpu", "--set", "policy=softmax"]
    assert cli.main(["offline", "train", str(data), "--run-dir", str(run), *words]) == 0
    said = capfd.readouterr().out
    *_, estimate, judge, export = said.strip().splitlines()
    assert re.fullmatch(
        r"estimated reward of a trajectory, discounted: .* by weighted_sequential_dr, .* log earned", estimate
    )
    place = shlex.quote(str(run))
    common = {"data": 120, "half": 60}.get(judged_by, 0)
    assert (f"warning: {common} of 120 rows of eval_data are rows of data, too: " in said) == (common > 0)
    assert ("warning: a usual step of the log lasts 1; with time_diff_unit=1000 " in said) == (judged_by == "half")
    unseen, more = ("", "") if judged_by == "other" else (" on held-out rows", " --data DIR")
    assert judge == f"evaluate the policy{unseen}: lockstep offline evaluate {place}{more}"
    assert export.endswith(f": lockstep export {place}")


def test_without_polars_it_says_how_to_get_it(tmp_path, log):
    words = ["offline", "prepare", str(log), "--out", str(tmp_path / "data")]
    code = (
        f"import sys; sys.modules['polars'] = None; from lockstep.cli import main as cli; sys.exit(cli.main({words}))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert done.returncode == 2
    assert "this needs the package polars" in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1


def test_prepared_data_under_another_command_or_by_their_description(tmp_path, log, capsys):
    data = tmp_path / "data"
    assert call(capsys, log, "--out", data)[0] == 0
    assert cli.main(["train", str(data)]) == 2
    assert f"{data} is prepared data; lockstep offline train {data} learns from it" in capsys.readouterr().err
    (tmp_path / "dqn.json").write_text('{"training_data_path": "log.jsonl", "actions": ["0", "1"]}')
    assert cli.main(["train", str(tmp_path / "dqn.json")]) == 2
    assert (
        f"a workflow file, not a run; lockstep offline train {tmp_path / 'dqn.json'} learns" in capsys.readouterr().err
    )
    assert cli.main(["offline", "train", str(data / "dataset.json")]) == 2
    assert f"name their directory: lockstep offline train {data}" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("task", "reason"),
    [("CartPole-v9", "task=CartPole-v9 is unknown"), ("Acrobot-v1", "task=Acrobot-v1 observes 6 numbers, the log has")],
)
def test_a_task_that_does_not_fit_is_refused_before_the_run_begins(task, reason, tmp_path, log, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert call(capsys, log, "--out", "data")[0] == 0
    assert cli.main(["offline", "train", "data", "--task", task]) == 2
    printed = capsys.readouterr()
    assert reason in printed.err
    assert "run directory" not in printed.out
    assert not (tmp_path / "runs").exists()
