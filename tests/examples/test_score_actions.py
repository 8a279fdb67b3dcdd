"""`examples/score_actions.py` scores with onnxruntime and numpy alone what the policy scores."""

import ast
import json
import os
import re
import subprocess
import sys

import pytest
import torch

import made_data
from lockstep.algorithms.offline import OfflineDQNConfig
from lockstep.data.dataset import Dataset
from lockstep.envs.spec import ActionSpec, EnvSpec
from lockstep.run import NetworkConfig, OfflineRun, ScoreNetworkConfig
from lockstep.session.offline.policy_spec import OfflinePolicySpec
from lockstep.torch.deploy.acting_export import export_acting
from lockstep.torch.deploy.offline_export import export
from lockstep.torch.networks import Policy
from lockstep.torch.scoring.policy import ScoringPolicy
from offline_policies import policy_for
from quick import others_slow

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
    about = OfflinePolicySpec(
        info=data.info,
        state=data.state_features,
        action=data.action_features,
        network=ScoreNetworkConfig(),
        algo="dqn" if kind == "discrete" else "parametric_dqn",
        algorithm=OfflineDQNConfig(),
    )
    policy = ScoringPolicy(about, seed=1)
    return policy, export(policy, data, path / "policy.onnx", "onnx").path


@pytest.fixture(scope="module")
def discrete(tmp_path_factory):
    """A policy with named actions, and its file."""
    return exported(tmp_path_factory.mktemp("discrete"), "discrete")


@pytest.fixture(scope="module")
def environments(tmp_path_factory):
    """Exported policies of an environment, by their kind."""
    spec, folder = EnvSpec(4, ActionSpec("discrete", (2,)), "same_step", True), tmp_path_factory.mktemp("acting")
    images = EnvSpec(84 * 84, ActionSpec("discrete", (2,)), "same_step", True, image=(1, 84, 84))
    made = {kind: Policy(spec, NetworkConfig(hidden=(8,), recurrent=kind)) for kind in ("none", "gru")}
    made["image"] = Policy(images, NetworkConfig(hidden=(8,)))
    return {kind: export_acting(policy, None, folder / f"{kind}.onnx", "onnx").path for kind, policy in made.items()}


def called(examples, path, *states):
    """What the example says to states, in a process without Lockstep."""
    command = [sys.executable, "-c", WITHOUT, examples / "score_actions.py", path, *states]
    return subprocess.run(command, capture_output=True, text=True, check=False)


@pytest.mark.parametrize("kind", others_slow(["discrete", "parametric"], "discrete"))
def test_it_scores_without_lockstep(examples, tmp_path, discrete, kind):
    policy, path = discrete if kind == "discrete" else exported(tmp_path, kind)
    done = called(examples, path, '{"0": 0.02, "3": -1.5}', '{"1": 0.3}')
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


def test_a_null_feature_is_an_absent_one(examples, discrete):
    null, absent = (called(examples, discrete[1], state) for state in ('{"0": 0.02, "3": null}', '{"0": 0.02}'))
    assert null.returncode == 0, null.stderr
    assert null.stdout == absent.stdout


def test_only_possible_actions_are_chosen(examples, discrete):
    policy, path = discrete
    plain = called(examples, path, '{"0": 0.02}').stdout
    best = plain.rsplit("-> ", 1)[1].strip()
    others = [name for name in policy.info.actions if name != best]
    done = called(examples, path, json.dumps({"0": 0.02, "possible_actions": others}))
    assert done.returncode == 0, done.stderr
    told, chosen = done.stdout.strip().rsplit(" -> ", 1)
    scores = ast.literal_eval(told)
    assert scores[best] == -1e9
    assert chosen == max(others, key=lambda name: scores[name])


def test_whole_numbers_and_numbers_in_quotes_are_features_as_well(examples, discrete):
    state = {"0": 2, "1": 1, "2": 0, "3": -1}
    whole = called(examples, discrete[1], json.dumps(state))
    assert whole.returncode == 0, whole.stderr
    for other in (float, str):
        assert called(examples, discrete[1], json.dumps({k: other(v) for k, v in state.items()})).stdout == whole.stdout


