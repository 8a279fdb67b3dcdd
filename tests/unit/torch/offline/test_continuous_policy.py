"""Policies of continuous actions learned from logs: densities, estimates from them, and files."""

import math
from contextlib import nullcontext
from dataclasses import replace

import numpy as np
import pytest
import torch

import made_data
from lockstep import World
from lockstep.data.dataset import Dataset
from lockstep.data.features import Features
from lockstep.envs.spec import ActionSpec, EnvSpec
from lockstep.errors import ConfigError
from lockstep.experience.sampling import DiagonalGaussian, NoisyDeterministic
from lockstep.run import OfflineRun, override
from lockstep.session.offline.estimate import estimate
from lockstep.session.offline.policy_spec import OfflinePolicySpec, check_simulator
from lockstep.torch.comm import Comm
from lockstep.torch.deploy.exported_file import run_program
from lockstep.torch.deploy.offline_export import export
from lockstep.torch.deploy.onnx_model import run_onnx
from lockstep.torch.distributions import SquashedGaussian
from lockstep.torch.export import load_policy
from lockstep.torch.offline.noise import Noise
from lockstep.torch.offline.record import _log_density
from lockstep.torch.offline.scorer import PolicyScorer
from lockstep.torch.scoring.continuous_networks import GaussianActor, SquashedGaussianActor
from lockstep.torch.scoring.offline_policy import policy_of, save_offline_policy
from offline_policies import SMALL
from quick import others_slow

HALF_RANGE = torch.tensor([3.0], dtype=torch.float64)
AT_BOUND = torch.tensor([1 - 5e-6], dtype=torch.float64)


def made(tmp_path, algo="iql", rows=400, **settings):
    """Data, the run, and an untrained policy."""
    path = tmp_path / "data"
    if not path.exists():
        made_data.continuous(path, rows)
    dataset = Dataset.open(path)
    run = override(OfflineRun(data=str(path), algo=algo, network=SMALL), settings)
    about = OfflinePolicySpec(
        info=dataset.info,
        state=dataset.state_features,
        action=dataset.action_features,
        network=SMALL,
        algo=algo,
        algorithm=run.algorithm,
    )
    return dataset, run, policy_of(about, seed=1)


@pytest.mark.parametrize(
    ("actor", "parameters"),
    [(GaussianActor, (0.6, -0.5)), (GaussianActor, (-0.9, 1.0)), (SquashedGaussianActor, (0.4, -0.2))],
)
def test_density_sums_to_one(actor, parameters):
    """Over all actions in the units of the log, and the probability of both bounds."""
    bounds = ActionSpec("continuous", (1,), (-3.0,), (3.0,))
    actor = actor(1, bounds if actor is SquashedGaussianActor else 1, SMALL)
    scaled = torch.linspace(-1, 1, 200_001, dtype=torch.float64)[1:-1, None]
    each = torch.tensor([parameters], dtype=torch.float64)
    density = actor.log_density(each.expand(len(scaled), 2), scaled, HALF_RANGE, AT_BOUND).exp()
    total = float(density.sum()) * 2 * 3.0 / 200_000
    ends = torch.tensor([[-1.0], [1.0]], dtype=torch.float64)
    bounds = actor.log_density(each.expand(2, 2), ends, HALF_RANGE, AT_BOUND).exp()
    assert total + float(bounds.sum()) == pytest.approx(1, abs=2e-5)
    assert (float(bounds.sum()) > 0.01) == isinstance(actor, GaussianActor)


@pytest.mark.parametrize("algo", ["iql", "cql"])
@torch.no_grad()
def test_density_is_that_of_the_samples(tmp_path, algo):
    """The share of sampled actions below some numbers is the integral of the density."""
    _, _, policy = made(tmp_path, algo, policy="sampled")
    state = torch.zeros(20_000, 4)
    noise = torch.randn(20_000, 2, generator=torch.Generator().manual_seed(0))
    drawn = policy.act(state, noise)[:, 0].double()
    grid = torch.linspace(-0.999, 0.999, 4_001, dtype=torch.float64)
    probe = torch.stack([grid, policy.act(state[:1])[0, 1].double().expand_as(grid)], 1)
    density = policy.log_density(state[: len(grid)], probe).exp()
    wanted = float(density[grid < 0.5].sum() / density.sum())
    inside = drawn[drawn.abs() < 0.999]
    assert float((inside < 0.5).double().mean()) == pytest.approx(wanted, abs=0.015)


