"""Exported policies of environments: they map observations to the actions of an evaluation."""

import json
import threading
from dataclasses import replace

import numpy as np
import pytest
import torch

from lockstep.algorithms.dqn import DQNConfig
from lockstep.algorithms.sac import SACConfig
from lockstep.algorithms.td3 import TD3Config
from lockstep.cli.main import main
from lockstep.envs.make import env_spec
from lockstep.envs.spec import ActionSpec, EnvSpec, ImagePart
from lockstep.errors import RunError
from lockstep.experience.normalize import RunningMoments
from lockstep.run import NetworkConfig, Run
from lockstep.session.evaluation import Player
from lockstep.torch.continuous_policy import ContinuousPolicy
from lockstep.torch.deploy import acting_export
from lockstep.torch.deploy.acting_export import export_acting
from lockstep.torch.deploy.exported_file import run_program
from lockstep.torch.deploy.onnx_model import run_onnx
from lockstep.torch.export import load_policy, save_policy
from lockstep.torch.networks import Policy, actor_of
from lockstep.torch.q_networks import QPolicy
from quick import others_slow

pytest.importorskip("onnxruntime")
pytest.importorskip("onnxscript")

SMALL = NetworkConfig(hidden=(8, 8))
CHOICE = ActionSpec("discrete", (3,))
CHOICES = ActionSpec("multi_discrete", (3, 2))
CHOICE_MATRIX = ActionSpec("multi_discrete", (3, 2, 2, 2), start=(1, 0, -5, 0), shape=(2, 2))
FORCE = ActionSpec("continuous", (2,), (-0.01, -np.inf), (0.01, np.inf))
BOUNDED = ActionSpec("continuous", (2,), (-1.0, -0.5), (1.0, 3.0))


def spec(action, **image):
    size = int(np.prod(image["image"])) if image else 4
    return EnvSpec(size, action, "next_step", separately_seedable=True, **image)


def privileged():
    """A spec whose value network has an observation of its own."""
    return replace(spec(FORCE), critic_size=3)


def moments():
    found = RunningMoments(4, limit=2.0)
    rows = np.random.default_rng(0).normal([0.0, 50.0, -3.0, 0.0], [1.0, 20.0, 0.1, 1e-3], (100, 4))
    found.update(found.sums(rows, np.ones(100)))
    return found


def arm():
    """A spec with an image among the numbers of both networks' observations."""
    image = ImagePart(1, (1, 6, 7))
    return replace(spec(FORCE), observation_size=44, image_parts=(image,), critic_size=44, critic_image_parts=(image,))


def arm_moments():
    found = RunningMoments(44, fixed=[slice(1, 43)])
    rows = np.random.default_rng(0).normal(3.0, 2.0, (100, 44))
    found.update(found.sums(rows, np.ones(100)))
    return found


CONTINUOUS = ("matrix", "normalized", "privileged", "deviations", "arm", "sac", "td3")
POLICIES = {
    "choice": (lambda: Policy(spec(CHOICE), SMALL, 1), None),
    "choices": (lambda: Policy(spec(CHOICES), SMALL, 1), None),
    "choice from 1": (lambda: Policy(spec(replace(CHOICE, start=(1,))), SMALL, 1), None),
    "choices of a matrix": (lambda: Policy(spec(CHOICE_MATRIX), SMALL, 1), None),
    "matrix": (lambda: Policy(spec(replace(FORCE, shape=(2, 1))), SMALL, 1), moments()),
    "normalized": (lambda: Policy(spec(FORCE), SMALL, 1), moments()),
    "privileged": (lambda: Policy(privileged(), replace(SMALL, activation="elu"), 1), moments()),
    "deviations": (lambda: Policy(spec(FORCE), replace(SMALL, state_dependent_std=True), 1), moments()),
    "image": (lambda: Policy(spec(CHOICE, image=(2, 40, 40)), NetworkConfig(features=16), 1), None),
    "arm": (lambda: Policy(arm(), SMALL, 1), arm_moments()),
    "dqn": (lambda: QPolicy(spec(CHOICE), SMALL, DQNConfig(dueling=True, noisy=True), 1), None),
    "c51": (lambda: QPolicy(spec(CHOICE), SMALL, DQNConfig(value_distribution="categorical"), 1), None),
    "sac": (lambda: ContinuousPolicy(spec(BOUNDED), SMALL, SACConfig(), 1), moments()),
    "td3": (lambda: ContinuousPolicy(spec(BOUNDED), SMALL, TD3Config(), 1), None),
    "qr": (lambda: QPolicy(spec(CHOICE), SMALL, DQNConfig(value_distribution="quantile"), 1), None),
}


