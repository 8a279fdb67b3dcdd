"""The adapter of Isaac Lab, with a simulator that has its traps: live buffers, a stale key, global generators."""

import contextlib
import json
import math
import random
from types import SimpleNamespace
from unittest.mock import Mock

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium import spaces

from lockstep.config.env import EnvConfig
from lockstep.errors import ConfigError
from lockstep.torch.envs import isaac_camera, isaac_lab, spec_cache
from lockstep.torch.envs.isaac_lab import IsaacLabEnv
from lockstep.torch.envs.isaac_launch import IsaacTask
from lockstep.torch.envs.simulator_process import episode_seconds

CPU = torch.device("cpu")


class Simulator:
    """Positions that are drawn from the global generators; environment 0 ends every third step, by time."""

    step_dt = 0.5
    max_episode_length = 3
    single_action_space = spaces.Box(-1, 1, (1,))
    single_observation_space = spaces.Dict(
        {"policy": spaces.Box(-1, 1, (1,)), "critic": spaces.Box(-1, 1, (2,)), "extra": spaces.Box(-1, 1, (1,))}
    )

    def __init__(self, num_envs, **config):
        self.cfg = SimpleNamespace(**config)
        self.num_envs = num_envs
        self._reward = torch.zeros(num_envs)
        self._truncated = torch.zeros(num_envs, dtype=torch.bool)
        self.extras = {}
        self.closed = False
        self.actions = []

    def seed(self, seed):
        torch.manual_seed(seed)
        np.random.seed(seed)
        random.seed(seed)

    def reset(self, *, seed):
        self.seed(seed)
        self._position = torch.rand(self.num_envs) + float(np.random.rand()) + random.random()
        self._count = 0
        return self._groups(), {}

    def step(self, action):
        self.actions.append(action)
        self._count += 1
        self._position = self._position + action[:, 0] + torch.rand(self.num_envs)
        self._reward.copy_(self._position)
        self._truncated[0] = self._count % 3 == 0
        if self._truncated.any():
            self.extras["final_obs"] = self._groups()
            self._position = torch.where(self._truncated, torch.zeros(()), self._position)
        return self._groups(), self._reward, torch.zeros_like(self._truncated), self._truncated, self.extras

    def _groups(self):
        position = self._position[:, None]
        return {"policy": position.clone(), "critic": torch.cat([position, -position], 1), "extra": 2 * position}

    def close(self):
        self.closed = True


@pytest.fixture
def opened(monkeypatch):
    """Calls of `open_task`, and the simulators that they made."""
    calls = []

    @contextlib.contextmanager
    def open_task(task, device, agent, overrides):
        def make(*, num_envs, seed, final_obs):
            assert final_obs
            simulator = Simulator(num_envs, **getattr(open_task, "config", {}))
            calls.append((task, device, overrides, simulator))
            print("a table")
            return SimpleNamespace(unwrapped=simulator)

        yield SimpleNamespace(make=make)

    open_task.calls = calls
    monkeypatch.setattr(isaac_lab, "open_task", open_task)
    return open_task


def make(**settings):
    return IsaacLabEnv("Isaac-Mine", num_envs=3, device=CPU, **settings)


def test_groups_go_to_the_policy_and_to_the_critic(opened, capsys):
    env = make()
    assert (env.spec.observation_size, env.spec.critic_size, env.spec.max_episode_steps) == (1, 2, 3)
    observation = env.reset([4, 5, 6])
    assert torch.equal(observation.critic[:, :1], observation.policy)
    env.close()
    assert opened.calls[0][3].closed
    assert capsys.readouterr().out == ""


@pytest.mark.parametrize("modes", [["startup", "reset"], ["reset"]])
def test_what_is_drawn_once_at_the_start_is_drawn_from_the_seed_of_the_shard(opened, modes):
    masses = []
    for seed in (4, 5, 4):
        env = make()
        simulator = opened.calls[-1][3]
        simulator.mass = torch.zeros(3)

        def apply(mode, of=simulator):
            of.mass = torch.rand(3)

        simulator.event_manager = SimpleNamespace(available_modes=modes, apply=apply)
        first = env.reset([seed]).policy
        masses.append(simulator.mass)
        assert torch.equal(first, env.reset([seed]).policy)
        env.close()
    if "startup" in modes:
        assert not torch.equal(masses[0], masses[1])
        assert torch.equal(masses[0], masses[2])
    else:
        assert not torch.stack(masses).any()


def test_groups_are_chosen_and_joined_in_the_order_of_the_setting(opened):
    env = make(policy_keys=("extra", "policy"), critic_keys=("extra", "policy"))
    assert (env.spec.observation_size, env.spec.critic_size) == (2, None)
    observation = env.reset([4])
    assert torch.equal(observation.policy[:, 0], 2 * observation.policy[:, 1])
    assert observation.critic is None
    env.close()


