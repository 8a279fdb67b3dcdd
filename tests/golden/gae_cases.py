"""What both backends' `gae` must give: tables computed by hand, and the recursion as the papers write it, in numpy."""

import json
from pathlib import Path

import numpy as np

ARRAYS = ("reward", "value", "next_value", "terminated", "ended")
CASES = json.loads((Path(__file__).parent / "gae.json").read_text())["cases"]
NAMES = [case["name"] for case in CASES]


def inputs(case):
    """The five arrays of a case in the order of `gae`'s arguments, float32 [T, B]."""
    arrays = {name: np.array(case[name], np.float32) for name in case if isinstance(case[name], list)}
    arrays["ended"] = np.maximum(arrays["terminated"], arrays["truncated"])
    return [arrays[name] for name in ARRAYS]


def expected(case):
    return np.array(case["advantage"], np.float32)


def random_inputs(steps, num_envs, seed=0):
    stream = np.random.default_rng(seed)
    reward, value, next_value = stream.normal(size=(3, steps, num_envs)).astype(np.float32)
    terminated = (stream.random((steps, num_envs)) < 0.1).astype(np.float32)
    truncated = (stream.random((steps, num_envs)) < 0.1).astype(np.float32)
    return [reward, value, next_value, terminated, np.maximum(terminated, truncated)]


def recursion(reward, value, next_value, terminated, ended, *, gamma, gae_lambda):
    """Step by step from the end, in float64."""
    advantage, carried = np.zeros(reward.shape), np.zeros(reward.shape[1])
    for t in reversed(range(len(reward))):
        delta = reward[t] + gamma * (1.0 - terminated[t]) * next_value[t].astype(np.float64) - value[t]
        advantage[t] = carried = delta + gamma * gae_lambda * (1.0 - ended[t]) * carried
    return advantage
