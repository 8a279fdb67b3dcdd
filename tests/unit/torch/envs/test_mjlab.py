"""The adapter of mjlab, with a simulation that returns terminal observations and waits for a reset."""

import sys
from dataclasses import dataclass, field
from importlib.machinery import ModuleSpec
from types import ModuleType, SimpleNamespace

import numpy as np
import pytest
import torch

from lockstep.config.env import EnvConfig
from lockstep.envs.make import make_vector_env
from lockstep.errors import ConfigError
from lockstep.torch.envs import mjlab
from lockstep.torch.envs.mjlab import MjlabEnv

CPU = torch.device("cpu")


@dataclass
class Scene:
    num_envs: int = 1


@dataclass
class Config:
    scene: Scene = field(default_factory=Scene)
    seed: int = 7
    auto_reset: bool = True
    is_finite_horizon: bool = False
    episode_length_s: float = 2.0
    decimation: int = 2
    commands: dict = field(default_factory=lambda: {"motion": Scene()})


class Simulation:
    """Positions from torch's global generator; environment 0 ends every third step, by time. Buffers are live.

    Masses are drawn in the mode "startup", first from the seed of the configuration.
    """

    step_dt = 0.5
    max_episode_length = 4

    def __init__(self, cfg, device, render_mode=None):
        assert not cfg.auto_reset
        self.render_mode = render_mode
        self.cfg = cfg
        box = SimpleNamespace(shape=(2,), low=-float("inf"), high=float("inf"))
        self.single_observation_space = SimpleNamespace(spaces={"actor": box, "critic": box, "camera": box})
        self.single_action_space = SimpleNamespace(shape=(2,), low=-1.0, high=(1.0, 2.0))
        self._position = torch.zeros(cfg.scene.num_envs, 2)
        self._flags = torch.zeros(2, cfg.scene.num_envs, dtype=torch.bool)
        self._pending = False
        self._steps = 0
        self.event_manager = SimpleNamespace(available_modes=["reset", "startup"], apply=self._apply)
        self.seed(cfg.seed)
        self._apply("startup")

    def _apply(self, mode):
        assert mode == "startup"
        self.mass = torch.rand(len(self._position))

    @staticmethod
    def seed(seed):
        torch.manual_seed(seed)

    def reset(self, *, env_ids=None):
        self._position[slice(None) if env_ids is None else env_ids] = torch.rand(2) - 9
        self._flags.zero_()
        self._pending = False
        return self._groups(), {}

    def step(self, action):
        assert not self._pending
        self._steps += 1
        self._position += action + torch.rand(self._position.shape)
        self._flags[1, 0] = self._steps % 3 == 0
        self._pending = bool(self._flags.any())
        return self._groups(), self._position[:, 0], self._flags[0], self._flags[1], {}

    def _groups(self):
        return {"actor": self._position, "critic": -self._position, "camera": 0.5 * self._position}

    def render(self):
        assert self.render_mode == "rgb_array"
        return np.zeros((4, 6, 3), np.uint8)

    def close(self):
        pass


@pytest.fixture(autouse=True)
def package(monkeypatch):
    """A package `mjlab` with one task."""
    registry, envs = ModuleType("mjlab.tasks.registry"), ModuleType("mjlab.envs")
    registry.list_tasks = lambda: ["Mjlab-Mine"]
    registry.load_env_cfg = lambda task: Config()
    envs.ManagerBasedRlEnv = Simulation
    for name, module in (
        ("mjlab", ModuleType("mjlab")),
        ("mjlab.tasks", ModuleType("mjlab.tasks")),
        ("mjlab.tasks.registry", registry),
        ("mjlab.envs", envs),
    ):
        monkeypatch.setitem(sys.modules, name, module)


def test_the_spec_and_both_groups():
    env = MjlabEnv("Mjlab-Mine", num_envs=3, device=CPU)
    assert (env.spec.observation_size, env.spec.critic_size, env.spec.max_episode_steps) == (2, 2, 4)
    assert (env.spec.action.low, env.spec.action.high) == ((-1, -1), (1, 2))
    observation = env.reset([1])
    assert torch.equal(observation.critic, -observation.policy)


def test_groups_that_no_network_receives_are_named():
    """As the camera of a task whose own agent has a network for both."""
    assert MjlabEnv("Mjlab-Mine", num_envs=3, device=CPU).spec.unused_groups == ("camera",)
    env = MjlabEnv("Mjlab-Mine", num_envs=3, device=CPU, policy_keys=("actor", "camera"))
    assert env.spec.unused_groups == () and env.spec.observation_size == 4


def test_a_refused_setting_closes_the_simulation(monkeypatch):
    closed = []
    monkeypatch.setattr(Simulation, "close", lambda self: closed.append(self))
    with pytest.raises(ConfigError, match="nowhere"):
        MjlabEnv("Mjlab-Mine", num_envs=3, device=CPU, policy_keys=("nowhere",))
    assert len(closed) == 1


def test_the_last_observation_of_an_episode_is_kept_and_the_next_episode_begins():
    env = MjlabEnv("Mjlab-Mine", num_envs=3, device=CPU)
    env.reset([1])
    steps = [env.step(torch.ones(3, 2)) for _ in range(4)]
    assert [step.final is not None for step in steps] == [False, False, True, False]
    third = steps[2]
    assert third.truncated.tolist() == [True, False, False]
    assert (third.final.policy[0] > third.observation.policy[0] + 3).all()
    assert torch.equal(third.final.critic, -third.final.policy)


