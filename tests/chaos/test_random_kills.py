"""Killed at twenty random moments, resumed on 1, 2 and 4 ranks in turn: as if it had never stopped."""

import contextlib
import json
import os
import random
import signal
import time

import pytest
from chaos_runs import BATCH, folder_for, resume, small, timeless, train

pytestmark = pytest.mark.chaos

KILLS = 20
UPDATES = 800
RANKS = (1, 2, 4)
CHANGES = {
    "discrete": {"task": "CartPole-v1"},
    "continuous": {"task": "Pendulum-v1", "normalize_observation": True, "normalize_return": True},
    "replay": {"task": "CartPole-v1", "algo": "dqn"},
}


def config(kind):
    return small(
        total_steps=UPDATES * BATCH,
        log_every=4 * BATCH,
        checkpoint_every=8 * BATCH,
        evaluate_every=200 * BATCH,
        timeout_s=30.0,
        **CHANGES[kind],
    )


@pytest.mark.parametrize("kind", CHANGES)
def test_killed_at_random_moments_equals_never_stopped(tmp_path, kind):
    reference = folder_for(tmp_path / "undisturbed", config(kind))
    start = train(reference, 2)
    assert start.wait(300.0) == 0, start.said
    folder = folder_for(tmp_path / "killed", config(kind))
    draw, reached = random.Random(f"kills {kind}"), []
    for number in range(KILLS):
        ranks = RANKS[number % len(RANKS)]
        begun = (folder / "run" / "run.yaml").exists()
        start = resume(folder, ranks) if begun else train(folder, ranks)
        kill_at_random(start, draw, ranks)
        reached.append(start.latest)
    assert reached == sorted(reached), "a resumed run went back behind its checkpoint"
    assert len(set(reached)) > KILLS // 3, f"the kills came too early to mean anything: {reached}"
    assert reached[-1] < UPDATES * BATCH, f"the run ended before it was killed for the last time: {reached}"
    last = resume(folder, RANKS[KILLS % len(RANKS)])
    assert last.wait(300.0) == 0, last.said
    last.check_clean()
    assert told(folder) == told(reference)
    assert timeless(folder) == timeless(reference)
    assert (folder / "run" / "evaluations.jsonl").read_text() == (reference / "run" / "evaluations.jsonl").read_text()


def kill_at_random(start, draw, ranks):
    """SIGKILL to all processes, to the launcher alone or to one rank, while it starts or soon after it got further."""
    whom, while_starting, delay_s = draw.choice(["all", "launcher", "rank"]), draw.random() < 0.25, draw.random()
    before = start.latest
    if while_starting:  # on a fast machine it has started before that time is over
        until = time.monotonic() + 5.0 * delay_s
        while time.monotonic() < until and start.latest == before:
            time.sleep(0.02)
    else:
        start.until(lambda: start.latest > before)
        time.sleep(0.15 * delay_s)
    assert start.process.poll() is None, f"it ended by itself:\n{start.said}"
    found = start.ranks()
    if whom == "rank" and ranks > 1 and found:
        with contextlib.suppress(ProcessLookupError):
            os.kill(draw.choice(found), signal.SIGKILL)
        assert start.wait() == 137, start.said
        start.check_clean()
    elif whom == "launcher":
        start.process.kill()
        start.process.wait()
    else:
        start.kill_all()
    assert start.left() == [], start.said


def told(folder):
    """What the summary says, but for clocks and for who took part."""
    summary = json.loads((folder / "run" / "summary.json").read_text())
    keys = ("status", "env_steps", "updates", "episodes", "return_mean_100", "eval_return_mean", "params_fingerprint")
    return {key: summary[key] for key in keys} | {"num_shards": summary["num_shards"]}
