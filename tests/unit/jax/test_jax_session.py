"""What surrounds a loop in JAX: a run on several devices of one process, what it tells, and how it goes on."""

import json
import shutil
from dataclasses import replace

import numpy as np
import pytest

pytest.importorskip("jax")

import jax
from safetensors.numpy import load_file

from lockstep.algorithms.ppo import PPOConfig
from lockstep.errors import ConfigError, MismatchError, RunError
from lockstep.jax import session as jax_session
from lockstep.jax.export import load_policy
from lockstep.jax.networks import Policy
from lockstep.jax.ppo import PPO
from lockstep.jax.session import Session
from lockstep.jax.state import LearnerState
from lockstep.record.progress import Progress
from lockstep.run import NetworkConfig, Run, override
from lockstep.session.resume import prepare
from lockstep.session.run_state import RunState
from lockstep.session.signals import WATCHED
from lockstep.train import train
from lockstep.world import World
from quick import others_slow

RUN = Run(
    task="lockstep/Corridor-v0",
    ml_framework="jax",
    device="cpu",
    num_envs=16,
    num_shards=4,
    total_steps=16 * 8 * 6,
    algorithm=PPOConfig(
        num_steps=8, num_epochs=2, num_minibatches=2, learning_rate_schedule="constant", normalize_observation=True
    ),
    network=NetworkConfig(hidden=(8,)),
    log_every=16 * 8 * 2,
    evaluate_every=None,
    evaluate_episodes=8,
    checkpoint_every=16 * 8 * 3,
    stop_when_solved=False,
)

NO_FACTS = np.zeros(4 + len(WATCHED))


def trained(tmp_path, name, run=RUN, **where):
    return train(run, **({"run_dir": tmp_path / name} | where))


def timeless(path):
    told = [json.loads(line) for line in (path / "metrics.jsonl").read_text().splitlines()]
    return [{key: value for key, value in line.items() if not key.startswith("time")} for line in told]


@pytest.fixture(scope="module")
def alone(tmp_path_factory):
    folder = tmp_path_factory.mktemp("alone")
    return folder / "run", trained(folder, "run")


@pytest.mark.parametrize("devices", others_slow([2, 4], 4))
def test_any_number_of_devices_trains_the_same(alone, tmp_path, devices):
    path, one = alone
    several = trained(tmp_path, "run", override(RUN, {"devices_per_process": devices}))
    assert several["params_fingerprint"] == one["params_fingerprint"]
    assert timeless(tmp_path / "run") == timeless(path)


