"""Rollouts of environments on tensors: what is stored, what is computed once, and what the loop may not do."""

from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from lockstep.algorithms.ppo import PPOConfig
from lockstep.config.env import EnvConfig
from lockstep.distributed.timers import Timers
from lockstep.envs.make import make_vector_env
from lockstep.errors import ConfigError, RunError
from lockstep.experience.episodes import EpisodeStats
from lockstep.experience.normalize import DiscountedReturns, RunningMoments
from lockstep.run import NetworkConfig, Run
from lockstep.session.normalizers import Normalizers
from lockstep.torch.comm import Comm
from lockstep.torch.device_rollout import TensorCollector
from lockstep.torch.device_shard import TensorEpisodes
from lockstep.torch.envs.dlpack import DLPackEnv
from lockstep.torch.envs.make import make_tensor_env
from lockstep.torch.moments import DeviceMoments
from lockstep.torch.networks import Policy
from lockstep.torch.ppo import PPO
from lockstep.torch.recurrent import Sequences
from lockstep.world import World

WALK = f"{Path(__file__).parent / 'envs' / 'tensor_envs.py'}:Walk"
CPU = torch.device("cpu")
STEPS, ENVS = 12, 4


def collector(normalize=False, world=None, policy=None, reward_scale=1.0, task=WALK, compiled=False, **kwargs):
    world = world or World()
    comm = Comm(world, device="cpu")
    envs = [make_tensor_env(task, EnvConfig(kwargs=kwargs), ENVS, CPU) for _ in world.shards]
    spec = envs[0].spec
    policy = policy or Policy(
        spec, NetworkConfig(hidden=(8,), encoder="auto" if spec.image is None else "small"), seed=1
    )
    sizes = (1, 0.9, len(envs), ENVS, spec.critic_size) if normalize else (None, None, len(envs), ENVS)
    normalizers = Normalizers(*sizes, reward_scale=reward_scale)
    made = TensorCollector(
        comm, envs, policy, normalizers, num_steps=STEPS, gamma=0.9, seed=3, timers=Timers(), compiled=compiled
    )  # fmt: skip
    return made, policy, normalizers


def test_compiled_steps_of_one_shape_act_as_others(monkeypatch):
    rows = []

    def compile_by_counting(function, *, dynamic):
        assert not dynamic
        return lambda *inputs: (rows.append(len(inputs[0])), function(*inputs))[1]

    monkeypatch.setattr(torch, "compile", compile_by_counting)
    (plain, *_), (compiled, *_) = collector(normalize=True), collector(normalize=True, compiled=True)
    assert rows == [ENVS]  # before training
    (first,), (second,) = plain.collect(), compiled.collect()
    assert rows == [ENVS] * (1 + STEPS)
    for name in ("action", "value", "next_value"):
        torch.testing.assert_close(getattr(first.evaluated, name), getattr(second.evaluated, name))


def test_reward_scale_leaves_episodes_as_they_are():
    (plain, *_), (scaled, *_) = (collector(normalize=True, reward_scale=scale) for scale in (1.0, 0.5))
    (first,), (second,) = plain.collect(), scaled.collect()
    np.testing.assert_array_equal(second.evaluated.reward, 0.5 * first.evaluated.reward)
    np.testing.assert_array_equal(plain.episodes[0].returns, scaled.episodes[0].returns)
    np.testing.assert_allclose(second.normalizer_sums[-2:], first.normalizer_sums[-2:] * [0.5, 0.25])