def test_images_of_floats_reach_the_policy_as_bytes(opened, monkeypatch):
    groups = {"policy": spaces.Box(-np.inf, np.inf, (2, 3, 4)), "critic": spaces.Box(-1, 1, (2,))}
    images = torch.linspace(-1, 1, 3 * 24).reshape(3, 2, 3, 4)
    monkeypatch.setattr(Simulator, "single_observation_space", spaces.Dict(groups))
    monkeypatch.setattr(Simulator, "_groups", lambda self: {"policy": images, "critic": torch.zeros(3, 2)})
    env = make(image_range=[-1, 1])
    assert (env.spec.image, env.spec.critic_size) == ((2, 3, 4), 2)
    seen = env.reset([4]).policy
    assert seen.dtype == torch.uint8
    torch.testing.assert_close(seen.float() / 127.5 - 1, images, atol=1 / 255, rtol=0)
    env.close()


def test_an_unknown_group_is_refused_with_those_that_exist(opened):
    with pytest.raises(ConfigError, match=r"critic_keys=\['state'\].*policy, critic, extra|critic_keys.*critic, extra"):
        make(critic_keys=("state",))
    assert not isaac_lab._open
    assert opened.calls[0][3].closed


def test_final_observations_come_with_the_step_that_ended_an_episode_only(opened):
    env = make()
    env.reset([4])
    found = [env.step(torch.zeros(3, 1)) for _ in range(7)]
    assert [step.final is not None for step in found] == [False, False, True, False, False, True, False]
    last = found[2].final.policy
    assert last[0] != found[2].observation.policy[0]
    assert torch.equal(last[1:], found[2].observation.policy[1:])
    env.close()


@pytest.mark.parametrize(
    ("space", "action", "expected"),
    [
        (spaces.Box(-1, 1, (2, 1)), torch.tensor([[1.0, 2.0]] * 3), [[[1.0], [2.0]]] * 3),
        (spaces.Discrete(3, start=1), torch.tensor([0, 1, 2]), [[1], [2], [3]]),
        (spaces.MultiDiscrete([2, 3], start=[0, 5]), torch.tensor([[1, 2]] * 3), [[1, 7]] * 3),
    ],
    ids=str,
)
def test_a_step_takes_actions_of_the_space(opened, monkeypatch, space, action, expected):
    monkeypatch.setattr(Simulator, "single_action_space", space)
    monkeypatch.setattr(Simulator, "step", lambda self, action: self.actions.append(action) or ({}, *[None] * 3, {}))
    monkeypatch.setattr(IsaacLabEnv, "_observation", lambda *_: None)
    monkeypatch.setattr(isaac_lab, "ends", lambda *flags: flags[1:])
    env = make()
    env.step(action)
    env.close()
    assert opened.calls[0][3].actions[0].tolist() == expected


class ShowcaseEnv(gymnasium.Env):
    """Observes a tuple of live buffers, as the cart-pole showcase does; environment 0 ends in each step."""

    def __init__(self, cfg):
        self.cfg, self.extras = cfg, {}
        self.position = torch.zeros(cfg.scene.num_envs, 1)

    def step(self, action):
        self.position += 1
        assert self.cfg.compute_final_obs
        self.extras["final_obs"] = self._get_observations()
        self._reset_idx(torch.tensor([0]))
        return self._get_observations(), self.position[:, 0], None, None, self.extras

    def _reset_idx(self, env_ids):
        self.position[env_ids] = 0.0

    def _get_observations(self):
        return {"policy": (self.position, {"velocity": self.position})}


def test_final_observations_in_live_buffers_are_copied_before_the_reset(monkeypatch):
    monkeypatch.setattr(gymnasium, "make", lambda task, cfg: ShowcaseEnv(cfg))
    config = SimpleNamespace(scene=SimpleNamespace(), seed=None, compute_final_obs=False)
    env = IsaacTask("Isaac-Mine", config, None).make(num_envs=2, seed=3, final_obs=True)
    observation, *_, extras = env.step(None)
    position, others = extras["final_obs"]["policy"]
    assert position[0] == others["velocity"][0] == 1.0
    assert observation["policy"][0][0] == 0.0


@pytest.mark.slow
@pytest.mark.parametrize(
    ("error", "words"),
    [
        (FileNotFoundError("no ant.usd"), r"task=Isaac-Mine: no ant\.usd; .*ISAACSIM_ASSET_ROOT=/some/where"),
        (ModuleNotFoundError("No module named 'omni'", name="omni"), "pip install omniverseclient"),
        (None, "has several agents"),
    ],
    ids=["file", "client", "agents"],
)
def test_tasks_that_cannot_run_here_are_refused_with_the_way_out(error, words, monkeypatch):
    env = SimpleNamespace(possible_agents=["a", "b"], close=lambda: None)
    env.unwrapped = env
    monkeypatch.setenv("ISAACSIM_ASSET_ROOT", "/some/where")
    monkeypatch.setattr(gymnasium, "make", Mock(return_value=env, side_effect=error))
    task = IsaacTask("Isaac-Mine", SimpleNamespace(scene=SimpleNamespace()), None)
    with pytest.raises(ConfigError, match=words):
        task.make(num_envs=2, seed=3)


