"""`lockstep report --predict`: its text, its refusals, and a run that was really trained."""

import argparse
import json
import re

import pytest
from test_fit import LAYOUTS, point, work

from lockstep.algorithms.ppo import PPOConfig
from lockstep.cli.report import add_arguments, report_command
from lockstep.cli.report.fit import fit
from lockstep.cli.report.scaling import PREDICTED_RANKS, Target, predicted
from lockstep.errors import ConfigError
from lockstep.preflight.cost_model import Layout, predict
from lockstep.run import Run
from lockstep.train import train

POINTS = [point(layout, size) for layout in LAYOUTS[::3] for size in (work(16), work(64), work(32, num_steps=32))]


def command(*words):
    parser = argparse.ArgumentParser()
    add_arguments(parser)
    return report_command(parser.parse_args([str(word) for word in words]))


def rows_of(text, title):
    """The table below a title, as lists of words; the first column of `measured` may hold several."""
    section = text.partition(title)[2].partition("\n\n")[0]
    return [line.split() for line in section.splitlines()[2:]]


def test_both_kinds_of_scaling_are_the_models_own_numbers():
    text = predicted(POINTS, [], Target(round_trip_s=1e-4, envs_per_rank=32))
    costs = fit(POINTS)
    weak = rows_of(text, "weak scaling: 32 environments per rank")
    assert [int(row[0]) for row in weak] == list(PREDICTED_RANKS)
    for ranks, row in zip(PREDICTED_RANKS, weak, strict=True):
        hosts = ranks // 8
        found = predict(costs, work(32 * ranks), Layout(ranks=ranks, hosts=hosts, round_trip_s=1e-4))
        alone = predict(costs, work(32), Layout(ranks=1))
        efficiency = found.steps_per_second / alone.steps_per_second / ranks
        assert row[1:5] == [str(hosts), str(32 * ranks), f"{found.steps_per_second:.0f}", f"{efficiency:.0%}"]
        assert " ".join(row[6:]) == found.bound
    strong = rows_of(text, "strong scaling: 4096 environments in all")
    assert [row[2] for row in strong] == ["4096"] * len(PREDICTED_RANKS)
    assert [float(row[4][:-1]) for row in strong] == sorted((float(row[4][:-1]) for row in strong), reverse=True)


def test_the_error_on_unseen_measurements_is_told():
    exact = predicted(POINTS, [], Target())
    assert "held-out error: median 0%, largest 0% (12 of 12 measurements" in exact
    wrong = [*POINTS, point(Layout(ranks=1), work(1024), factor=1.25)]
    told = predicted(wrong, [], Target())
    assert int(re.search(r"largest (\d+)%", told)[1]) in range(15, 30)


def test_more_ranks_than_cores_are_slower():
    rows = [rows_of(predicted(POINTS, [], Target(cores=cores)), "weak scaling")[-1] for cores in (8, 4)]
    assert int(rows[0][3]) > 1.3 * int(rows[1][3])


def test_notes_come_first():
    assert predicted(POINTS, ["runs/a: not used"], Target()).startswith("note: runs/a: not used\n")


ALONE = [point(Layout(ranks=1), work(16)), point(Layout(ranks=1), work(64))]
NEAR = [*ALONE, point(Layout(ranks=2), work(16))]


@pytest.mark.parametrize(
    ("points", "target", "wanted"),
    [
        ([], Target(), "there is nothing to predict from; make runs with at least 10 updates between"),
        (ALONE[:1], Target(), r"1 measurement cannot .*num_envs=4 or 64.*--ranks 2.*--nnodes 2.*--round-trip-ms"),
        (ALONE, Target(), r"2 measurements cannot .*--ranks 2\); one on two hosts"),
        (
            NEAR,
            Target(),
            r"3 measurements cannot .* add a run: one on two hosts \(--nnodes 2\), or give the round trip",
        ),
        (ALONE, Target(round_trip_s=1e-3), r"add a run: one with several ranks on a host \(--ranks 2\)$"),
    ],
)
def test_too_few_measurements_are_refused_with_the_runs_to_make(points, target, wanted):
    with pytest.raises(ConfigError, match=wanted):
        predicted(points, [], target)