@pytest.mark.parametrize("autoreset", ["same_step", "next_step"])
def test_a_rollout_holds_what_the_environment_returned(autoreset):
    made, policy, _ = collector(autoreset=autoreset)
    (rollout,) = made.collect()
    seen = rollout.evaluated
    host = make_vector_env(WALK, EnvConfig(kwargs={"autoreset": autoreset}), ENVS)
    current = host.reset(made._env_seeds(0, ENVS, "env"))
    action = seen.action.view(STEPS, ENVS, 1).numpy()
    weight = np.ones(ENVS)
    for t in range(STEPS):
        np.testing.assert_array_equal(seen.observation.view(STEPS, ENVS, 1)[t].numpy(), current)
        current, reward, terminated, truncated, _ = host.step(np.clip(action[t], -1, 1))
        np.testing.assert_array_equal(seen.reward[t].numpy(), reward)
        np.testing.assert_array_equal(seen.terminated[t].numpy(), terminated)
        np.testing.assert_array_equal(seen.ended[t].numpy(), terminated | truncated)
        np.testing.assert_array_equal(seen.weight[t].numpy(), weight)
        weight = 1.0 - (terminated | truncated) if autoreset == "next_step" else weight
    parameters, value = policy(seen.observation, seen.critic)
    torch.testing.assert_close(seen.parameters, parameters.detach())
    drawn = policy.distribution.sample_tensor(seen.parameters, made._shards[0].noise.flatten(0, 1))
    torch.testing.assert_close(seen.action, drawn.detach())
    torch.testing.assert_close(seen.value.flatten(), value.detach())
    assert seen.ended.any() and made.episodes[0].returns.size == seen.ended.sum()


def test_what_a_reset_row_pays_belongs_to_no_episode():
    (plain, *_), (paid, *_) = (collector(normalize=True, autoreset="next_step", reset_pays=pay) for pay in (0.0, 5.0))
    for _ in range(2):
        (expected,), (rollout,) = plain.collect(), paid.collect()
        assert (rollout.evaluated.weight == 0).any()
        torch.testing.assert_close(rollout.evaluated.reward, expected.evaluated.reward)
        np.testing.assert_array_equal(paid.episodes[0].returns, plain.episodes[0].returns)
        np.testing.assert_array_equal(rollout.normalizer_sums, expected.normalizer_sums)


def test_truncated_episodes_are_valued_at_their_true_last_observation():
    made, policy, _ = collector()
    finals = []
    inner = made._shards[0].env
    step = inner.step

    def recorded(action):
        result = step(action)
        finals.append([part.clone() for part in (*result.final, *result.observation)])
        return result

    inner.step = recorded
    seen = made.collect()[0].evaluated
    cut = (seen.ended > 0) & (seen.terminated == 0)
    assert cut.any() and seen.terminated.any()
    for t, (final, final_critic, after, after_critic) in enumerate(finals):
        expected = torch.where(cut[t], policy(final, final_critic)[1], policy(after, after_critic)[1])
        torch.testing.assert_close(seen.next_value[t], expected.detach())


def test_truncation_without_a_final_observation_is_refused():
    made, *_ = collector()
    step = made._shards[0].env.step
    made._shards[0].env.step = lambda action: step(action)._replace(final=None)
    with pytest.raises(RunError, match=r"truncated an episode without a final observation.*next_step"):
        made.collect()


def without_critic(observation):
    return observation._replace(critic=None)


WRONG_STEPS = [
    (lambda step: step._replace(reward=step.reward.mean()), r"rewards of the shape \[\], and their spec says \[4\]"),
    (lambda step: step._replace(truncated=step.truncated[:1]), r"truncated of the shape \[1\], .* says \[4\]"),
    (
        lambda step: step._replace(observation=step.observation._replace(policy=step.reward)),
        r"observations of the shape \[4\], and their spec says \[4, 1\]",
    ),
    (
        lambda step: step._replace(final=step.final._replace(critic=step.final.critic[:, :1])),
        r"final observations of the critic of the shape \[4, 1\], and their spec says \[4, 2\]",
    ),
    (lambda step: step._replace(observation=without_critic(step.observation)), r"critic_size=2; return Observation"),
]


@pytest.mark.parametrize(("wrong", "said"), WRONG_STEPS)
def test_what_torch_would_broadcast_is_refused(wrong, said):
    made, *_ = collector()
    step = made._shards[0].env.step
    made._shards[0].env.step = lambda action: wrong(step(action))
    with pytest.raises(RunError, match=said):
        made.collect()