def test_recorded_density_counts_what_is_clipped():
    spec = ActionSpec("continuous", (2,), (-1.0, -1.0), (1.0, 1.0))
    distribution = DiagonalGaussian(spec, lambda: np.log(np.array([0.5, 2.0], np.float32)))
    mean, drawn = np.zeros((3, 2), np.float32), np.array([[0.25, 0.5], [1.5, 0.5], [-4.0, 9.0]], np.float32)
    found = _log_density(distribution, mean, drawn, spec)

    def normal(x, std):
        return -(x**2) / std**2 / 2 - math.log(std) - math.log(2 * math.pi) / 2

    def above_one(std):
        return math.log(math.erfc((1 - 64 * 2**-23) / std / math.sqrt(2)) / 2)  # with the numbers beside the bound

    expected = [
        normal(0.25, 0.5) + normal(0.5, 2.0),
        above_one(0.5) + normal(0.5, 2.0),
        above_one(0.5) + above_one(2.0),
    ]
    assert found == pytest.approx(expected)


def test_recorded_density_of_squashed_and_noisy_policies():
    """Integrates to one over the actions within the bounds, or counts the noise that is clipped."""
    spec = ActionSpec("continuous", (1,), (-1.0,), (3.0,))
    drawn = np.linspace(-1, 3, 20_001, dtype=np.float32)[1:-1, None]
    parameters = np.full((len(drawn), 2), 0.2, np.float32)
    found = _log_density(SquashedGaussian(spec), parameters, drawn, spec)
    assert np.exp(found).sum() * 4 / 20_000 == pytest.approx(1, abs=1e-3)
    noisy, at = NoisyDeterministic(spec, 0.5), np.array([[-1.0], [1.0], [3.0]], np.float32)
    found = np.exp(_log_density(noisy, np.zeros((3, 1), np.float32), at, spec))
    # The noise has a deviation of 1 in the units of the actions; 64 numbers below 3 count as 3.
    of_bound = math.erfc((2 - 64 * 2**-22) / math.sqrt(2)) / 2
    assert found == pytest.approx([of_bound, 1 / math.sqrt(2 * math.pi), of_bound])
    assert _log_density(NoisyDeterministic(spec, 0.0), np.zeros((3, 1), np.float32), at, spec) is None


def test_estimates_of_a_sampled_policy_are_ratios_of_densities(tmp_path):
    dataset, run, policy = made(tmp_path, policy="sampled")
    with torch.no_grad():
        policy.network.actor.log_std.fill_(-0.7)
    with Comm(World(), device="cpu") as comm:
        found = estimate(PolicyScorer(policy, run), dataset, comm, run).to_dict()
    assert not found["left_out"]
    rows = dataset.rows(np.arange(len(dataset)))
    with torch.no_grad():
        state, action = torch.from_numpy(rows.state), torch.from_numpy(rows.action)
        mean = policy.network.actor.body(state).tanh()
        normal = torch.distributions.Normal(mean.double(), math.exp(-0.7))
        ratio = (normal.log_prob(action.double()).sum(1) - torch.from_numpy(rows.propensity)).exp().numpy()
    expected = {
        "decision_ips": (ratio * rows.reward).mean(),
        "decision_snips": (ratio * rows.reward).sum() / ratio.sum(),
    }
    for name, value in expected.items():
        assert found["estimates"]["reward"][name]["value"] == pytest.approx(value, rel=1e-5)
    assert found["effective_sample_size"]["rows"] == pytest.approx(ratio.sum() ** 2 / (ratio**2).sum())
    with torch.no_grad():
        taken = policy.act(state, torch.zeros_like(action))
        direct = policy.heads.reward.of_one(state, taken)[:, 0].double().mean()
    assert found["estimates"]["reward"]["decision_direct"]["value"] == pytest.approx(float(direct), abs=0.1)


