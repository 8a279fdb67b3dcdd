"""Steps of rollouts as graphs: the numbers of steps without, and what an environment must promise."""

from pathlib import Path

import pytest
import torch

from lockstep.cli import main as cli
from lockstep.config.env import EnvConfig
from lockstep.distributed.timers import Timers
from lockstep.errors import RunError
from lockstep.run import NetworkConfig, Run
from lockstep.session.normalizers import Normalizers
from lockstep.torch import capture
from lockstep.torch.comm import Comm
from lockstep.torch.device_rollout import TensorCollector
from lockstep.torch.envs.make import make_tensor_env
from lockstep.torch.networks import Policy
from lockstep.world import World, stream_seed
from pretended_graph import TapeGraphs, record_graphs

WALK = f"{Path(__file__).parent / 'envs' / 'tensor_envs.py'}:Walk"
CARTPOLE, PONG = "lockstep/Cartpole-v0", "lockstep/PixelPong-v0"
STEPS, ENVS, ROLLOUTS = 5, 4, 6


@pytest.fixture
def graphs(monkeypatch):
    """As on a GPU. Returns all captured steps."""
    return record_graphs(monkeypatch)


def collector(task, network, *, captured, limits=None, **kwargs):
    comm = Comm(World().with_shards(2), device="cpu")
    config = EnvConfig(kwargs=kwargs, **(limits or {}))
    envs = [make_tensor_env(task, config, ENVS, comm.device) for _ in comm.world.shards]
    spec = envs[0].spec
    policy = Policy(spec, network, seed=stream_seed(1, "init"))
    image = spec.image is not None
    normalizers = Normalizers(None if image else spec.observation_size, 0.9, 2, ENVS, spec.critic_size)
    run = Run(task=task, network=network)
    return TensorCollector(
        comm, envs, policy, normalizers, num_steps=STEPS, gamma=0.9, seed=3, timers=Timers(),
        capture=capture.capture_rollout(run, comm, STEPS) if captured else None,
    ), normalizers  # fmt: skip


def numbers(collector, normalizers):
    """Of several rollouts, with an update of the normalizers and of nothing else between them."""
    found = []
    for _ in range(ROLLOUTS):
        rollouts = collector.collect()
        for rollout in rollouts:
            seen = rollout.evaluated
            columns = (seen.observation, seen.action, seen.parameters, seen.value, seen.next_value, seen.reward)
            found += [column.clone() for column in (*columns, seen.ended, seen.weight)]
            found += [seen.state.clone()] if seen.state is not None else []
        start = 0
        for name, moments in normalizers.named().items():
            if name != "values":
                size = 1 + 2 * len(moments.mean)
                moments.update(sum(rollout.normalizer_sums[start : start + size] for rollout in rollouts))
                start += size
    return found


CASES = {
    "cart-pole": (CARTPOLE, NetworkConfig(hidden=(8,)), {"max_episode_steps": 7}),
    "recurrent": (CARTPOLE, NetworkConfig(hidden=(8,), recurrent="gru"), {"max_episode_steps": 7}),
    "pictures": (PONG, NetworkConfig(encoder="small"), {"size": 24, "max_episode_steps": 7}),
    "a user's environment": (WALK, NetworkConfig(hidden=(8,)), {}),
    "a user's environment, next step": (WALK, NetworkConfig(hidden=(8,)), {"autoreset": "next_step"}),
}


@pytest.mark.parametrize("case", CASES)
def test_captured_rollouts_have_the_same_bits(graphs, case):
    task, network, kwargs = CASES[case]
    limits = {"clip_observation": 2.0} if case == "cart-pole" else {}
    captured, normalizers = collector(task, network, captured=True, limits=limits, **kwargs)
    found = numbers(captured, normalizers)
    assert captured.captures_acting and captured.captures_envs == (task != WALK)
    assert len(graphs) == 2 * (captured.captures_acting + captured.captures_envs)
    assert all(step.num_replays >= STEPS for step in graphs)
    expected = numbers(*collector(task, network, captured=False, limits=limits, **kwargs))
    for i, (one, other) in enumerate(zip(found, expected, strict=True)):
        assert torch.equal(one, other), i