@pytest.mark.parametrize("reset", [without_critic, lambda seen: seen._replace(policy=seen.critic)])
def test_first_observations_of_another_shape_are_refused(monkeypatch, reset):
    env = make_tensor_env(WALK, EnvConfig(), ENVS, CPU)
    first = env.reset
    env.reset = lambda seeds: reset(first(seeds))
    monkeypatch.setitem(globals(), "make_tensor_env", lambda *_: env)
    with pytest.raises(RunError, match=r"return Observation\(policy, critic\)|shape \[4, 2\], .* says \[4, 1\]"):
        collector()


@pytest.mark.parametrize(("wrong", "said"), WRONG_STEPS)
def test_what_torch_would_broadcast_for_jax_is_refused(wrong, said):
    env = make_tensor_env(WALK, EnvConfig(), ENVS, CPU)
    step, for_jax = env.step, DLPackEnv(env)
    for_jax.reset([1])
    for_jax.begin(1)
    env.step = lambda action: wrong(step(action))
    with pytest.raises(RunError, match=said):
        for_jax.step(torch.zeros(ENVS, 1))


def test_first_observations_without_the_critic_s_are_refused_for_jax():
    env = make_tensor_env(WALK, EnvConfig(), ENVS, CPU)
    first = env.reset
    env.reset = lambda seeds: without_critic(first(seeds))
    with pytest.raises(RunError, match=r"return Observation\(policy, critic\)"):
        DLPackEnv(env).reset([1])


class NoSynchronization(TorchDispatchMode):
    """Refuses operations that would make a GPU's host wait, or copy between devices."""

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        name = func.overloadpacket.__name__
        moved = name == "_to_copy" and (kwargs or {}).get("device") not in (None, CPU)
        boolean = name == "index" and any(i is not None and i.dtype == torch.bool for i in args[1])
        if name in ("_local_scalar_dense", "nonzero", "masked_select", "equal", "is_nonzero") or moved or boolean:
            raise AssertionError(f"{name} synchronizes with the device")
        return func(*args, **(kwargs or {}))


@contextmanager
def no_synchronization_in_the_loop(made):
    """The mode, from the first to the last step of a rollout."""
    mode = NoSynchronization()
    shard = made._shards[0]
    start, finish = shard.start, shard.finish

    def started():
        mode.__enter__()
        start()

    def finished(first):
        mode.__exit__(None, None, None)
        return finish(first)

    shard.start, shard.finish = started, finished
    yield


@pytest.mark.parametrize("normalize", [False, True])
def test_the_loop_never_waits_for_the_device(normalize):
    made, *_ = collector(normalize)
    with no_synchronization_in_the_loop(made):
        made.collect()
    mode = NoSynchronization()
    with mode, pytest.raises(AssertionError, match="_local_scalar_dense"):
        float(torch.zeros(()))
    with mode, pytest.raises(AssertionError, match="nonzero"):
        torch.ones(3).nonzero()


@pytest.mark.parametrize(
    ("task", "action"),
    [("lockstep/Cartpole-v0", torch.zeros(4, 1)), ("lockstep/PixelPong-v0", torch.tensor([0, 1, 2, 0]))],
)
def test_built_in_tasks_never_wait_for_the_device(task, action):
    env = make_tensor_env(task, EnvConfig(max_episode_steps=2), 4, CPU)
    env.reset([0])
    with NoSynchronization():
        for _ in range(5):
            env.step(action)


def test_images_are_stored_as_bytes_and_are_not_copied_for_the_network():
    made, _, _ = collector(task="lockstep/PixelPong-v0", size=21, max_episode_steps=5)
    (rollout,) = made.collect()
    (group,) = made._shards[0].groups
    assert group.seen is group.raw
    assert group.raw.dtype == group.final.dtype == rollout.evaluated.observation.dtype == torch.uint8
    assert rollout.evaluated.observation.data_ptr() == group.raw.data_ptr()
    on_host = rollout.to_host()
    np.testing.assert_array_equal(on_host.observation.reshape(-1), group.raw.reshape(-1))
    assert [len(rows) for _, rows, _ in on_host.final] == [ENVS, ENVS]


