"""Replay buffers in JAX whose observations are on a device (`replay_device`): the bits are those of the host's memory.

The free memory of a GPU is pretended; rows are then on CPU devices of JAX, which the code cannot tell from GPUs.
`tests/ranks/test_jax_gpu.py` repeats the most important of this on a real one.
"""

import dataclasses

import jax
import numpy as np
import pytest
from films import Film, film_spec
from safetensors import safe_open

import lockstep
from lockstep import World
from lockstep.envs.spec import ActionSpec, EnvSpec
from lockstep.errors import ConfigError
from lockstep.experience.replay import Replay
from lockstep.experience.rollout import Rollout
from lockstep.record.progress import Progress
from lockstep.run import NetworkConfig, Run, override
from lockstep.session.non_finite import NonFiniteError, save_batches
from lockstep.world import stream

pytest.importorskip("jax")

from lockstep.jax import device_rows, hardware
from lockstep.jax.comm import Comm
from lockstep.jax.continuous_policy import ContinuousPolicy
from lockstep.jax.device_rows import DeviceMemory, DeviceRows, ReplayObservations, observed
from lockstep.jax.dqn import DQN
from lockstep.jax.q_networks import QPolicy
from lockstep.jax.sac import SAC
from lockstep.jax.transitions import Part, TransitionBatch

slow = pytest.mark.slow
SHARDS, STEPS, ENVS = 4, 8, 4
ROWS = SHARDS * STEPS * ENVS
"""Environment steps of a rollout of all shards."""
DISCRETE = EnvSpec(3, ActionSpec("discrete", (2,)), "same_step", True)
STACKS = EnvSpec(2 * 36 * 36, ActionSpec("discrete", (2,)), "same_step", True, image=(2, 36, 36), frames=2)
CONTINUOUS = EnvSpec(3, ActionSpec("continuous", (2,), (-1.0, -1.0), (1.0, 1.0)), "same_step", True)
NETWORK = NetworkConfig(hidden=(8,), features=8)
BASE = {
    "task": "t", "ml_framework": "jax", "num_envs": SHARDS * ENVS, "num_shards": SHARDS, "network": NETWORK,
    "total_steps": 10 * ROWS,
}  # fmt: skip
RUN = Run(algo="dqn", **BASE)
SETTINGS = {"num_steps": STEPS, "batch_size": 32, "capacity": 2 * ROWS, "learning_starts": 0, "n_step": 2}
CASES = {
    "dqn": (DISCRETE, {"updates_per_step": 4 / ROWS}),
    "dqn, prioritized": (DISCRETE, {"prioritized": True, "updates_per_step": 2 / ROWS}),
    "dqn, images": (STACKS, {"updates_per_step": 2 / ROWS}),
    "sac": (CONTINUOUS, {"updates_per_step": 4 / ROWS}),
}


@pytest.fixture
def room(monkeypatch):
    """Returns a function that sets the free memory of the pretended GPUs; None: there are none."""

    def set_free(num_bytes):
        monkeypatch.setattr(hardware, "free_memory", lambda device: num_bytes)

    set_free(1 << 30)
    return set_free


def make(comm, case, **changes):
    """The learner of a case."""
    spec, settings = CASES[case]
    settings = {**SETTINGS, **settings, **({"encoder": "small"} if spec.image else {}), **changes}
    run = override(RUN if case != "sac" else Run(algo="sac", **BASE), settings)
    if case == "sac":
        return SAC(run, ContinuousPolicy(spec, run.network, run.algorithm, seed=1), comm)
    return DQN(run, QPolicy(spec, run.network, run.algorithm, seed=1), comm)


def rollouts(spec, number):
    """A made rollout of each shard; images go on as stacks do."""
    draw, made = np.random.default_rng(number), []
    for _ in range(SHARDS):
        if spec.image is None:
            observation = draw.standard_normal((STEPS + 1, ENVS, 3), dtype=np.float32)
        else:
            frames = draw.integers(256, size=(STEPS + 2, ENVS, 36, 36), dtype=np.uint8)
            observation = np.stack([frames[t : t + 2].swapaxes(0, 1) for t in range(STEPS + 1)])
        ended = draw.random((STEPS, ENVS)) < (0.1 if spec.image is None else 0.0)
        action = draw.integers(0, 2, (STEPS, ENVS))
        if spec.action.kind == "continuous":
            action = draw.uniform(-1, 1, (STEPS, ENVS, 2)).astype(np.float32)
        reward = draw.standard_normal((STEPS, ENVS)).astype(np.float32)
        made.append(Rollout(observation, action, reward, ended, ended, np.ones((STEPS, ENVS), np.float32), []))
    return made