def some(spec):
    draws = np.random.default_rng(5)
    if spec.image is not None:
        return draws.integers(256, size=(6, *spec.image), dtype=np.uint8)
    return (100 * draws.normal(size=(6, spec.observation_size))).astype(np.float32)


@pytest.mark.parametrize("name", others_slow(POLICIES, "privileged", "dqn"))
def test_exported_file_acts_like_policy(tmp_path, name):
    make, observations = POLICIES[name]
    policy = make()
    with torch.no_grad():
        for parameter in policy.parameters():
            parameter.mul_(3)
    done = export_acting(policy, observations, tmp_path / "policy.onnx", "onnx")
    assert (done.rows, done.num_same_action) == (1000, None if name in CONTINUOUS else 1000)
    assert done.difference < 1e-5
    observation = some(policy.spec)
    seen = observation if observations is None else observations.normalize(observation)
    with torch.no_grad():
        wanted = policy(torch.from_numpy(seen))[0].numpy()
    action, scores = policy.distribution.mode(wanted), wanted
    if name in CONTINUOUS:
        scores = wanted[:, : policy.spec.action.width]  # means, without deviations
        action = action.clip(policy.spec.action.low, policy.spec.action.high)
    action = policy.spec.action.for_env(action)
    for rows in (slice(0, 6), slice(2, 3)):
        found = run_onnx(done.path, {"observation": observation[rows]})
        np.testing.assert_allclose(found["scores"], scores[rows], rtol=1e-4, atol=1e-5)
        np.testing.assert_allclose(found["action"], action[rows], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", others_slow(["choice", "choices of a matrix", "dqn"], "dqn"))
def test_pt2_file_chooses_like_policy(tmp_path, name):
    make, _ = POLICIES[name]
    done = export_acting(make(), None, tmp_path / "policy.pt2", "torch")
    assert (done.rows, done.num_same_action) == (1000, 1000)


def test_pt2_file_acts_like_policy(tmp_path):
    make, observations = POLICIES["normalized"]
    done = export_acting(make(), observations, tmp_path / "policy.pt2", "torch")
    found = run_program(done.path, {"observation": some(spec(FORCE))[:1]})
    assert (np.abs(found["action"][0, 0]) <= 0.01, found["action"].shape) == (True, (1, 2))


def test_file_that_differs_from_policy_is_not_written(tmp_path, monkeypatch):
    monkeypatch.setattr(acting_export, "EPS", 100.0)  # of the file alone: the policy's normalizer has its own
    make, observations = POLICIES["normalized"]
    with pytest.raises(RunError, match=r"was not written: of random observation \d+ it would make something else"):
        export_acting(make(), observations, tmp_path / "policy.pt2", "torch")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("name", others_slow(["sac", "ppo"], "sac"))
def test_exported_file_stays_within_bounds_that_float32_rounds_outwards(tmp_path, name):
    action = ActionSpec("continuous", (2,), (-0.1, -0.7), (0.1, 0.7))
    for bounds, number in ((action.low, -1), (action.high, 1)):
        assert (number * np.float32(bounds).astype(np.float64) > number * np.array(bounds)).any(), "of this test"
    policy = ContinuousPolicy(spec(action), SMALL, SACConfig(), 1) if name == "sac" else Policy(spec(action), SMALL, 1)
    with torch.no_grad():
        for parameter in policy.parameters():
            parameter.mul_(30)
    done = export_acting(policy, None, tmp_path / "policy.onnx", "onnx")
    found = run_onnx(done.path, {"observation": some(policy.spec)})["action"].astype(np.float64)
    assert ((found >= action.low) & (found <= action.high)).all()
    assert (np.abs(found) > 0.099).any()


def test_untraceable_network_raises(tmp_path):
    policy = POLICIES["choice"][0]()

    class Undecided(torch.nn.Module):
        def forward(self, x):
            if x.sum() > 0:
                return x, x[:, 0]
            return -x, x[:, 0]

    policy.network = Undecided()
    with pytest.raises(RunError, match=r"cannot be traced by torch.export, so there is no file of it: .+"):
        export_acting(policy, None, tmp_path / "policy.onnx", "onnx")


class Kept(torch.nn.Module):
    """Holds what cannot be copied: its last features, and a lock."""

    def __init__(self, observation_size, num_outputs):
        super().__init__()
        self.body, self.head = torch.nn.Linear(observation_size, num_outputs), torch.nn.Linear(num_outputs, 1)
        self.features, self.lock = None, threading.Lock()

    def forward(self, x):
        self.features = self.body(x)
        return self.features, self.head(self.features).squeeze(-1)


class Counted(Kept):
    """Takes the number of rows by `len`, which is a constant for torch.export."""

    def forward(self, x):
        features, value = super().forward(x)
        return features.reshape(len(x), -1), value


def exported_own(tmp_path, name):
    """The file of an untrained policy with a network of this module."""
    run = Run(task="t", network=NetworkConfig(module=f"{__file__}:{name}"))
    save_policy(tmp_path / "policy.safetensors", Policy(spec(CHOICE), run.network), None, run)
    return export_acting(load_policy(tmp_path)[0], None, tmp_path / "policy.pt2", "torch")


def test_a_network_that_keeps_results_in_itself_is_exported(tmp_path):
    assert exported_own(tmp_path, "Kept").num_same_action == 1000


def test_a_constant_number_of_rows_is_refused_with_the_way_out(tmp_path):
    with pytest.raises(RunError, match=r"so there is no file of it: .*number of rows .*len\(x\).* use x\.shape\[0\]$"):
        exported_own(tmp_path, "Counted")


def test_the_command(tmp_path, capsys):
    config = Run(task="CartPole-v1")
    policy = Policy(env_spec(config.task, config.env), config.network)
    save_policy(tmp_path / "policy.safetensors", policy, None, config)
    assert main(["export", str(tmp_path)]) == 0
    assert "policy.onnx: compared in 1000 rows" in capsys.readouterr().out
    import onnxruntime

    session = onnxruntime.InferenceSession(tmp_path / "policy.onnx")
    about = json.loads(session.get_modelmeta().custom_metadata_map["lockstep"])
    assert EnvSpec.from_dict(about["spec"]) == policy.spec
    assert session.get_inputs()[0].shape == ["observations", 4]
    assert main(["export", str(tmp_path), "--data", str(tmp_path), "--out", str(tmp_path / "other.onnx")]) == 2
    assert "learned in environments, not from data" in capsys.readouterr().err


RECURRENT = {
    "gru": (lambda: Policy(spec(CHOICE), replace(SMALL, recurrent="gru", recurrent_size=6), 1), None),
    "lstm of two layers": (
        lambda: Policy(privileged(), replace(SMALL, recurrent="lstm", recurrent_size=6, recurrent_layers=2), 1),
        moments(),
    ),
}


@pytest.mark.parametrize("name", others_slow(RECURRENT, "lstm of two layers"))
def test_exported_recurrent_policy_acts_like_the_player_of_an_evaluation(tmp_path, name):
    make, observations = RECURRENT[name]
    policy = make()
    with torch.no_grad():
        for parameter in policy.parameters():
            parameter.mul_(2)
    done = export_acting(policy, observations, tmp_path / "policy.onnx", "onnx")
    assert done.difference < 1e-5
    player = Player(policy.distribution, actor_of(policy, torch.device("cpu")), observations, policy.spec)
    file_state = np.zeros((1, policy.actor_state_size), np.float32)
    for t, observation in enumerate(np.tile(some(policy.spec), (3, 1))):
        if t == 7:  # another episode
            player.reset()
            file_state[:] = 0
        found = run_onnx(done.path, {"observation": observation[None], "state": file_state})
        file_state = found["next_state"]
        np.testing.assert_allclose(found["action"][0], player.act(observation), rtol=1e-4, atol=1e-5)