def test_episode_statistics_equal_those_on_the_host():
    draw = np.random.default_rng(0)
    ours, theirs = TensorEpisodes(ENVS, CPU), EpisodeStats(ENVS)
    for share in (0.0, 0.3, 0.9, 0.1):
        reward = draw.standard_normal((STEPS, ENVS)).astype(np.float32)
        reward[3, 1] = np.inf
        ended = draw.random((STEPS, ENVS)) < share
        weight = (draw.random((STEPS, ENVS)) < 0.8).astype(np.float32)
        theirs.update(reward, ended, weight)
        env, step = torch.from_numpy(ended).T.nonzero().unbind(1)
        ours.report(ours.update(torch.from_numpy(reward), torch.from_numpy(weight), env, step).numpy())
        np.testing.assert_allclose(ours.returns, theirs.returns, atol=1e-12)
        np.testing.assert_allclose(ours.lengths, theirs.lengths, atol=1e-12)
        for name, array in ours.state().items():
            np.testing.assert_allclose(array, theirs.state()[name], atol=1e-12)


@pytest.mark.parametrize("fixed", [[], [slice(1, 2)]])
def test_moments_equal_those_on_the_host(fixed):
    draw = np.random.default_rng(0)
    host = RunningMoments(3, fixed=fixed)
    device = DeviceMoments(host, CPU)
    rows = (draw.standard_normal((50, 3)) * [1, 10, 0] + [1000, 0, 5]).astype(np.float32)
    weight = (draw.random(50) < 0.8).astype(np.float32)
    for _ in range(3):
        tensor = torch.from_numpy(rows)
        np.testing.assert_allclose(device.normalize(tensor).numpy(), host.normalize(rows), rtol=1e-6)
        sums = device.sums(tensor, torch.from_numpy(weight)).numpy()
        np.testing.assert_allclose(sums, host.sums(rows, weight), rtol=1e-12)
        host.update(sums)
        device.refresh()
    reward = rows[:, :1]
    of_reward = RunningMoments(1)
    of_reward.update(of_reward.sums(reward, weight))
    scaled = DeviceMoments(of_reward, CPU).scale(torch.from_numpy(reward)).numpy()
    np.testing.assert_allclose(scaled, of_reward.scale(reward), rtol=1e-6)


@pytest.mark.parametrize("autoreset", ["same_step", "next_step"])
def test_normalizer_sums_are_those_of_the_rollout(autoreset):
    made, _, normalizers = collector(normalize=True, autoreset=autoreset)
    discounted = DiscountedReturns(ENVS, 0.9)
    for _ in range(3):
        (rollout,) = made.collect()
        host = rollout.to_host()
        weight = host.weight.ravel()
        expected = [
            normalizers.observations.sums(host.observation[:-1].reshape(-1, 1), weight),
            normalizers.critic_observations.sums(made._shards[0].groups[1].raw[:-1].reshape(-1, 2).numpy(), weight),
            normalizers.returns.sums(discounted.update(host.reward, host.ended).reshape(-1, 1), weight),
        ]
        np.testing.assert_allclose(rollout.normalizer_sums, np.concatenate(expected), rtol=1e-9)
        for moments, sums in zip(normalizers.named().values(), expected, strict=True):
            moments.update(sums)


def test_a_restored_shard_continues_with_the_same_bits():
    made, policy, _ = collector(normalize=True)
    made.collect()
    state = made.shard_state(0)
    expected = [(r.evaluated, r.normalizer_sums) for r in made.collect()]
    expected_episodes = made.episodes[0].returns
    again, *_ = collector(normalize=True, policy=policy)
    assert made.savable and again.restore_shard(0, state, step=48)
    (rollout,) = again.collect()
    assert torch.equal(rollout.evaluated.observation, expected[0][0].observation)
    assert torch.equal(rollout.evaluated.action, expected[0][0].action)
    np.testing.assert_array_equal(rollout.normalizer_sums, expected[0][1])
    np.testing.assert_array_equal(again.episodes[0].returns, expected_episodes)
    assert again.fingerprint() == made.fingerprint()