def update(learner, number):
    progress = Progress(10 * ROWS, env_steps=number * ROWS, updates=number)
    learner.update(rollouts(learner.policy.spec, number), np.ones((SHARDS, 1)), progress)


def same(first, second):
    return [name for name, array in first.items() if not np.array_equal(array, second[name])] == []


def copied(state):
    if isinstance(state, dict):
        return {key: copied(value) for key, value in state.items()}
    return state.copy() if isinstance(state, np.ndarray) else state


@slow
@pytest.mark.parametrize("devices", [1, 2, 4])
@pytest.mark.parametrize("case", CASES)
def test_updates_have_the_bits_of_observations_on_the_host(room, case, devices):
    found = []
    for free, count in ((None, 1), (1 << 30, devices)):
        room(free)
        with Comm(World().with_shards(SHARDS), device="cpu", devices_per_process=count) as comm:
            learner = make(comm, case)
            assert (learner.replay_observations.storage.make_rows is not None) == (free is not None)
            learner.warmup()
            compiled = comm.num_compilations.copy()
            for number in range(5):
                update(learner, number)
            assert comm.num_compilations == compiled, "something was compiled again"
            found.append(learner.shared_arrays())
            rows = learner.replay_observations.rows()
            if free is not None:
                assert len(rows.sharding.device_set) == devices
    assert same(*found)


@slow
@pytest.mark.parametrize("case", ["dqn, prioritized", "dqn, images", "sac"])
@pytest.mark.parametrize(("before", "after"), [(None, 1 << 30), (1 << 30, None), (1 << 30, 1 << 30)])
def test_a_checkpoint_continues_wherever_observations_are_stored(room, monkeypatch, case, before, after):
    monkeypatch.setattr(device_rows, "_BLOCK", 1000)
    with Comm(World().with_shards(SHARDS), device="cpu") as comm:
        room(before)
        first = make(comm, case)
        for number in range(3):
            update(first, number)
        room(after)
        second = make(comm, case)
        second.load_shared(first.shared_arrays())
        for k in range(SHARDS):
            second.restore_shard(k, copied(first.shard_state(k)))
        for number in range(3, 5):
            update(first, number)
            update(second, number)
        assert same(first.shared_arrays(), second.shared_arrays())


def test_two_steps_on_a_device_have_the_bits_of_the_host(room):
    found = []
    with Comm(World().with_shards(SHARDS), device="cpu") as comm:
        for free in (None, 1 << 30):
            room(free)
            learner = make(comm, "dqn", updates_per_step=2 / ROWS)
            for number in range(3):
                update(learner, number)
            found.append(learner.shared_arrays())
    assert same(*found)


@pytest.mark.parametrize("image", [True, False])
@pytest.mark.parametrize("autoreset", ["next_step", "same_step"])
def test_samples_are_what_the_environment_showed(monkeypatch, autoreset, image):
    """Also where rows wait on the host, a ring comes round, and two shards share a device."""
    monkeypatch.setattr(device_rows, "_PENDING_ROWS", 40)
    film = Film(film_spec(autoreset, image=image))
    memories = []

    def make_rows(shape, dtype):
        memories.append(DeviceMemory(shape, dtype, jax.devices()[0], 2))
        return DeviceRows(memories[0], shape, dtype, shape[0] + 1)

    options = {"n_step": 3, "gamma": 0.9, "prioritized": True}
    one, host = Replay(film.spec, 3, 60, **options, make_rows=make_rows), Replay(film.spec, 3, 60, **options)
    first = film.reset([])
    for replay in (one, host):
        replay.begin(first)
    draws = [stream(0, "sample"), stream(0, "sample")]
    for step in range(200):
        action = film.random.integers(3, size=3)
        observation, reward, terminated, truncated, final = film.step(action)
        for replay in (one, host):
            replay.add(action, reward, terminated, truncated, observation, final)
        if step < 15 or step % 7:
            continue
        memories[0].flush()
        drawn = [replay.sample(4, draw) for replay, draw in zip((one, host), draws, strict=True)]
        parts = [Part(TransitionBatch.of(d, np.ones(4, np.float32)), None, None, None).batch for d in drawn]
        read = observed(Part(parts[0], None, None, None), memories[0].rows, film.spec).batch
        for name, expected in parts[1]._asdict().items():
            np.testing.assert_array_equal(getattr(read, name), expected, err_msg=name)
    assert (one.state()["observation"] == host.state()["observation"]).all()