def test_every_device_is_a_rank_of_the_summary(alone, tmp_path):
    _, one = alone
    told = trained(tmp_path, "run", override(RUN, {"devices_per_process": 4}))
    assert (told["world_size"], told["num_shards"], told["backend"]) == (4, 4, "gloo")
    assert told["devices"] == ["cpu"] * 4
    ranks = told["ranks"]
    assert [rank["rank"] for rank in ranks] == [0, 1, 2, 3]
    assert len({rank["first_rollout_fingerprint"] for rank in ranks}) == 4
    assert {rank["params_fingerprint"] for rank in ranks} == {told["params_fingerprint"]}
    assert {rank["env_steps"] for rank in ranks} == {RUN.total_steps // 4}
    assert sum(rank["episodes"] for rank in ranks) == told["episodes"] == one["episodes"]
    assert {"jax", "jaxlib"} <= set(told["versions"])
    assert "torch" not in told["versions"]
    saved = json.loads((tmp_path / "run" / "preflight.json").read_text())
    assert saved["versions"] == {
        name: saved["versions"][name] for name in ("python", "jax", "jaxlib", "lockstep", "numpy")
    }


def test_without_a_number_of_shards_each_device_has_one(tmp_path):
    run = override(RUN, {"num_shards": None, "devices_per_process": 2, "total_steps": 16 * 8})
    with Session(run, run_dir=tmp_path / "run") as session:
        assert (session.world.num_shards, session.world.pinned, session.comm.num_slots) == (2, False, 1)


def test_fewer_shards_than_devices_are_refused(tmp_path):
    with pytest.raises(ConfigError, match=r"num_shards=4 is fewer than the 8 ranks .*devices_per_process=8"):
        Session(override(RUN, {"devices_per_process": 8}), run_dir=tmp_path / "run")
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("devices", others_slow([1, 2], 2))
def test_a_resumed_run_ends_as_one_that_never_stopped(alone, tmp_path, devices):
    path, whole = alone
    first = trained(tmp_path, "run", replace(RUN, total_steps=RUN.total_steps // 2))
    assert first["params_fingerprint"] != whole["params_fingerprint"]
    again = prepare(tmp_path / "run", {"total_steps": str(RUN.total_steps), "devices_per_process": str(devices)})
    assert (again.world_size, again.num_shards) == (1, 4)
    done = trained(tmp_path, "run", again.run, run_dir=None, resume=tmp_path / "run")
    assert done["resumed_from"] == f"checkpoints/step_{RUN.total_steps // 2}"
    assert done["params_fingerprint"] == whole["params_fingerprint"]
    assert timeless(tmp_path / "run") == timeless(path)


def test_a_run_of_several_devices_goes_on_as_one_process(tmp_path):
    run = override(RUN, {"devices_per_process": 4, "num_shards": None, "total_steps": 16 * 8})
    trained(tmp_path, "run", run)
    found = prepare(tmp_path / "run", {})
    assert (found.world_size, found.num_shards) == (1, 4)


def test_a_run_of_several_devices_without_a_checkpoint_begins_as_one_process(tmp_path):
    run = override(RUN, {"devices_per_process": 4, "num_shards": None, "total_steps": 16 * 8})
    path = tmp_path / "run"
    trained(tmp_path, "run", run)
    shutil.rmtree(path / "checkpoints")
    (path / "policy.safetensors").unlink()
    summary = json.loads((path / "summary.json").read_text())
    assert summary["world_size"] == 4
    (path / "summary.json").write_text(json.dumps({**summary, "status": "interrupted"}))
    found = prepare(path, {})
    assert (found.world_size, found.num_shards) == (1, None)


@pytest.mark.parametrize("other", [{"ml_framework": "torch", "devices_per_process": 1}, {"num_shards": 2}])
def test_what_the_state_was_made_with_cannot_change(alone, other):
    path, _ = alone
    name = next(iter(other))
    with pytest.raises(ConfigError, match=f"{name}={other[name]} differs .*cannot change within a run"):
        prepare(path, other)


def test_a_run_starts_from_a_policy_file(alone, tmp_path):
    path, _ = alone
    policy, moments = load_policy(path)
    with Session(override(RUN, {"seed": 5}), run_dir=tmp_path / "run", init_from=path) as session:
        mine = Policy(session.spec, RUN.network, seed=3)
        ppo = PPO(session.run, mine, session.comm)
        before = ppo.shared_arrays()
        session.begin(mine, ppo, observation_moments=ppo.normalizers.observations)
        shared = ppo.shared_arrays()
    assert any((before[f"policy.{name}"] != array).any() for name, array in policy.params.items())
    for name, array in policy.params.items():
        np.testing.assert_array_equal(shared[f"policy.{name}"], array, err_msg=name)
        np.testing.assert_array_equal(mine.params[name], array, err_msg=name)
    assert moments is not None
    for name, array in moments.state().items():
        np.testing.assert_array_equal(shared[f"observations.{name}"], array, err_msg=name)


class FromNowhere:
    """Two shards that saw the same, then two that did not."""

    episodes = ()
    fingerprints = ("a", "a", "b", "c")

    def fingerprint(self):
        return "-".join(self.fingerprints)


def state_of(source, world):
    return RunState(world, None, source, None, Progress(1))


def test_each_device_has_a_fingerprint_of_its_own_shards():
    world = World(num_shards=4)
    assert state_of(FromNowhere(), world).fingerprints(1) == ["a-a-b-c"]
    assert len(set(state_of(FromNowhere(), world).fingerprints(4))) == 3
    first, second = state_of(FromNowhere(), world).fingerprints(2)
    assert first != second


def test_devices_that_collected_the_same_are_named(tmp_path):
    with Session(override(RUN, {"devices_per_process": 4}), run_dir=tmp_path / "run") as session:
        ppo = PPO(session.run, Policy(session.spec, RUN.network), session.comm)
        session.begin(ppo.policy, ppo, observation_moments=ppo.normalizers.observations)
        session._source = FromNowhere()
        session._updated, session._state = False, state_of(session._source, session.world)
        with pytest.raises(RunError, match="ranks 0, 1 collected the same data"):
            session.advance(128, NO_FACTS)


@pytest.mark.parametrize(("updates", "proofs"), [([1] * 6, 2), ([3, 3], 2), ([2, 4], 1), ([5, 1], 2), ([7], 1)])
def test_proofs_are_due_also_when_many_updates_are_one_call(tmp_path, monkeypatch, updates, proofs):
    proved = []
    monkeypatch.setattr(Session, "_check_in_sync", lambda self: proved.append(self.progress.updates))
    with Session(override(RUN, {"check_every": 3, "checkpoint_every": None}), run_dir=tmp_path / "run") as session:
        ppo = PPO(session.run, Policy(session.spec, RUN.network), session.comm)
        session.begin(ppo.policy, ppo, observation_moments=ppo.normalizers.observations)
        session.progress = Progress(RUN.total_steps)
        session._source, session._updated, session._started = FromNowhere(), True, 0.0
        session._checkpoints._writer, session._checkpoints._progress = FakeWriter(), session.progress
        for count in updates:
            session.advance(128 * count, NO_FACTS, updates=count)
            session.checkpoint_if_due(128 * count)
    assert session.progress.updates == sum(updates)
    assert len(proved) == proofs, proved


class FakeWriter:
    busy = checkpoint_pending = False

    def close(self):
        pass


def test_a_device_that_differs_is_noticed(tmp_path):
    with Session(override(RUN, {"devices_per_process": 2}), run_dir=tmp_path / "run") as session:
        ppo = PPO(session.run, Policy(session.spec, RUN.network), session.comm)
        held = LearnerState(ppo, session.comm)
        session.comm.check_equal(held.state_to_compare())
        values = ppo.state.params
        pieces = [np.asarray(piece.data).copy() for piece in values.addressable_shards]
        pieces[1][0] += 1.0
        on = [jax.device_put(piece, device) for piece, device in zip(pieces, session.comm.devices, strict=True)]
        spoiled = jax.make_array_from_single_device_arrays(values.shape, values.sharding, on)
        ppo.state = ppo.state._replace(params=spoiled)
        with pytest.raises(MismatchError, match=r"ranks 0 and 1 hold different state\.params") as caught:
            session.comm.check_equal(held.state_to_compare())
        session.backend.dump_error(caught.value, tmp_path, session.comm, held.state_to_compare())
    left = [load_file(tmp_path / "mismatch" / f"rank_{rank}.safetensors") for rank in (0, 1)]
    np.testing.assert_array_equal(np.flatnonzero(left[1]["state.params"] - left[0]["state.params"]), [0])


def test_one_thread_unless_a_step_is_worth_more(monkeypatch):
    asked = []
    monkeypatch.setattr(jax_session.hardware, "share_cores", lambda world, work: asked.append(work))
    open_comm, timers = jax_session.Jax().open, jax_session.Timers()
    open_comm(RUN, RUN.with_shards(World()), timers)
    open_comm(override(RUN, {"hidden": [4096, 4096], "num_shards": None}), World(), timers)
    assert asked[0] == 0, "a pinned run computes on one thread"
    assert 16e6 * 64 < asked[1] < 17e6 * 64