def test_environments_that_cannot_be_saved_start_new_episodes():
    made, *_ = collector()
    made.collect()
    state = made.shard_state(0) | {"environments": None}
    assert not made.restore_shard(0, state, step=48)
    assert made.collect()[0].fault is None


def test_environments_saved_on_another_kind_of_device_start_new_episodes():
    """The state of a GPU's generator has 16 bytes, that of a CPU's some thousand."""
    made, *_ = collector()
    first = made.collect()[0].evaluated.action.clone()
    state = made.shard_state(0) | {"generator": np.zeros(16, np.uint8)}
    assert not made.restore_shard(0, state, step=48)
    (rollout,) = made.collect()
    assert rollout.fault is None
    assert not torch.equal(rollout.evaluated.action, first)


def test_a_checkpoint_of_host_environments_is_refused_by_name():
    made, *_ = collector()
    with pytest.raises(ConfigError, match=r"env.placement=host"):
        made.restore_shard(0, {"noise": []}, step=48)


def test_a_shard_does_not_depend_on_the_other_shards_of_its_rank():
    whole, policy, _ = collector(world=World().with_shards(2))
    both = whole.collect()
    assert not torch.equal(both[0].evaluated.observation, both[1].evaluated.observation)
    assert not torch.equal(both[0].evaluated.action, both[1].evaluated.action)
    for k in range(2):
        world = World(rank=k, size=2, local_rank=k, local_size=2).with_shards(2)
        alone, *_ = collector(world=world, policy=policy)
        (rollout,) = alone.collect()
        for name in ("observation", "action", "parameters", "value", "next_value", "reward"):
            assert torch.equal(getattr(rollout.evaluated, name), getattr(both[k].evaluated, name)), name
        assert alone.fingerprints == whole.fingerprints[k : k + 1]


def test_a_reward_that_is_not_finite_is_located():
    made, *_ = collector(bad_step=5)
    (rollout,) = made.collect()
    assert (rollout.fault.step, rollout.fault.env, rollout.fault.what) == (4, ENVS - 1, "a reward")
    assert np.isfinite(made.episodes[0].returns).all()


def test_an_error_in_a_step_names_the_shard():
    made, *_ = collector()

    def fail(action):
        raise ValueError("no power")

    made._shards[0].env.step = fail
    with pytest.raises(RunError, match=r"rank 0 failed in env.step of shard 0 \(environments 0 to 3\): ValueError: no"):
        made.collect()


@pytest.mark.parametrize("normalize", [False, True])
def test_ppo_learns_with_a_critic_of_its_own_observation(normalize):
    config = PPOConfig(num_steps=STEPS, num_minibatches=2, normalize_observation=normalize, normalize_return=normalize)
    run = Run(task=WALK, num_envs=ENVS, algorithm=config, network=NetworkConfig(hidden=(8,)))
    spec = make_tensor_env(WALK, EnvConfig(), 1, CPU).spec
    with Comm(World(), device="cpu") as comm:
        ppo = PPO(run, Policy(spec, run.network, seed=0), comm)
        made, *_ = collector(policy=ppo.policy)
        if normalize:
            envs = [shard.env for shard in made._shards]
            made = TensorCollector(
                comm, envs, ppo.policy, ppo.normalizers, num_steps=STEPS, gamma=0.9, seed=3, timers=Timers()
            )
        critic = ppo.policy.network.critic.layers[0].weight
        assert critic.shape == (8, 2)
        before = critic.detach().clone()
        for _ in range(2):
            ppo.update(made.collect(), np.zeros((1, 1)))
        assert not torch.equal(critic.detach(), before)
        assert np.isfinite(list(ppo.metrics.read().values())).all()


def mirrored(observation, action, critic):
    return torch.cat([observation, -observation]), torch.cat([action, -action]), torch.cat([critic, 1 - critic])


