"""SAC and TD3 with `compile` and in bfloat16 learn what they learn in float32, up to rounding."""

import json
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[2] / "ranks"))
from running import lines, small_actor_critic

import lockstep

pytestmark = [
    pytest.mark.slow,  # compiles
    pytest.mark.filterwarnings("ignore:.*torch.jit:DeprecationWarning"),  # of torch's own compiler
]


def trained(folder, algo, **changes):
    """The fingerprint of the parameters, and the mean loss of the value networks at the end."""
    run = small_actor_critic(algo, total_steps=320, evaluate_episodes=1, **changes)
    lockstep.train(run, run_dir=folder)
    summary = json.loads((folder / "summary.json").read_text())
    return summary["params_fingerprint"], lines(str(folder))[-1]["loss/value"]


@pytest.mark.parametrize("algo", ["sac", "td3"])
def test_variants_learn_the_same_up_to_rounding(tmp_path, algo):
    plain, loss = trained(tmp_path / "plain", algo)
    for name, changes, tolerance in [
        ("compiled", {"compile": True}, 1e-3),
        ("bfloat16", {"precision": "bfloat16"}, 0.1),
    ]:
        parameters, other = trained(tmp_path / name, algo, **changes)
        assert parameters != plain, f"{name} changed nothing"
        assert other == pytest.approx(loss, rel=tolerance), name
