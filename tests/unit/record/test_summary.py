"""summary.json has every key of schema 1, in order."""

import json
import platform
from importlib.metadata import version

from lockstep.record import summary as module
from lockstep.record.summary import empty_summary, versions
from lockstep.run import Run

KEYS = [
    "schema",
    "status",
    "error",
    "task",
    "algo",
    "ml_framework",
    "seed",
    "world_size",
    "num_shards",
    "shards_pinned",
    "backend",
    "devices",
    "env_steps",
    "updates",
    "episodes",
    "wall_time_s",
    "startup_s",
    "steps_per_second",
    "return_mean_100",
    "eval_return_mean",
    "eval_return_std",
    "eval_episodes",
    "solved_at_step",
    "solved_at_s",
    "params_fingerprint",
    "phases_s",
    "ranks",
    "restarts",
    "resumed_from",
    "versions",
]


def test_all_keys_in_order():
    empty = empty_summary(Run(task="a", seed=7, num_shards=2))
    assert list(empty) == KEYS
    assert list(empty["phases_s"]) == ["env", "act", "learn", "sync", "wait", "evaluate", "checkpoint", "other"]
    assert (empty["schema"], empty["task"], empty["algo"], empty["seed"], empty["num_shards"]) == (1, "a", "ppo", 7, 2)
    assert empty["shards_pinned"] and not empty_summary(Run(task="a"))["shards_pinned"]
    json.dumps(empty, allow_nan=False)


def test_an_unfinished_summary_does_not_claim_success():
    assert empty_summary(Run(task="a"))["status"] == "failed"


def test_two_summaries_share_nothing():
    first, second = empty_summary(), empty_summary()
    first["phases_s"]["env"] = 1.0
    first["ranks"].append({})
    assert second["phases_s"]["env"] == 0.0
    assert second["ranks"] == []


def test_versions_name_what_decides_numbers(monkeypatch):
    assert versions()["python"] == platform.python_version()
    assert versions()["numpy"] == version("numpy")
    assert versions()["lockstep"] == version("lockstep-rl")
    assert {"torch", "jax", "jaxlib"}.isdisjoint(versions())
    monkeypatch.setattr(module, "version", lambda name: name)
    assert [name for name in versions("torch") if name not in versions()] == ["torch"]
    assert [name for name in versions("jax") if name not in versions()] == ["jax", "jaxlib"]
    monkeypatch.setitem(module._REPORTED, "gymnasium", "no-such-distribution")
    monkeypatch.setattr(module, "version", version)
    assert "gymnasium" not in versions()
