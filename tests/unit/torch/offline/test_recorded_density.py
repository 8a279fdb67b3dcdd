"""Recorded log-densities near and at the bounds of actions: those by which estimates judge the same actions."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch

import made_data
from lockstep.config.env import EnvConfig
from lockstep.data.dataset import Dataset
from lockstep.data.prepare import PrepareOptions, prepare_dataset
from lockstep.envs.make import env_spec
from lockstep.envs.spec import ActionSpec
from lockstep.errors import ConfigError
from lockstep.experience.rollout import clipper
from lockstep.experience.sampling import DiagonalGaussian, NoisyDeterministic
from lockstep.run import OfflineRun, dump, override
from lockstep.session.offline.policy_spec import OfflinePolicySpec, as_prepared, bound_margin, least_at_bound
from lockstep.session.offline.recording import Recording
from lockstep.session.policy_file import POLICY_FILE
from lockstep.session.which_policy import read_policy
from lockstep.torch.distributions import SquashedGaussian
from lockstep.torch.export import save_policy
from lockstep.torch.offline.record import _by_policy, _log_density, record
from lockstep.torch.offline.scorer import PolicyScorer
from lockstep.torch.scoring.continuous_networks import GaussianActor
from lockstep.torch.scoring.offline_policy import policy_of
from offline_policies import SMALL

NUM_DRAWS = 20_000
FAR_BOUNDS = (9.7, 10.1)
"""Far from 0 and near each other: float32 has few digits between them."""


def bounded(low, high):
    return ActionSpec("continuous", (1,), (low,), (high,))


def as_scored(spec, parameters, action):
    """The log-density that an estimate gives to logged actions of a squashed policy."""
    half_range = torch.from_numpy(np.subtract(spec.high, spec.low) / 2)
    scaled, at_bound = as_prepared(action, spec), torch.from_numpy(least_at_bound(spec))
    found = SquashedGaussian(spec).log_density(
        torch.from_numpy(parameters), torch.from_numpy(scaled), half_range, at_bound
    )
    return found.numpy()


@pytest.mark.parametrize("bounds", [(-1.0, 1.0), (0.2, 1.5), FAR_BOUNDS])
@pytest.mark.parametrize(
    ("recorded", "other"),
    [
        ((8.0, -3.0), (7.5, -3.0)),
        ((10.0, -2.0), (9.9, -1.0)),
        ((12.0, -1.0), (11.0, 0.0)),
        ((6.0, 0.5), (5.0, 0.5)),
        ((-6.0, 0.0), (-5.5, -0.5)),
        ((0.3, -1.0), (0.2, -1.0)),
    ],
)
def test_ratios_of_squashed_densities_have_the_mean_one_however_far_tanh_saturates(bounds, recorded, other):
    """Of the policy itself every ratio is 1, and the mean ratio of another policy is 1 within its error."""
    spec = bounded(*bounds)
    distribution = SquashedGaussian(spec)
    parameters, others = (np.full((NUM_DRAWS, 2), each, np.float32) for each in (recorded, other))
    noise = distribution.draw_noise(np.random.default_rng(1), (NUM_DRAWS,))
    action = distribution.sample(parameters, noise)
    found = _log_density(distribution, parameters, action, spec)
    assert np.isfinite(found).all()
    executed = clipper(spec)(action)
    np.testing.assert_allclose(found, as_scored(spec, parameters, executed), rtol=0, atol=1e-6)
    ratio = np.exp(as_scored(spec, others, executed) - found)
    assert abs(ratio.mean() - 1) < 4 * ratio.std() / math.sqrt(NUM_DRAWS) + 2e-4


def test_recorded_density_of_a_squashed_policy_is_that_of_its_draws_where_float32_tells_them_apart():
    spec = bounded(-2.0, 2.0)
    distribution = SquashedGaussian(spec)
    parameters = np.full((NUM_DRAWS, 2), (4.0, -1.0), np.float32)
    noise = distribution.draw_noise(np.random.default_rng(1), (NUM_DRAWS,))
    found = _log_density(distribution, parameters, distribution.sample(parameters, noise), spec)
    wanted = distribution.scaled_action_and_log_prob(torch.from_numpy(parameters), torch.from_numpy(noise))[1]
    np.testing.assert_allclose(found, wanted.numpy() - math.log(2.0), rtol=0, atol=0.03)
    assert found.mean() == pytest.approx(float(wanted.mean()) - math.log(2.0), abs=1e-4)


def a_run(tmp_path, algo, mean, log_std, spec=None):
    """A run directory of a policy with this distribution in every state of Pendulum, and the policy."""
    path = made_data.continuous(tmp_path / "data", 50, state_size=3, action_size=1)
    run = override(OfflineRun(data=str(path), algo=algo, task="Pendulum-v1", network=SMALL), {"policy": "sampled"})
    dataset = Dataset.open(path)
    about = OfflinePolicySpec(
        info=dataset.info,
        state=dataset.state_features,
        action=dataset.action_features,
        network=SMALL,
        algo=algo,
        algorithm=run.algorithm,
        spec=spec or env_spec("Pendulum-v1", run.env),
    )
    policy = policy_of(about, seed=1)
    outputs = [mean] if algo == "iql" else [mean, log_std]
    with torch.no_grad():
        *_, bias = (value for name, value in policy.network.actor.body.named_parameters() if name.endswith("bias"))
        for value in policy.network.actor.body.parameters():
            value.zero_()
        bias.copy_(torch.tensor(outputs))
        if algo == "iql":
            policy.network.actor.log_std.fill_(log_std)
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "run.yaml").write_text(dump(run))
    save_policy(tmp_path / "run" / POLICY_FILE, policy, None, run)
    return run, policy


@pytest.mark.parametrize(
    ("algo", "mean", "log_std"),
    [("cql", 6.5, 0.0), ("cql", 12.0, -1.0), ("cql", -8.0, 1.0), ("cql", 0.1, -0.5), ("iql", 1.0, -0.5)],
)
def test_ratios_of_a_policy_to_its_own_log_are_one(tmp_path, algo, mean, log_std):
    """From the recording over the log file and prepared data to the scorer."""
    run, policy = a_run(tmp_path, algo, mean, log_std)
    log = tmp_path / "log.jsonl"
    recording = Recording(source=str(tmp_path / "run"), out=log, steps=300, how="sampled")
    record(recording, *read_policy(tmp_path / "run"))
    assert '"log_probability":null' not in log.read_text().replace(" ", "")
    prepared = prepare_dataset([log], tmp_path / "prepared", PrepareOptions(norm={"action_bounds": [-1, 1]}))
    dataset = Dataset.open(prepared)
    rows = dataset.rows(np.arange(len(dataset)))
    ratio = PolicyScorer(policy, run).score(rows, with_ratio=True, unlogged=np.zeros(0, np.int64)).ratio
    np.testing.assert_allclose(ratio, 1.0, rtol=1e-5)


def test_densities_of_numbers_that_the_task_would_clip_are_not_recorded(tmp_path):
    """The log of these policies has numbers from -1 to 1."""
    sampled, greedy = (Recording(source="RUN", out=tmp_path / "log.jsonl", how=how) for how in ("sampled", "greedy"))
    for number, (low, high) in enumerate([(-2.0, 2.0), (-1.0, 1.0), (-1.0, 0.5), (-0.5, 2.0)]):
        spec = replace(env_spec("Pendulum-v1", EnvConfig()), action=bounded(low, high))
        _, policy = a_run(tmp_path / str(number), "cql", 0.1, -0.5, spec)
        assert _by_policy(policy, None, spec, greedy)
        if low <= -1 and high >= 1:
            assert _by_policy(policy, None, spec, sampled)
            continue
        said = rf"--sampled: RUN draws number 0 of an action from \[-1, 1\], of which .* takes \[{low:g}, {high:g}\]"
        with pytest.raises(ConfigError, match=said):
            _by_policy(policy, None, spec, sampled)


def bound_pairs(count=2000):
    draws = np.random.default_rng(0).integers(-20, 21, (4 * count, 2)) / 10
    return [tuple(pair) for pair in np.sort(draws, -1).tolist() if pair[0] < pair[1]][:count]


def test_clipped_noise_counts_as_its_probability_whatever_the_bounds():
    """float32 may round `center + half_range` one number inside of a bound."""
    for low, high in bound_pairs():
        spec = bounded(low, high)
        distribution = NoisyDeterministic(spec, 0.5)
        parameters = np.zeros((2, 1), np.float32)
        action = distribution.sample(parameters, np.array([[9.0], [-9.0]], np.float32))
        of_bound = math.log(math.erfc(2 / math.sqrt(2)) / 2)  # the bounds are two deviations from the mean
        assert _log_density(distribution, parameters, action, spec) == pytest.approx([of_bound] * 2, abs=0.01), spec


def test_estimates_see_clipped_actions_at_the_bound_whatever_the_bounds():
    for low, high in [*bound_pairs(300), FAR_BOUNDS, (100.1, 101.3), (-1000.1, -999.7)]:
        spec = bounded(low, high)
        executed = clipper(spec)(NoisyDeterministic(spec, 1.0).sample(np.zeros((2, 1)), np.array([[9.0], [-9.0]])))
        assert (np.abs(as_prepared(executed, spec)) >= least_at_bound(spec)).all(), spec


@pytest.mark.parametrize("bounds", [(-1.0, 1.0), FAR_BOUNDS])
def test_ratios_of_clipped_densities_have_the_mean_one(bounds):
    spec = bounded(*bounds)
    half_range, at_bound = np.subtract(spec.high, spec.low) / 2, torch.from_numpy(least_at_bound(spec))
    actor, generator = GaussianActor(1, 1, SMALL), torch.Generator().manual_seed(0)
    parameters, others = (torch.tensor([each]).expand(NUM_DRAWS, 2) for each in ((0.9, -1.0), (0.7, -0.8)))
    drawn = actor.sample(parameters, torch.randn(NUM_DRAWS, 1, generator=generator)).double().numpy()
    action = clipper(spec)((np.add(spec.high, spec.low) / 2 + half_range * drawn).astype(np.float32))
    scaled = torch.from_numpy(as_prepared(action, spec))
    ratio = torch.zeros(NUM_DRAWS, dtype=torch.float64)
    for sign, each in ((1, others), (-1, parameters)):
        ratio += sign * actor.log_density(each, scaled, torch.from_numpy(half_range), at_bound)
    ratio = ratio.exp()
    assert abs(float(ratio.mean()) - 1) < 4 * float(ratio.std()) / math.sqrt(NUM_DRAWS)


def test_margin_of_bounds():
    low, high = (-1.0, -np.inf, 0.0, 3.0, 100.0), (1.0, 2.0, np.inf, 3.0, 101.0)
    found = bound_margin(ActionSpec("continuous", (5,), low, high))
    assert found == pytest.approx([64 * 2.0**-23, 0, 0, 0, 64 * 2.0**-17])


def test_a_number_with_one_value_has_no_density():
    """The density is that of the others."""
    low, high = (-1.0, 0.5), (1.0, 0.5)
    both, alone = ActionSpec("continuous", (2,), low, high), bounded(-1.0, 1.0)
    mean, drawn = np.zeros((3, 2), np.float32), np.array([[0.2, 0.4], [-0.3, 0.9], [1.4, 0.5]], np.float32)
    found = _log_density(DiagonalGaussian(both, lambda: np.zeros(2, np.float32)), mean, drawn, both)
    wanted = _log_density(DiagonalGaussian(alone, lambda: np.zeros(1, np.float32)), mean[:, :1], drawn[:, :1], alone)
    assert found == pytest.approx(wanted)