@pytest.mark.slow
def test_pictures_of_the_first_environment(monkeypatch):
    monkeypatch.setattr(mjlab, "find_spec", lambda name: ModuleSpec(name, None))
    env = make_vector_env("Mjlab-Mine", EnvConfig(), 1, render=True)
    env.reset([1])
    (picture,) = env.render()
    assert (picture.shape, env.frames_per_second) == ((4, 6, 3), 2.0)


@pytest.mark.slow
@pytest.mark.parametrize("task", ["envpool/Ant-v5", "lockstep/Cartpole-v0", "jax/CartPole-v1"])
def test_tasks_that_cannot_be_drawn_are_refused(task):
    with pytest.raises(ConfigError, match=f"{task} cannot be rendered; only tasks of Gymnasium, PettingZoo, mjlab and"):
        make_vector_env(task, EnvConfig(), 1, render=True)


def test_the_same_seed_gives_the_same_numbers_whatever_others_draw():
    found = []
    for disturb in (False, True):
        env = MjlabEnv("Mjlab-Mine", num_envs=3, device=CPU)
        env.reset([1])
        for _ in range(5):
            if disturb:
                torch.rand(2)
            step = env.step(torch.zeros(3, 2))
        found.append(step.observation.policy.clone())
    assert torch.equal(*found)


def test_shards_and_seeds_differ_in_what_is_drawn_once_at_the_start():
    env = MjlabEnv("Mjlab-Mine", num_envs=3, device=CPU)
    masses = []
    for seed in (1, 2, 1):
        env.reset([seed])
        masses.append(env._env.mass)
    assert not torch.equal(masses[0], masses[1])
    assert torch.equal(masses[0], masses[2])


def test_settings_of_the_task_are_fields_of_its_configuration():
    env = MjlabEnv("Mjlab-Mine", num_envs=3, device=CPU, decimation=5, max_episode_steps=8)
    assert (env._env.cfg.decimation, env._env.cfg.episode_length_s) == (5, pytest.approx(4.0))
    env = MjlabEnv("Mjlab-Mine", num_envs=3, device=CPU, commands={"motion": {"num_envs": 9}})
    assert env._env.cfg.commands["motion"].num_envs == 9
    with pytest.raises(ConfigError, match=r"commands.motio.num_envs=4 is no field"):
        MjlabEnv("Mjlab-Mine", num_envs=3, device=CPU, commands={"motio": {"num_envs": 4}})
    with pytest.raises(ConfigError, match=r"scene.num_env=4 is no field.*did you mean num_envs"):
        MjlabEnv("Mjlab-Mine", num_envs=3, device=CPU, scene={"num_env": 4})


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ({"scene": {"num_envs": 9}}, r"env.kwargs scene.num_envs=9 is set by Lockstep; use num_envs"),
        ({"seed": 3}, r"env.kwargs seed=3 is set by Lockstep; use seed"),
        ({"auto_reset": True}, r"env.kwargs auto_reset=True is set by Lockstep; leave it out"),
    ],
)
def test_settings_that_follow_from_the_run_are_refused(setting, message):
    with pytest.raises(ConfigError, match=message):
        MjlabEnv("Mjlab-Mine", num_envs=3, device=CPU, **setting)


class Watched(Simulation):
    """With a camera, whose pictures [2, 3, 3] have numbers from 0 to 1."""

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        box = SimpleNamespace(shape=(2, 3, 3), low=-float("inf"), high=float("inf"))
        self.single_observation_space.spaces["camera"] = box

    def _groups(self):
        return super()._groups() | {"camera": torch.full((len(self._position), 2, 3, 3), 0.2)}


def test_a_camera_is_an_image_of_bytes_to_the_network(monkeypatch):
    monkeypatch.setattr(sys.modules["mjlab.envs"], "ManagerBasedRlEnv", Watched)
    env = MjlabEnv("Mjlab-Mine", num_envs=3, device=CPU, policy_keys=("camera",), image_range=(0, 1))
    assert (env.spec.image, env.spec.critic_size) == ((2, 3, 3), 2)
    assert torch.equal(env.reset([1]).policy, torch.full((3, 2, 3, 3), 51, dtype=torch.uint8))
    with pytest.raises(ConfigError, match=r"images of floats \[2, 3, 3\].*--set env.kwargs.image_range"):
        MjlabEnv("Mjlab-Mine", num_envs=3, device=CPU, policy_keys=("camera",))


def test_a_task_that_follows_a_motion_asks_for_its_file(monkeypatch):
    config = Config(commands={"motion": SimpleNamespace(motion_file="")})
    monkeypatch.setattr(sys.modules["mjlab.tasks.registry"], "load_env_cfg", lambda task: config)
    with pytest.raises(ConfigError, match=r"name its file: --set env.kwargs.commands.motion.motion_file=FILE.npz"):
        MjlabEnv("Mjlab-Mine", num_envs=3, device=CPU)
    env = MjlabEnv("Mjlab-Mine", num_envs=3, device=CPU, commands={"motion": {"motion_file": "walk.npz"}})
    assert env._env.cfg.commands["motion"].motion_file == "walk.npz"


def test_unknown_names_are_refused_with_those_that_exist():
    with pytest.raises(ConfigError, match=r"Mjlab-Mne does not exist.*did you mean Mjlab-Mine"):
        MjlabEnv("Mjlab-Mne", num_envs=3, device=CPU)
    with pytest.raises(ConfigError, match=r"env.critic_keys=\['state'\]: there is no group 'state'.*actor, critic"):
        MjlabEnv("Mjlab-Mine", num_envs=3, device=CPU, critic_keys=("state",))


def test_without_the_package_the_error_says_how_to_install_it(monkeypatch):
    monkeypatch.setattr(mjlab, "find_spec", lambda name: None)
    with pytest.raises(ConfigError, match=r"lockstep-rl\[mjlab\]"):
        mjlab.maker("Mjlab-Mine")
