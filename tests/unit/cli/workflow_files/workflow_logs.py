"""Small logs, for tests of workflow files."""

import json
from pathlib import Path

import numpy as np


def rows(episodes, *, length=10, scale=1.0):
    """Rows of episodes `first..last`, each made from its number alone."""
    made = []
    for episode in episodes:
        draws = np.random.default_rng(episode)
        for step in range(length):
            state = {"0": float(draws.normal(0, scale) + episode), "1": float(draws.random())}
            action = str(int(draws.integers(2)))
            made.append(
                {
                    "mdp_id": f"e{episode}",
                    "sequence_number": step,
                    "state_features": state,
                    "action": action,
                    "reward": float(state["1"] if action == "1" else 0.2),
                    "action_probability": 0.5,
                    "possible_actions": ["0", "1"],
                    "metrics": {"clicks": float(step % 2)},
                }
            )
    return made


def parametric(made):
    """The same rows with actions that are features."""
    candidates = [{"4": 1.0}, {"5": 1.0}]
    return [row | {"action": candidates[int(row["action"])], "possible_actions": candidates} for row in made]


def write(path: Path, made, shuffled=None):
    """As JSON lines, in another order if `shuffled` is a seed."""
    order = np.arange(len(made)) if shuffled is None else np.random.default_rng(shuffled).permutation(len(made))
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(made[index]) + "\n" for index in order))
    return path
