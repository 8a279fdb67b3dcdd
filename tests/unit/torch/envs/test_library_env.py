"""Environments as other training libraries see them: groups, copies of live buffers, seeds, and the time they take."""

import sys
import time
from types import ModuleType

import pytest
import torch

from lockstep.config.env import EnvConfig
from lockstep.envs.make import make_vector_env
from lockstep.errors import ConfigError
from lockstep.torch.envs import library_env
from lockstep.torch.envs.library_env import EpisodeSums, HostTaskEnv, RecordedEnv, TensorTaskEnv
from lockstep.torch.envs.library_wrappers import rl_games_env, rsl_rl_env

CPU = torch.device("cpu")
WALK = "tensor_envs:Walk"


@pytest.fixture(autouse=True)
def importable(monkeypatch):
    monkeypatch.syspath_prepend(__file__.rpartition("/")[0])


def make(seed=1):
    return TensorTaskEnv(WALK, 3, CPU, seed)


def test_both_groups_have_spaces_and_copies():
    env = make()
    assert {name: space.shape for name, space in env.single_observation_space.items()} == {
        "policy": (1,),
        "critic": (2,),
    }
    first, _ = env.reset()
    before = {name: group.clone() for name, group in first.items()}
    second, reward, terminated, truncated, _ = env.step(torch.full((3, 1), 0.5))
    kept = reward.clone(), terminated.clone(), truncated.clone()
    env.step(torch.full((3, 1), -0.5))
    assert all(torch.equal(first[name], before[name]) for name in before), "a live buffer was not copied"
    assert all(torch.equal(*pair) for pair in zip((reward, terminated, truncated), kept, strict=True))
    assert torch.equal(second["policy"], before["policy"] + 0.5)


def test_actions_are_clipped_and_episodes_counted():
    env = make()
    start = env.reset()[0]["policy"]
    assert torch.equal(env.step(torch.full((3, 1), -7.0))[0]["policy"], start - 1.0)
    for _ in range(2):
        env.step(torch.full((3, 1), -1.0))
    assert env.episode_length_buf.tolist() == [0, 3, 3]


def test_seeds_differ_by_rank_and_repeat():
    observations = [make(seed).reset()[0]["policy"].tolist() for seed in (1, 1, 2)]
    assert observations[0] == observations[1] != observations[2]


def test_resets_in_a_step_of_their_own_are_refused(tmp_path, monkeypatch):
    (tmp_path / "next_step_walk.py").write_text(
        "from tensor_envs import Walk\n\n"
        "class Next(Walk):\n"
        "    def __init__(self, num_envs, *, device):\n"
        "        super().__init__(num_envs, device=device, autoreset='next_step')\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(ConfigError, match="resets in a step of its own"):
        TensorTaskEnv("next_step_walk:Next", 3, CPU, 1)


def test_several_agents_are_refused():
    pytest.importorskip("pettingzoo")
    with pytest.raises(ConfigError, match="task=pettingzoo/classic/rps_v2 has several agents"):
        HostTaskEnv("pettingzoo/classic/rps_v2", 4, CPU, 1)


@pytest.fixture
def libraries(monkeypatch):
    """The classes of rl_games and rsl_rl that our environments inherit from or return."""
    names = {
        "rl_games": {}, "rl_games.common": {}, "rl_games.common.ivecenv": {"IVecEnv": object},
        "rsl_rl": {}, "rsl_rl.env": {"VecEnv": object},
        "tensordict": {"TensorDict": lambda groups, batch_size: {**groups, "batch_size": batch_size}},
    }  # fmt: skip
    for name, classes in names.items():
        module = ModuleType(name)
        vars(module).update(classes)
        monkeypatch.setitem(sys.modules, name, module)


@pytest.mark.usefixtures("libraries")
def test_rsl_rl_gets_both_groups_and_clipped_actions():
    inner = make()
    env = rsl_rl_env(inner, clip_actions=0.25)
    assert (env.num_envs, env.num_actions) == (3, 1)
    before = {name: group.clone() for name, group in env.get_observations().items() if name != "batch_size"}
    assert {name: tuple(group.shape) for name, group in before.items()} == {"policy": (3, 1), "critic": (3, 2)}
    observation, _, ended, _ = env.step(torch.full((3, 1), 0.75))
    assert torch.equal(observation["policy"], before["policy"] + 0.25)
    assert observation["batch_size"] == [3]
    assert ended.dtype == torch.int64


@pytest.mark.usefixtures("libraries")
@pytest.mark.parametrize("wrap", [rl_games_env, lambda env: rsl_rl_env(env, None)])
def test_a_time_out_is_no_termination(wrap):
    """Both libraries add the value of the next state to the reward of a time-out; a terminated episode has none."""
    inner = make()
    env = wrap(inner)
    step = inner.step
    flags = torch.tensor([[True, False, True], [True, True, False]])

    def ends(action):
        observation, reward, _, _, extras = step(action)
        return observation, reward, *flags, extras

    inner.step = ends
    *_, ended, extras = env.step(torch.zeros(3, 1))
    assert ended.tolist() == [1, 1, 1]
    assert extras["time_outs"].tolist() == [False, True, False]


def test_a_reward_that_is_not_finite_counts_0_in_returns():
    sums = EpisodeSums(2, CPU)
    sums.add(torch.tensor([torch.nan, 1.0]), torch.tensor([False, True]))
    assert sums.take() == (1.0, 1.0, 1.0)
    sums.add(torch.tensor([2.0, torch.inf]), torch.tensor([True, True]))
    assert sums.take() == (2.0, 3.0, 2.0)


@pytest.mark.usefixtures("libraries")
def test_rl_games_gets_the_critic_group_as_states():
    env = rl_games_env(make())
    assert env.get_env_info()["state_space"].shape == (2,)
    assert {name: group.shape[1] for name, group in env.reset().items()} == {"obs": 1, "states": 2}
    assert env.step(torch.zeros(3, 1))[0].keys() == {"obs", "states"}


def test_the_time_of_the_environments_steps_is_summed():
    inner = make()
    step = inner.step

    def slow(action):
        time.sleep(0.01)
        return step(action)

    inner.step = slow
    digests = []
    env = RecordedEnv(inner, 3, digests.append, lambda: time.sleep(0.01))
    env.reset()
    for _ in range(8):
        env.step(torch.zeros(3, 1))
    assert 0.08 <= env.env_s < 0.16
    assert len(digests) == 1


def test_images_are_numbers_that_every_network_takes():
    """rl_games scales bytes while it acts only, and the networks of skrl and rsl_rl do not take them at all."""
    env = HostTaskEnv("lockstep/PixelPong-v0", 2, CPU, 1)
    first, _ = env.reset()
    second = env.step(torch.zeros(2))[0]
    for observation in (first["policy"], second["policy"]):
        assert observation.dtype == torch.float32
        assert observation.min() >= 0.0 and 0.1 < observation.max() <= 1.0
    assert env.single_observation_space["policy"].contains(first["policy"][0].numpy())
    env.close()


def test_tasks_on_the_host_have_the_critics_observation(monkeypatch):
    made = make_vector_env(WALK, EnvConfig(), 3)
    monkeypatch.setattr(library_env, "make_vector_env", lambda *args: made)
    env = HostTaskEnv(WALK, 3, CPU, 1)
    observation, _ = env.reset()
    assert {name: tuple(group.shape) for name, group in observation.items()} == {"policy": (3, 1), "critic": (3, 2)}
    assert set(env.step(torch.zeros(3, 1))[0]) == {"policy", "critic"}
