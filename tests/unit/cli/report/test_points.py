"""Measurements out of run directories and files of points: what counts, what is assumed, what is refused."""

import json

import pytest

from lockstep.algorithms.dqn import DQNConfig
from lockstep.algorithms.ppo import PPOConfig
from lockstep.cli import main as cli
from lockstep.cli.report import scaling
from lockstep.cli.report.load import load_points, seconds_per_update
from lockstep.distributed.timers import PHASES
from lockstep.errors import ConfigError
from lockstep.record.summary import empty_summary
from lockstep.run import Run, dump, override

RUN = Run(task="CartPole-v1", num_envs=16, algorithm=PPOConfig(num_steps=32))
PREFLIGHT = {
    "hosts": [{"host": "alpha", "cores": 4}, {"host": "beta", "cores": 2}],
    "small": {"bytes": 32, "seconds": 0.001},
    "large": {"bytes": 4_000_000, "seconds": 0.1, "bytes_per_s": 4e7},
    "num_parameters": 9155,
}
UPDATE = {"env": 0.010, "act": 0.005, "learn": 0.040, "sync": 0.002, "wait": 0.003, "other": 0.001}


@pytest.fixture
def run_dir(tmp_path):
    """Writes a run directory of 40 updates; the first 10 took ten times as long, and lie before the first line."""

    def write(name="run", run=RUN, preflight=PREFLIGHT, lines=4, hosts=("alpha", "alpha", "beta", "beta"), **summary):
        path = tmp_path / name
        path.mkdir()
        (path / "run.yaml").write_text(dump(run))
        ranks = [{"rank": rank, "host": host} for rank, host in enumerate(hosts)]
        known = {"status": "finished", "world_size": len(hosts), "num_shards": len(hosts), "ranks": ranks}
        (path / "summary.json").write_text(json.dumps(empty_summary(run) | known | summary))
        with (path / "metrics.jsonl").open("w") as file:
            for line in range(lines):
                updates = 100 + 10 * line  # like a hundred updates in the first ten
                phases = {f"time/{phase}_s": UPDATE.get(phase, 0.0) * updates for phase in PHASES}
                phases |= {"time/evaluate_s": 5.0 * line, "time/checkpoint_s": 0.5 * line}
                told = {"step": 512 * 10 * (line + 1), "time_s": sum(phases.values())}
                file.write(json.dumps(told | phases | {"progress/updates": 10.0 * (line + 1)}) + "\n")
        if preflight is not None:
            (path / "preflight.json").write_text(json.dumps(preflight))
        return path

    return write


def test_an_update_is_measured_once_warm_and_without_evaluations(run_dir):
    seconds, parts, updates = seconds_per_update(run_dir())
    assert updates == 30
    assert seconds == pytest.approx(0.061)
    assert parts == pytest.approx((0.015, 0.041, 0.005))


def test_layout_has_ranks_hosts_and_round_trip(run_dir):
    (point,), notes = load_points([run_dir()])
    assert notes == []
    assert (point.layout.ranks, point.layout.hosts, point.layout.cores) == (4, 2, 2)
    assert point.layout.round_trip_s == 0.002  # the small sum went one way
    assert point.layout.bandwidth == 4e7
    assert (point.work.num_envs, point.work.num_steps, point.work.messages) == (16, 32, 17)
    assert point.work.num_bytes == 4 * 9155
    assert point.work.num_shards is None


def test_pinned_shards_are_part_of_the_work(run_dir):
    (point,), _ = load_points([run_dir(run=override(RUN, {"num_shards": 4}))])
    assert point.work.num_shards == 4


def test_without_preflight_cores_are_assumed_and_several_hosts_are_not_used(run_dir):
    (point,), notes = load_points([run_dir("one", preflight=None, hosts=("alpha", "alpha"))])
    assert point.layout.cores is None
    assert "the cores of its hosts are not known: taken as enough" in notes[0]
    points, notes = load_points([run_dir("two", preflight=None)])
    assert points == []
    assert "preflight.json does not say how far apart its 2 hosts are" in notes[0]


@pytest.mark.parametrize(
    ("how", "why"),
    [
        ({"status": "failed"}, "it failed"),
        ({"resumed_from": "checkpoints/step_5"}, "it was resumed"),
        ({"lines": 1}, "0 updates between its log lines, at least 10 are needed; train longer or lower log_every"),
        ({"lines": 0}, "0 updates between its log lines"),
    ],
)
def test_unusable_runs_are_skipped_with_a_note(run_dir, how, why):
    points, notes = load_points([run_dir(**how)])
    assert points == []
    assert why in notes[0]


def test_damaged_runs_are_skipped_with_a_note(run_dir):
    paths = [run_dir(name) for name in ("good", "empty", "odd", "foreign")]
    (paths[1] / "summary.json").write_text("{}")
    (paths[2] / "metrics.jsonl").write_text("[1]\n[2]\n")
    (paths[3] / "run.yaml").write_text("lr: 0.1\n")
    points, notes = load_points(paths)
    assert [point.name for point in points] == [str(paths[0])]
    assert [note.partition(": not used: ")[0] for note in notes] == [str(path) for path in paths[1:]]