def test_the_simulator_has_random_numbers_of_its_own(opened):
    """Neither what others draw changes them, nor do they change what others draw."""

    def run(disturb):
        env = make()
        torch.manual_seed(1)
        np.random.seed(1)
        random.seed(1)
        seen = [env.reset([4]).policy]
        for _ in range(5):
            if disturb:
                torch.rand(3), np.random.rand(), random.random()
            seen.append(env.step(torch.zeros(3, 1)).observation.policy)
        env.close()
        return torch.stack(seen), torch.rand(1), np.random.rand(), random.random()

    quiet, *numbers = run(disturb=False)
    disturbed, *_ = run(disturb=True)
    assert torch.equal(quiet, disturbed)
    torch.manual_seed(1)
    np.random.seed(1)
    random.seed(1)
    assert numbers == [torch.rand(1), np.random.rand(), random.random()]


def test_the_end_of_a_finite_horizon_is_not_bootstrapped(opened):
    opened.config = {"is_finite_horizon": True}
    env = make()
    env.reset([4])
    step = [env.step(torch.zeros(3, 1)) for _ in range(3)][-1]
    assert step.terminated[0]
    assert not step.truncated.any()
    env.close()


def test_a_second_simulator_of_a_process_is_a_worker(opened, monkeypatch):
    made = []
    monkeypatch.setattr(isaac_lab, "WorkerEnv", lambda *arguments, render: made.append((*arguments, render)))
    monkeypatch.setattr(isaac_lab.isaac, "current_id", lambda task: (task, ""))
    first = isaac_lab.maker("Isaac-Mine")(num_envs=3, device=CPU)
    isaac_lab.maker("Isaac-Mine")(num_envs=2, device=CPU, sim={"dt": 0.1})
    isaac_lab.drawing_maker("Isaac-Mine")(num_envs=1, device=CPU)
    assert made == [
        ("Isaac-Mine", EnvConfig(kwargs={"sim": {"dt": 0.1}}), 2, CPU, False),
        ("Isaac-Mine", EnvConfig(), 1, CPU, True),
    ]
    first.close()
    isaac_lab.maker("Isaac-Mine")(num_envs=2, device=CPU).close()
    assert len(made) == 2


@pytest.mark.parametrize("step_dt", [0.05, 0.02, 1 / 60])
def test_the_limit_of_an_episode_has_no_more_steps_than_asked_for(step_dt):
    steps = range(1, 1000)
    assert [math.ceil(episode_seconds(number, step_dt) / step_dt) for number in steps] == list(steps)


def test_pictures_need_version_3():
    with pytest.raises(ConfigError, match=r"Isaac-Mine cannot be rendered with Isaac Lab 2; version 3 can"):
        isaac_camera.add_camera("Isaac-Mine", SimpleNamespace())


def test_settings_of_the_task_become_overrides(opened):
    env = make(sim={"dt": 0.1}, physics="newton_mjwarp", max_episode_steps=8)
    _, device, overrides, simulator = opened.calls[0]
    assert device == "cpu"
    assert overrides == ["env.sim.dt=0.1", "physics=newton_mjwarp"]
    assert simulator.cfg.episode_length_s == pytest.approx(4.0)
    env.close()


def test_the_number_of_environments_is_no_setting_of_the_task(opened):
    with pytest.raises(ConfigError, match=r"env.kwargs scene.num_envs=64 is set by Lockstep; use num_envs"):
        make(scene={"num_envs": 64})
    assert not isaac_lab._open


def test_the_spec_is_read_once(monkeypatch, tmp_path):
    env = SimpleNamespace(close=lambda: None)
    made = []

    def worker(task, config, num_envs, device):
        made.append(task)
        env.spec = isaac_lab.EnvSpec(4, isaac_lab.action_spec(spaces.Discrete(2)), "same_step", False)
        return env

    monkeypatch.setattr(isaac_lab, "WorkerEnv", worker)
    monkeypatch.setattr(spec_cache, "version", lambda package: "3.0.0")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    specs = [isaac_lab.env_spec("Isaac-Mine", EnvConfig()) for _ in range(2)]
    assert specs == [env.spec, env.spec]
    assert made == ["Isaac-Mine"]
    isaac_lab.env_spec("Isaac-Mine", EnvConfig(kwargs={"sim": {"dt": 0.1}}))
    assert len(made) == 2
    for file in tmp_path.rglob("*.json"):
        file.write_text(json.dumps({"damaged": 1}))
    isaac_lab.env_spec("Isaac-Mine", EnvConfig())
    assert len(made) == 3