@pytest.mark.parametrize("algo", ["iql", "td3_bc"])
def test_importance_sampling_of_a_deterministic_policy_is_refused(tmp_path, algo):
    dataset, run, policy = made(tmp_path, algo)
    with Comm(World(), device="cpu") as comm:
        found = estimate(PolicyScorer(policy, run), dataset, comm, run)
    left_out, estimates = found.to_dict()["left_out"], found.to_dict()["estimates"]["reward"]
    assert "it has no density, and importance weights are ratios of densities" in left_out["decision_ips"]
    assert {"ips", "snips", "decision_dr", "magic"} <= left_out.keys()
    assert {"decision_direct", "fitted_q"} == estimates.keys()
    with torch.no_grad():
        state = torch.from_numpy(dataset.rows(np.arange(len(dataset))).state)
        value = policy.heads.reward.of_one(state, policy.act(state))[:, 0].double().mean()
    assert estimates["decision_direct"]["value"] == pytest.approx(float(value))


def test_a_log_without_densities_is_refused_by_its_reason(tmp_path):
    columns = made_data.continuous_columns(200)
    made_data.write(tmp_path / "data", columns | {"log_density": np.full(200, np.nan)})
    dataset, run, policy = made(tmp_path, policy="sampled")
    with Comm(World(), device="cpu") as comm:
        left_out = estimate(PolicyScorer(policy, run), dataset, comm, run).to_dict()["left_out"]
    assert "no row of the log has a density (log_probability)" in left_out["decision_ips"]


@pytest.mark.parametrize(
    ("algo", "to"),
    others_slow(
        [(algo, to) for algo in ("iql", "td3_bc", "cql") for to in ("onnx", "torch")],
        ("cql", "torch"),
        several=True,
    ),
)
def test_exported_file_acts_as_the_policy(tmp_path, algo, to):
    pytest.importorskip("onnxscript")
    dataset, _, policy = made(tmp_path, algo)
    path = tmp_path / ("policy.onnx" if to == "onnx" else "policy.pt2")
    told = export(policy, dataset, path, to)
    assert told.rows == len(dataset) and told.difference < 1e-5
    raw = dataset.check_rows()["state_value"]
    inputs = {"state_value": raw, "state_presence": np.ones_like(raw, bool)}
    found = (run_onnx if to == "onnx" else run_program)(path, inputs)["action"]
    with torch.no_grad():
        expected = policy.unscaled(policy.act(policy.state(torch.from_numpy(raw)))).numpy()
    assert found == pytest.approx(expected, abs=1e-5) and np.abs(found).max() <= 1
    assert found.std() > 0


def test_actions_stay_within_bounds_that_float32_rounds_outwards(tmp_path):
    _, _, policy = made(tmp_path, "td3_bc")
    about = policy.policy_spec
    features = {key: replace(feature, min_value=-0.1, max_value=0.1) for key, feature in about.action.items()}
    narrow = policy_of(replace(about, action=Features(features)), seed=1)
    found = narrow.unscaled(torch.tensor([[1.0, -1.0]])).double()
    assert float(torch.tensor(0.1).double()) > 0.1 and (found.abs() <= 0.1).all()
    taken = narrow.distribution.mode(np.array([[100.0, -100.0]], np.float32)).astype(np.float64)
    assert (np.abs(taken) <= 0.1).all()
    assert (np.abs(taken) > 0.0999).all()


@pytest.mark.parametrize("algo", ["iql", "td3_bc", "cql"])
def test_policy_file_is_read_back(tmp_path, algo):
    _, _, policy = made(tmp_path, algo)
    save_offline_policy(tmp_path / "policy.safetensors", policy)
    again, _ = load_policy(tmp_path / "policy.safetensors")
    state = torch.randn(5, 4)
    with torch.no_grad():
        assert torch.equal(again.act(state), policy.act(state))
        assert torch.equal(
            again.network.critics(state, policy.act(state)), policy.network.critics(state, policy.act(state))
        )


