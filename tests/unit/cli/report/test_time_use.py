"""Where the time of a run went: one sentence for each kind of bottleneck, in the text report and on the page."""

import json

import pytest
from page_runs import PHASES, RUN, make_run

from lockstep.cli import main as cli
from lockstep.cli.report.page.groups import group_runs
from lockstep.cli.report.page.load import read_page_run
from lockstep.cli.report.page.time_section import time_section
from lockstep.cli.report.time_use import bottleneck, straggler
from lockstep.run import OfflineRun, override

IDLE = dict.fromkeys((*PHASES, "other"), 0.0)


def of(path):
    return bottleneck(read_page_run(path).time)


def test_sentence_names_the_largest_phase_and_what_helps(tmp_path):
    sentence = of(make_run(tmp_path / "env")).sentence
    helps = "more ranks, or env.vectorization=async where the task's environments are single ones, would help"
    assert sentence.startswith(f"62% of the time is env.step on one core: {helps}; ")
    assert "a faster network or a smaller policy would not" in sentence
    assert sentence.endswith("would save at most 45%.")
    assert of(make_run(tmp_path / "none", phases={}, status=None)) is None


@pytest.mark.parametrize(
    ("phase", "changes", "ranks", "what", "helps"),
    [
        ("env", {}, 1, "env.step on one core", "more ranks, or env.vectorization=async where the task's"),
        (
            *("env", {"env.vectorization": "sync"}, 1, "env.step on one core"),
            "env.vectorization=async or more ranks",
        ),
        ("env", {"env.vectorization": "entry_point"}, 1, "env.step on one core", "more ranks"),
        ("env", {"env.vectorization": "async"}, 2, "env.step in worker processes", "more ranks"),
        ("act", {}, 2, "choosing actions on 2 ranks", "more environments per step (num_envs) or more ranks"),
        ("learn", {}, 1, "learning on one core", "compile=true, a GPU or more ranks"),
        ("learn", {"compile": True}, 1, "learning on one core", "a GPU or more ranks"),
        ("sync", {}, 2, "exchanging numbers between ranks", "fewer and larger minibatches or fewer ranks"),
        ("wait", {}, 2, "waiting for other ranks", "cores that no other program uses, or fewer ranks"),
        ("evaluate", {}, 1, "evaluation", "a larger evaluate_every or fewer evaluate_episodes"),
        ("evaluate", {"evaluate_every": None}, 1, "evaluation", "fewer evaluate_episodes"),
        ("checkpoint", {}, 1, "checkpoints", "a larger checkpoint_every or a faster disk"),
        ("other", {}, 1, "work outside the named phases", "lockstep train --profile 10"),
    ],
)
def test_each_bottleneck_has_its_own_remedy(tmp_path, phase, changes, ranks, what, helps):
    phases = {**IDLE, "env": 10.0, "act": 10.0, "learn": 10.0, phase: 60.0}
    found = of(make_run(tmp_path / "run", override(RUN, changes), ranks=ranks, phases=phases))
    assert found.what == what
    assert found.helps.startswith(helps)
    share = 60 / (80 if phase in ("env", "act", "learn") else 90)
    assert found.sentence.startswith(f"{share:.0%} of the time is {what}: {helps}")
    assert (found.saved is None) == (phase not in ("env", "act", "learn"))


def test_compiled_program_on_the_device_is_not_called_learning(tmp_path):
    run = override(RUN, {"task": "jax/CartPole-v1", "ml_framework": "jax"})
    found = of(make_run(tmp_path / "run", run, phases={**IDLE, "learn": 9.0, "other": 1.0}))
    assert found.what == "the compiled program that steps environments, acts and learns on one core"


def test_learning_from_data_steps_no_environments(tmp_path):
    path = make_run(tmp_path / "run", OfflineRun(data="data"), phases={**IDLE, "learn": 9.0, "other": 1.0})
    assert of(path).what == "learning on one core"
    assert "; a faster disk or a faster network would not" in of(path).sentence
    shared = make_run(tmp_path / "shared", OfflineRun(data="data"), ranks=2, phases={**IDLE, "sync": 9.0, "learn": 1.0})
    found = of(shared)
    assert (found.helps, found.helps_not) == ("a larger batch_size or fewer ranks", "more ranks or a faster disk")
    judged = make_run(tmp_path / "judged", OfflineRun(data="data"), phases={**IDLE, "evaluate": 9.0, "other": 1.0})
    assert of(judged).helps == "estimate=false", "without estimate_every there is one, at the end"
    often = OfflineRun(data="data", estimate_every=1000)
    judged = make_run(tmp_path / "often", often, phases={**IDLE, "evaluate": 9.0, "other": 1.0})
    assert of(judged).helps == "fewer estimates (estimate_every) or estimate=false"