def test_a_line_that_was_cut_off_is_skipped(run_dir):
    path = run_dir()
    with (path / "metrics.jsonl").open("a") as file:
        file.write('{"step": 999, "ti\xe9')
    (point,), notes = load_points([path])
    assert notes == [] and point.seconds == pytest.approx(0.061)


def test_directories_of_runs_are_taken(run_dir, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(scaling, "predicted", lambda points, *_: " ".join(point.name for point in points))
    for name in ("all/one", "all/more/two"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        run_dir(name)
    assert cli.main(["report", str(tmp_path / "all"), str(tmp_path / "all/one"), "--predict"]) == 0
    assert capsys.readouterr().out.split() == [f"{tmp_path}/all/more/two", f"{tmp_path}/all/one"]
    (tmp_path / "none").mkdir()
    assert cli.main(["report", str(tmp_path / "none"), "--predict"]) == 2
    assert "none holds no run" in capsys.readouterr().err


def test_runs_that_cost_differently_are_refused_with_the_difference(run_dir):
    other = override(RUN, {"network.hidden": [256, 256], "seed": 3, "num_envs": 64})
    with pytest.raises(ConfigError, match=r"one and .*two do not cost the same \(.*64.* and .*256"):
        load_points([run_dir("one"), run_dir("two", run=other)])


def test_what_the_model_knows_may_differ(run_dir):
    free = {"seed": 3, "num_envs": 64, "total_steps": 7, "num_epochs": 2, "log_every": 5, "timeout_s": 9}
    points, _ = load_points([run_dir("one"), run_dir("two", run=override(RUN, free))])
    assert len(points) == 2


def test_a_run_with_a_replay_is_measured_from_when_it_learns(run_dir):
    run = Run(task="CartPole-v1", algo="dqn", num_envs=16, algorithm=DQNConfig(learning_starts=10_240))
    told = run_dir("one", run=run, lines=6)
    assert seconds_per_update(told, 0)[2] == 50
    assert seconds_per_update(told, run.algorithm.learning_starts)[2] == 40, "lines at 10240, 15360, ... steps"
    other = override(run, {"batch_size": 64, "updates_per_step": 1, "learning_starts": 0, "num_steps": 4, "seed": 1})
    (one, two), _ = load_points([told, run_dir("two", run=other)])
    assert (one.work.gradient_steps, two.work.gradient_steps) == (4, 64)
    with pytest.raises(ConfigError, match=r"do not cost the same \(double: true and double: false\)"):
        load_points([told, run_dir("three", run=override(run, {"double": "false"}))])
    started_late = run_dir("four", run=override(run, {"learning_starts": 10**9}))
    assert "0 updates between its log lines" in load_points([started_late])[1][0]


def test_a_path_that_is_not_there(tmp_path):
    with pytest.raises(ConfigError, match="nowhere does not exist; give run directories"):
        load_points([tmp_path / "nowhere"])


ENTRY = {
    "name": "a",
    "ranks": 2,
    "hosts": 2,
    "cores": 1,
    "round_trip_s": 1e-3,
    "num_envs": 16,
    "num_steps": 128,
    "num_epochs": 4,
    "num_minibatches": 4,
    "num_bytes": 100,
    "seconds": 0.1,
    "rollout_s": 0.02,
    "learning_s": 0.05,
    "messages_s": 0.03,
}


def test_points_of_a_file(tmp_path):
    path = tmp_path / "points.json"
    path.write_text(json.dumps({"points": [ENTRY, {k: v for k, v in ENTRY.items() if k != "rollout_s"}]}))
    (one, other), notes = load_points([path])
    assert notes == []
    assert (one.name, one.layout.hosts, one.layout.round_trip_s, one.work.messages) == ("a", 2, 1e-3, 17)
    assert one.parts == (0.02, 0.05, 0.03)
    assert other.parts is None


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "is not a file of points"),
        ("[]", "is not a file of points"),
        ('{"points": [{"ranks": 1}]}', "a point has no"),
        (json.dumps({"points": [ENTRY | {"seconds": 0}]}), "point 0: seconds=0.0 must be greater than 0"),
        (json.dumps({"points": [ENTRY | {"hosts": 3}]}), "hosts=3 must be at least 1 and at most ranks=2"),
    ],
)
def test_a_bad_file_is_refused(tmp_path, text, why):
    path = tmp_path / "points.json"
    path.write_text(text)
    with pytest.raises(ConfigError, match=why):
        load_points([path])


def test_flags_of_predictions_are_refused_without_it(capsys):
    assert cli.main(["report", "--round-trip-ms", "abc"]) == 2
    assert "--round-trip-ms abc is for predictions; add --predict, or leave it out" in capsys.readouterr().err