def test_the_first_update_of_the_normalizers_is_seen_by_later_steps(graphs):
    """As late as after the capture, when all rows before had no weight."""
    found = []
    for captured in (True, False):
        made, normalizers = collector(CARTPOLE, NetworkConfig(hidden=(8,)), captured=captured)
        for _ in range(ROLLOUTS):
            rollouts = made.collect()
        size = 1 + 2 * len(normalizers.observations.mean)
        normalizers.observations.update(rollouts[0].normalizer_sums[:size])
        found.append([rollout.evaluated.observation.clone() for rollout in made.collect()])
    assert all(torch.equal(one, other) for one, other in zip(*found, strict=True))


@pytest.mark.parametrize("settings", [{"capture": False}, {"network": NetworkConfig(module="mine:Network")}])
def test_what_is_not_captured_without_a_flag(graphs, settings):
    assert capture.capture_rollout(Run(task="t", **settings), Comm(device="cpu"), STEPS) is None


def test_an_environment_that_replaces_its_tensors_is_refused(graphs, monkeypatch):
    made, _ = collector(CARTPOLE, NetworkConfig(hidden=(8,)), captured=True)
    env = made._shards[0].env
    step = env.step

    def replacing(action):
        result = step(action)
        env._steps = env._steps + 0
        return result

    monkeypatch.setattr(env, "step", replacing)
    with pytest.raises(RunError, match=r"replaces a tensor \[4\] of the environments' state.*copy_"):
        made.collect()


class Refusing(TapeGraphs):
    def capture(self, function, generators=()):
        raise RunError("a step cannot be a CUDA graph") from RuntimeError("operation not permitted")


def test_acting_that_cannot_be_captured_runs_without_a_graph(graphs, monkeypatch, capsys):
    monkeypatch.setattr(capture, "graphs_on", lambda device: Refusing())
    found = numbers(*collector(WALK, NetworkConfig(hidden=(8,)), captured=True))
    assert "steps of rollouts run without CUDA graphs: operation not permitted" in capsys.readouterr().err
    expected = numbers(*collector(WALK, NetworkConfig(hidden=(8,)), captured=False))
    assert all(torch.equal(one, other) for one, other in zip(found, expected, strict=True))


def test_an_environment_that_breaks_its_promise_ends_the_run(graphs, monkeypatch):
    """Its step was broken off in the middle."""
    monkeypatch.setattr(capture, "graphs_on", lambda device: Refusing())
    with pytest.raises(RunError, match="cannot be a CUDA graph"):
        numbers(*collector(CARTPOLE, NetworkConfig(hidden=(8,)), captured=True))


def test_an_environment_may_keep_its_actions(graphs, monkeypatch):
    made, normalizers = collector(WALK, NetworkConfig(hidden=(8,)), captured=True)
    env = made._shards[0].env
    step, kept = env.step, []

    def keeping(action):
        kept.append((action, action.clone()))
        return step(action)

    monkeypatch.setattr(env, "step", keeping)
    numbers(made, normalizers)
    assert all(torch.equal(action, as_given) for action, as_given in kept)


def test_long_rollouts_are_not_captured(graphs):
    run, comm = Run(task="t"), Comm(device="cpu")
    assert capture.capture_rollout(run, comm, 257) is None and capture.capture_rollout(run, comm, 256) is not None


@pytest.mark.parametrize(("task", "said"), [(CARTPOLE, "acting and the environments"), (WALK, "acting")])
def test_a_run_says_what_of_its_rollouts_is_captured(graphs, tmp_path, task, said):
    settings = ["env.placement=device", "num_envs=8", "num_steps=8", "num_minibatches=1", "total_steps=128"]
    words = ["train", task, "--algo", "ppo", "--ranks", "1", "--run-dir", str(tmp_path / "run")]
    assert cli.main([*words, *(word for setting in settings for word in ("--set", setting))]) == 0
    log = (tmp_path / "run" / "logs" / "rank_0.log").read_text()
    assert f"capture: steps of rollouts are CUDA graphs: {said}\n" in log