@pytest.mark.parametrize("points", [[], ALONE[:1]])
def test_refusal_says_why_runs_were_not_used(points):
    notes = ["runs/a: not used: it failed", "runs/b: not used: it was resumed"]
    with pytest.raises(ConfigError, match=rf"\({notes[0]}; {notes[1]}\); "):
        predicted(points, notes, Target())


def test_a_given_round_trip_stands_for_a_measured_one():
    text = predicted(NEAR, [], Target(round_trip_s=2e-3))
    assert "a message between hosts: not measured; only its latency is counted, 0.50 round trips" in text
    assert "measured with 2 only: each further rank of a host is assumed to cost the same" in text
    assert rows_of(text, "weak scaling")[-1][6:] == ["messages", "between", "hosts"]
    predicted(ALONE, [], Target(round_trip_s=1e-3, ranks_per_host=1))  # one rank per host sends nothing within it


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (("--predict", "--json"), "--json is for the table of runs"),
        (("--predict", "--ranks-per-host", "0"), "--ranks-per-host 0 must be a number, at least 1"),
        (("--predict", "--num-envs", "x"), "--num-envs x must be a number"),
        (("--predict", "--round-trip-ms", "-1"), "--round-trip-ms -1 must be a number greater than 0"),
        (("--predict", "--round-trip-ms", "nan"), "--round-trip-ms nan must be"),
        (("--predict", "--bandwidth-gbit", "fast"), "--bandwidth-gbit fast must be"),
    ],
)
def test_bad_arguments_are_refused(words, why, tmp_path):
    with pytest.raises(ConfigError, match=re.escape(why)):
        command(tmp_path, *words)


def test_units_of_the_command(tmp_path, capsys):
    entries = [
        {
            "name": p.name,
            **{"ranks": p.layout.ranks, "hosts": p.layout.hosts, "cores": p.layout.cores},
            **{"round_trip_s": p.layout.round_trip_s, "seconds": p.seconds, "num_bytes": p.work.num_bytes},
            **{"num_envs": p.work.num_envs, "num_steps": 128, "num_epochs": 4, "num_minibatches": 4},
        }
        for p in (point(layout, work(n)) for layout in LAYOUTS for n in (16, 64))
    ]
    path = tmp_path / "points.json"
    path.write_text(json.dumps({"points": entries}))
    assert command(path, "--predict", "--round-trip-ms", "0.25", "--bandwidth-gbit", "10", "--ranks-per-host", "4") == 0
    shown = capsys.readouterr().out
    assert "predicted; ranks per host: 4, round trip between hosts: 250 us, bandwidth: 10 Gbit/s" in shown
    assert rows_of(shown, "weak scaling")[-1][:2] == ["1024", "256"]


def test_a_real_run_is_a_measurement(tmp_path, capsys, monkeypatch):
    for name in ("RANK", "WORLD_SIZE"):
        monkeypatch.delenv(name, raising=False)
    for num_envs in (4, 16):
        run = Run(
            task="CartPole-v1",
            device="cpu",
            num_envs=num_envs,
            total_steps=14 * 16 * num_envs,
            log_every=2 * 16 * num_envs,
            evaluate_every=None,
            evaluate_episodes=1,
            checkpoint_every=None,
            algorithm=PPOConfig(num_steps=16, num_epochs=1, num_minibatches=2),
        )
        train(run, run_dir=tmp_path / str(num_envs))
    capsys.readouterr()
    paths = [tmp_path / "4", tmp_path / "16"]
    assert command(*paths, "--predict", "--ranks-per-host", "1", "--round-trip-ms", "1") == 0
    shown = capsys.readouterr().out
    measured = rows_of(shown, "milliseconds per update")
    assert [row[0] for row in measured[:2]] == [str(path) for path in paths]
    summary = json.loads((tmp_path / "16" / "summary.json").read_text())
    assert float(measured[1][1]) == pytest.approx(256 / summary["steps_per_second"] * 1e3, rel=0.7)
