"""`examples/score_actions.py` scores with onnxruntime and numpy alone what the policy scores."""

import ast
import re
import subprocess
import sys

import pytest
import torch

import made_data
from lockstep.algorithms.offline import OfflineDQNConfig
from lockstep.data.dataset import Dataset
from lockstep.run import ScoreNetworkConfig
from lockstep.torch.offline_export import export
from lockstep.torch.scoring import About, ScoringPolicy

pytest.importorskip("onnxruntime")
pytest.importorskip("onnxscript")
WITHOUT = (
    "import sys; sys.modules |= {'torch': None, 'lockstep': None}; sys.argv = sys.argv[1:]; "
    "exec(open(sys.argv[0]).read())"
)
TWO = '{"100": 2.0, "101": 1.0}'
LISTED = ({"100": 0.5}, {"101": -1.0}, {"100": 2.0, "101": 1.0})


def exported(path, kind):
    columns = made_data.discrete_columns() if kind == "discrete" else made_data.parametric_columns()
    said = {} if kind == "discrete" else {"candidates": LISTED}
    data = Dataset.open(made_data.write(path / "data", columns, **said))
    about = About(
        info=data.info,
        state=data.state_features,
        action=data.action_features,
        network=ScoreNetworkConfig(),
        algo="dqn" if kind == "discrete" else "parametric_dqn",
        algorithm=OfflineDQNConfig(),
    )
    policy = ScoringPolicy(about, seed=1)
    return policy, export(policy, data, path / "policy.onnx", "onnx").path


@pytest.mark.parametrize("kind", ["discrete", "parametric"])
def test_it_scores_without_lockstep(examples, tmp_path, kind):
    policy, path = exported(tmp_path, kind)
    states = '{"0": 0.02, "3": -1.5}', '{"1": 0.3, "unknown": 7}'
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT, examples / "score_actions.py", path, *states],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    state = torch.tensor([[0.02, 0, 0, -1.5], [0, 0.3, 0, 0]])
    with torch.no_grad():
        if kind == "discrete":
            wanted = policy.network(state)
        else:
            candidates = torch.tensor([[0.5, 0.0], [0.0, -1.0], [2.0, 1.0]])
            wanted = policy.network(state, candidates.repeat(2, 1), torch.arange(2).repeat_interleave(3)).view(2, 3)
    for line, scores in zip(done.stdout.splitlines(), wanted, strict=True):
        told, best = line.rsplit("} -> ", 1)
        said = ast.literal_eval(told + "}")
        names = list(policy.info.actions) if kind == "discrete" else ['{"100": 0.5}', '{"101": -1.0}', TWO]
        assert list(said) == names
        assert list(said.values()) == pytest.approx(scores.tolist(), abs=1e-4)
        assert best == names[scores.argmax()]


def test_it_is_short(examples):
    text = (examples / "score_actions.py").read_text()
    code = [
        line for line in text.split('"""', 2)[2].splitlines() if line and not re.match(r"\s*(#|\"\"\"|import)", line)
    ]
    assert len(code) <= 20