@pytest.mark.slow
def test_symmetry_mirrors_the_critics_observation_before_it_is_normalized():
    config = PPOConfig(num_steps=STEPS, normalize_observation=True, symmetry=f"{__name__}:mirrored")
    run = Run(task=WALK, num_envs=ENVS, algorithm=config, network=NetworkConfig(hidden=(8,)))
    envs = [make_tensor_env(WALK, EnvConfig(), ENVS, CPU)]
    with Comm(World(), device="cpu") as comm:
        ppo = PPO(run, Policy(envs[0].spec, run.network, seed=0), comm)
        for moments in (ppo.normalizers.observations, ppo.normalizers.critic_observations):
            moments.restore({name: array + 1 for name, array in moments.state().items()})
        made = TensorCollector(
            comm, envs, ppo.policy, ppo.normalizers, num_steps=STEPS, gamma=0.9, seed=3, timers=Timers()
        )
        (rollout,) = made.collect()
        batch, (policy, critic) = ppo._builder.batch(0, rollout), made._shards[0].groups
    torch.testing.assert_close(batch.mirrored_observation[:, 0], policy.normalized(-policy.raw[:-1].flatten(0, 1)))
    torch.testing.assert_close(batch.mirrored_critic[:, 0], critic.normalized(1 - critic.raw[:-1].flatten(0, 1)))
    assert not torch.equal(batch.mirrored_critic[:, 0], 1 - batch.critic)


def test_a_shared_body_with_a_critic_of_its_own_observation_is_refused():
    spec = make_tensor_env(WALK, EnvConfig(), 1, CPU).spec
    with pytest.raises(ConfigError, match=r"network.shared=true.*use null or false"):
        Policy(spec, NetworkConfig(shared=True))


def test_without_its_observation_the_critic_returns_nan():
    spec = make_tensor_env(WALK, EnvConfig(), 1, CPU).spec
    assert Policy(spec, NetworkConfig())(torch.zeros(3, 1))[1].isnan().all()


@pytest.mark.parametrize("autoreset", ["same_step", "next_step"])
def test_states_of_a_recurrent_policy_are_reset_where_episodes_begin(autoreset):
    env = make_tensor_env(WALK, EnvConfig(kwargs={"autoreset": autoreset}), 1, CPU)
    policy = Policy(env.spec, NetworkConfig(hidden=(8,), recurrent="lstm", recurrent_size=5), seed=1)
    made, *_ = collector(policy=policy, autoreset=autoreset)
    first, second = ([part.clone() for part in columns_of(made.collect()[0])] for _ in range(2))
    ended = torch.cat([first[3], second[3]]) > 0
    if autoreset == "next_step":
        ended = torch.cat([torch.zeros_like(ended[:1]), ended[:-1]])
    begins = torch.cat([torch.ones(1, ENVS), ended[:-1].float()])
    assert 0 < begins[1:].sum() < begins[1:].numel()
    observation, critic = (
        None if one is None else torch.cat([one, two]) for one, two in zip(first[:2], second[:2], strict=True)
    )
    state = torch.zeros(ENVS, policy.state_size)
    for t in range(2 * STEPS):  # one step at a time
        rows = slice(t * ENVS, (t + 1) * ENVS)
        found = second if t >= STEPS else first
        mine = slice(t % STEPS * ENVS, (t % STEPS + 1) * ENVS)
        torch.testing.assert_close(found[5][mine], state, msg=f"the state before step {t} differs")
        state = state * (1 - begins[t])[:, None]
        features = policy.recurrent.features(observation[rows], None if critic is None else critic[rows])
        with torch.no_grad():
            parameters, value, state = policy.recurrent.unroll(*features, Sequences(state, torch.zeros(1, ENVS)))
        torch.testing.assert_close(found[2][mine], parameters)
        torch.testing.assert_close(found[4][t % STEPS], value)


def columns_of(rollout):
    seen = rollout.evaluated
    return seen.observation, seen.critic, seen.parameters, seen.ended, seen.value, seen.state