def test_nothing_is_chosen_where_nothing_is_possible(examples, discrete):
    done = called(examples, discrete[1], '{"0": 0.02, "possible_actions": []}')
    assert done.returncode == 0, done.stderr
    told, chosen = done.stdout.strip().rsplit(" -> ", 1)
    assert (set(ast.literal_eval(told).values()), chosen) == ({-1e9}, "nothing")


@pytest.mark.parametrize(
    ("state", "message"),
    [
        ('{"0": 0.02, "speed": 7}', "unknown feature speed; this policy knows 0, 1, 2, 3"),
        ('{"0": 0.02, "possible_actions": ["left", "fly"]}', "unknown action fly; this policy knows left, right, up"),
    ],
)
def test_unknown_names_are_refused(examples, discrete, state, message):
    done = called(examples, discrete[1], '{"1": 0.3}', state)
    assert (done.returncode, done.stdout, done.stderr.strip()) == (1, "", message)


@pytest.mark.slow
def test_continuous_actions_are_printed(examples, tmp_path):
    data = Dataset.open(made_data.continuous(tmp_path / "data"))
    policy = policy_for(OfflineRun(data=str(data.path), algo="iql"), data)
    path = export(policy, data, tmp_path / "policy.onnx", "onnx").path
    done = called(examples, path, '{"0": 0.02, "3": -1.5}')
    assert done.returncode == 0, done.stderr
    with torch.no_grad():
        action = policy.unscaled(policy.act(torch.tensor([[0.02, 0, 0, -1.5]])))[0].tolist()
    assert ast.literal_eval(done.stdout) == pytest.approx({"100": action[0], "101": action[1]}, rel=2e-6)


@pytest.mark.slow
def test_a_policy_of_an_environment_is_refused_in_one_line(examples, environments):
    done = called(examples, environments["none"], '{"0": 0.02}')
    wanted = "a policy for observations, not for a log: see my_service.py"
    assert (done.returncode, done.stderr.strip()) == (1, wanted)


@pytest.mark.slow
def test_the_service_refuses_other_policies_in_one_line(examples, discrete, environments, tmp_path):
    pytest.importorskip("fastapi")
    refused = {
        tmp_path / "nowhere.onnx": "File doesn't exist",
        discrete[1]: "see score_actions.py",
        environments["gru"]: "this service keeps none",
        environments["image"]: "a policy of images: this service takes vectors of numbers",
    }
    for path, wanted in refused.items():
        command = [sys.executable, examples / "my_service.py"]
        done = subprocess.run(
            command, env=os.environ | {"POLICY": str(path)}, capture_output=True, text=True, check=False
        )
        assert done.returncode == 1 and done.stderr.strip().endswith(wanted) and "\n" not in done.stderr.strip()


@pytest.mark.parametrize("state", ["{0: 0.02}", '{"0": 0.02', "[0.02]", "0.02", '{"0": "fast"}', '{"0": [1]}'])
def test_a_state_that_is_no_map_of_numbers_is_refused_in_one_line(examples, discrete, state):
    done = called(examples, discrete[1], '{"1": 0.3}', state)
    wanted = f'{state} is not a state; write a map of numbers in JSON, such as {{"0": 0.5}}'
    assert (done.returncode, done.stdout, done.stderr.strip()) == (1, "", wanted)


def test_a_file_that_is_no_policy_is_refused_in_one_line(examples, tmp_path):
    (tmp_path / "other.onnx").write_text("not a model")
    for name in ("nowhere.onnx", "other.onnx"):
        done = called(examples, tmp_path / name, '{"0": 0.02}')
        assert (done.returncode, done.stdout) == (1, "") and "\n" not in done.stderr.strip()
        assert done.stderr.startswith(f"{tmp_path / name} is not a policy that `lockstep export --format onnx` wrote: ")


def test_without_a_policy_and_states_it_says_how_it_is_called(examples):
    done = called(examples, "policy.onnx")
    assert (done.returncode, done.stdout) == (1, "")
    assert "python score_actions.py policy.onnx" in done.stderr


def test_it_is_short(examples):
    text = (examples / "score_actions.py").read_text()
    code = [
        line for line in text.split('"""', 2)[2].splitlines() if line and not re.match(r"\s*(#|\"\"\"|import)", line)
    ]
    assert len(code) <= 40