def test_an_infinite_loss_is_named_with_its_observation(room, tmp_path):
    with Comm(World().with_shards(SHARDS), device="cpu") as comm:
        dqn = make(comm, "dqn", loss="mse", max_grad_norm=None, updates_per_step=2 / ROWS)
        made = rollouts(DISCRETE, 0)
        made[3].reward[:] = 1e30
        with pytest.raises(NonFiniteError, match=r"transition 0 from the replay is not finite.*shard 3") as error:
            dqn.update(made, np.ones((SHARDS, 1)), Progress(10 * ROWS))
    save_batches(error.value, tmp_path)
    with safe_open(tmp_path / "non_finite/shard_3.safetensors", "np") as file:
        seen = file.get_tensor("batch.observation")
    assert seen.shape[1:] == (3,)
    assert all((row == made[3].observation).all(-1).any() for row in seen)


@slow
def test_a_run_ends_with_the_same_parameters(room, tmp_path, capsys):
    run = Run(task="CartPole-v1", algo="dqn", num_envs=8, total_steps=480, network=NetworkConfig(hidden=(8,)))
    run = override(run, {"num_steps": 4, "learning_starts": 64, "capacity": 256, "checkpoint_every": 240})
    run = override(run, {"evaluate_every": None, "evaluate_episodes": 1, "stop_when_solved": False})
    run = dataclasses.replace(run, ml_framework="jax")
    on_device = lockstep.train(run, run_dir=tmp_path / "device")
    line = next(line for line in capsys.readouterr().out.splitlines() if "replay:" in line)
    assert "replay_device=auto" in line and "GPU's memory" in line
    room(None)
    assert lockstep.train(run, run_dir=tmp_path / "host")["params_fingerprint"] == on_device["params_fingerprint"]
    assert "replay_device" not in next(x for x in capsys.readouterr().out.splitlines() if "replay:" in x)


class TestDecision:
    """Where observations are stored, with the reason that is logged; torch's tests have the rest."""

    def decide(self, devices=1, **changes):
        with Comm(World().with_shards(2), device="cpu", devices_per_process=devices) as comm:
            run = override(RUN, {"num_shards": 2, "num_envs": 8, "capacity": 400, **changes})
            return ReplayObservations(run, DISCRETE, comm).storage

    def test_auto_counts_the_shards_of_one_device(self, room):
        needed = 8 * 52 * 3 * 4  # rings of 50 + 1 + 1 rows of 3 floats each
        room(2 * needed)
        assert self.decide().make_rows is not None
        room(2 * needed - 1)
        storage = self.decide()
        assert storage.make_rows is None and "more than 50%" in storage.decision
        assert self.decide(devices=2).make_rows is not None, "each device has one of the two shards"

    def test_the_host_where_it_was_chosen_or_there_is_no_gpu(self, room):
        assert self.decide(replay_device="cpu") == (None, "")
        room(None)
        assert self.decide() == (None, "")

    def test_a_gpu_that_is_too_small_is_refused_with_what_would_fit(self, room):
        room(4000)
        with pytest.raises(ConfigError, match=r"replay_device=cuda needs 0\.0 MB .*capacity=400.*replay_device=auto"):
            self.decide(replay_device="cuda")

    def test_a_device_without_the_memory_after_all_is_refused(self, monkeypatch):
        def full(*args, **kwargs):
            raise jax.errors.JaxRuntimeError("RESOURCE_EXHAUSTED: Out of memory\nmore")

        monkeypatch.setattr(device_rows.jnp, "zeros", full)
        with pytest.raises(ConfigError, match=r"does not fit into the memory of .*Out of memory\).*replay_device=cpu"):
            DeviceMemory((4, 3), np.dtype(np.float32), jax.devices()[0], 1)

    def test_ranks_without_a_gpu_refuse_cuda(self):
        refused = pytest.raises(ConfigError, match="replay_device=cuda, but there is no GPU that jax can use")
        with Comm(World().with_shards(SHARDS), device="cpu") as comm, refused:
            make(comm, "dqn", replay_device="cuda")