def test_random_numbers_belong_to_a_shard_and_a_step():
    def drawn(shard, step):
        return Noise.draw(0, shard, step, (2, 1, 3), torch.device("cpu"), num_uniform=2)

    assert torch.equal(drawn(1, 8).normal, drawn(1, 8).normal)
    for other in (drawn(0, 8), drawn(1, 9)):
        assert not torch.equal(drawn(1, 8).normal, other.normal)
        assert not torch.equal(drawn(1, 8).uniform, other.uniform)
    assert drawn(1, 8).uniform.abs().max() <= 1 and drawn(1, 8).uniform.shape == (2, 2, 3)


@pytest.mark.parametrize(
    ("action", "message"),
    [
        (ActionSpec("discrete", (2,)), "does not take the 2 numbers of an action of the log"),
        (ActionSpec("continuous", (3,), (-1.0,) * 3, (1.0,) * 3), "does not take the 2 numbers"),
        (ActionSpec("continuous", (2,), (1.0, 1.0), (2.0, 2.0)), "takes numbers from 1 to 2 where those of the log"),
    ],
)
def test_a_simulator_with_other_actions_is_refused(tmp_path, action, message):
    _, _, policy = made(tmp_path)
    spec = EnvSpec(observation_size=4, action=action, autoreset="next_step", separately_seedable=True)
    with pytest.raises(ConfigError, match=message):
        check_simulator(replace(policy.policy_spec, spec=spec), "Other-v0")


@pytest.mark.parametrize(
    ("state_features", "refused"),
    [
        (("0", "1", "2", "3"), None),
        (("x_0", "x_1", "x_2", "x_3"), None),
        (("x_1", "x_10", "x_2", "x_3"), "in alphabetical order .* prepare the log again, without --like"),
        (("angle", "position", "tip", "velocity"), "name them 0, 1"),
    ],
)
def test_a_simulator_needs_the_order_of_its_observations(tmp_path, state_features, refused):
    """Names are in alphabetical order, which is not the simulator's."""
    _, _, policy = made(tmp_path)
    action = ActionSpec("continuous", (2,), (-1.0,) * 2, (1.0,) * 2)
    spec = EnvSpec(observation_size=4, action=action, autoreset="next_step", separately_seedable=True)
    about = policy.policy_spec
    about = replace(about, spec=spec, info=replace(about.info, state_features=state_features))
    with pytest.raises(ConfigError, match=refused) if refused else nullcontext():
        check_simulator(about, "Other-v0")


def test_a_simulator_advises_names_of_actions_that_no_state_has(tmp_path):
    """States are advised to be called 0, 1, ..., and preparing refuses an action with an id of the states."""
    _, _, policy = made(tmp_path)
    action = ActionSpec("continuous", (2,), (-1.0,) * 2, (1.0,) * 2)
    spec = EnvSpec(observation_size=4, action=action, autoreset="next_step", separately_seedable=True)
    info = replace(policy.policy_spec.info, state_features=tuple("0123"), action_features=("hip", "knee"))
    with pytest.raises(ConfigError) as refused:
        check_simulator(replace(policy.policy_spec, spec=spec, info=info), "Other-v0")
    assert "the log names them (hip, knee, ...): name them action_0, action_1, ... in" in str(refused.value)
    assert "(action: {action_0: NAME, action_1: NAME})" in str(refused.value)


@pytest.mark.parametrize(
    ("actions", "given", "refused"),
    [(("0", "1"), None, False), (("left", "right"), ["left", "right"], False), (("left", "right"), None, True)],
)
def test_a_simulator_needs_the_order_of_its_actions(tmp_path, actions, given, refused):
    _, _, policy = made(tmp_path)
    spec = EnvSpec(4, ActionSpec("discrete", (2,)), "next_step", separately_seedable=True)
    info = replace(
        policy.policy_spec.info, kind="discrete", state_features=tuple("0123"), actions=actions, action_features=(),
        rules={"options": {"actions": given}},
    )  # fmt: skip
    with pytest.raises(ConfigError, match="--actions FIRST,SECOND") if refused else nullcontext():
        check_simulator(replace(policy.policy_spec, spec=spec, info=info), "Other-v0")