@pytest.mark.parametrize(
    "phases",
    [{"env": [1.0]}, {phase: ["1"] for phase in IDLE}, {phase: [None, 1.0] for phase in IDLE}],
)
def test_damaged_times_of_ranks_are_skipped(tmp_path, phases):
    path = make_run(tmp_path / "run", ranks=2, waits=[1.0, 90.0])
    (path / "ranks.jsonl").write_text(json.dumps({"step": 1, "phases_s": phases}) + "\n")
    time = read_page_run(path).time
    assert time.phases_of_ranks == [] and straggler(time) is None


def test_waiting_on_too_few_cores_wants_fewer_ranks(tmp_path):
    path = make_run(tmp_path / "run", ranks=4, phases={**IDLE, "wait": 60.0, "learn": 30.0})
    (path / "preflight.json").write_text(json.dumps({"hosts": [{"host": "node", "cores": 2, "ranks": [0, 1, 2, 3]}]}))
    assert of(path).helps == "fewer ranks or more cores"


@pytest.mark.parametrize(
    ("phase", "changes", "what", "helps"),
    [
        ("evaluate", {}, "while the slowest evaluates", "a larger evaluate_every or"),
        ("evaluate", {"evaluate_video": True}, "while the slowest evaluates", "evaluate_video=false, a larger"),
        ("checkpoint", {}, "while the slowest saves the state", "a larger checkpoint_every"),
        ("learn", {}, "", "a faster machine for the slowest rank"),
    ],
)
def test_waiting_names_what_the_slowest_rank_does(tmp_path, phase, changes, what, helps):
    path = make_run(tmp_path / "run", override(RUN, changes), ranks=2, phases={**IDLE, "wait": 40.0, phase: 20.0})
    of_ranks = IDLE | {"wait": [5.0, 75.0], phase: [70.0, 0.0], "learn" if phase != "learn" else "env": [10.0, 10.0]}
    columns = {name: found if isinstance(found, list) else [0.0, 0.0] for name, found in of_ranks.items()}
    (path / "ranks.jsonl").write_text(json.dumps({"step": 1, "phases_s": columns}) + "\n")
    found = of(path)
    assert found.what == f"waiting for other ranks {what}".strip() and found.helps.startswith(helps)


def test_recorded_profile_is_named_for_the_time_it_took(tmp_path):
    path = make_run(tmp_path / "run", phases={**IDLE, "other": 60.0, "learn": 30.0})
    (path / "profile.json.gz").write_bytes(b"")
    assert of(path).helps.startswith("no --profile")


def test_rank_that_waits_least_is_the_straggler(tmp_path):
    run = read_page_run(make_run(tmp_path / "run", ranks=3, waits=[20.0, 1.0, 22.0])).time
    assert straggler(run).startswith("Rank 1 on node is the slowest: it waited 1.0 s, the others 21.0 s on average")
    assert straggler(read_page_run(make_run(tmp_path / "even", ranks=2, waits=[2.0, 3.0])).time) is None


def test_process_of_several_devices_is_called_a_process(tmp_path):
    run = override(RUN, {"ml_framework": "jax", "devices_per_process": 2})
    found = read_page_run(make_run(tmp_path / "run", run, ranks=2, waits=[20.0, 1.0]))
    assert straggler(found.time).startswith("Process 1 is the slowest: it waited 1.0 s")
    (entry,) = time_section(group_runs([found]))["ranks"]
    assert "of 2 processes of run" in entry["chart"] and entry["rows"][0][0] == "process 0"


def test_text_report_says_what_would_help_once_for_runs_alike(here, capsys):
    for seed in range(4):
        phases = PHASES | {"env": 62.0 + 20 * seed}
        make_run(f"runs/{seed}", override(RUN, {"seed": seed}), phases=phases)
    make_run("runs/wait", ranks=2, waits=[1.0, 40.0], phases=PHASES | {"sync": 300.0})
    assert cli.main(["report"]) == 0
    printed = capsys.readouterr().out
    assert (
        "runs/0, runs/1, runs/2 and 1 more: 62% to 76% of the time is env.step on one core: more ranks, or" in printed
    )
    assert "runs/wait: 76% of the time is exchanging numbers between ranks: fewer and larger minibatches" in printed
    assert "runs/wait: Rank 0 on node is the slowest: it waited 1.0 s" in printed
    assert cli.main(["report", "--json", "runs/0"]) == 0
    (entry,) = json.loads(capsys.readouterr().out)["runs"]
    assert entry["phases_s"]["env"] == 62.0
    assert entry["advice"].startswith("62% of the time is env.step")
