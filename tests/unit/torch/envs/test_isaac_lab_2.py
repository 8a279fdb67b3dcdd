"""The adapter of Isaac Lab 2, with a stand-in that enforces its order: the app starts before anything is imported.

Isaac Sim itself was never run by these tests.
"""

import sys
import textwrap

import gymnasium
import pytest
import torch

from lockstep.envs import isaac
from lockstep.errors import ConfigError
from lockstep.torch.envs import isaac_launch, published_agents
from lockstep.torch.envs.isaac_lab import IsaacLabEnv

TASK = "Isaac-StandIn-v0"
CPU = torch.device("cpu")
APP = """
    import sys

    EVENTS = []

    class AppLauncher:
        @staticmethod
        def add_app_launcher_args(parser):
            for name in ("--headless", "--enable_cameras"):
                parser.add_argument(name, action="store_true")
            parser.add_argument("--device")

        def __init__(self, args):
            assert args.headless and args.device == "cpu"
            assert len(sys.argv) == 1, "Isaac Sim reads the command line"
            assert not any(name.startswith("isaaclab_tasks") for name in sys.modules), "imported before the app started"
            assert "app" not in EVENTS, "a process has one app"
            EVENTS.append("app")
            self.app = self

        def close(self):
            raise SystemExit(0)  # Isaac Sim ends the process
"""
TASKS = """
    import gymnasium
    from isaaclab.app import EVENTS

    if "app" not in EVENTS:
        raise ModuleNotFoundError("No module named 'omni'")
    EVENTS.append("tasks")
    id = "Isaac-StandIn-v0"
    if id not in gymnasium.registry:
        gymnasium.register(id=id, entry_point="isaaclab_tasks.env:Env", disable_env_checker=True,
                           kwargs={"env_cfg_entry_point": None, "rsl_rl_cfg_entry_point": None})
"""
UTILS = """
    from types import SimpleNamespace

    def load_cfg_from_registry(task, key):
        if key == "rsl_rl_cfg_entry_point":
            return {"seed": 3}
        sim = SimpleNamespace(device="cuda:0")
        return SimpleNamespace(scene=SimpleNamespace(num_envs=4096), sim=sim, decimation=2, seed=None)
"""
ENV = """
    import gymnasium
    import torch
    from gymnasium import spaces
    from isaaclab.app import EVENTS

    class Env(gymnasium.Env):
        step_dt = 0.5
        max_episode_length = 3
        single_action_space = action_space = spaces.Box(-1, 1, (1,))
        single_observation_space = observation_space = spaces.Dict({"policy": spaces.Box(-9, 9, (1,))})

        def __init__(self, cfg, **_):
            self.cfg, self.extras = cfg, {}
            self.num_envs = cfg.scene.num_envs
            self.count = torch.zeros(self.num_envs)
            self.buffer = torch.zeros(self.num_envs, dtype=torch.bool)
            EVENTS.append("env")

        def reset(self, *, seed, options=None):
            self._reset_idx(torch.arange(self.num_envs))
            return self._get_observations(), self.extras

        def step(self, action):
            self.count += torch.arange(1, self.num_envs + 1)
            self.buffer.copy_(self.count >= 3)
            ended = self.buffer.nonzero().squeeze(-1)
            if len(ended):
                self._reset_idx(ended)
            return self._get_observations(), self.count, torch.zeros_like(self.buffer), self.buffer, self.extras

        def _reset_idx(self, env_ids):
            self.count[env_ids] = 0.0

        def _get_observations(self):
            return {"policy": self.count[:, None]}  # a live buffer

        def close(self):
            EVENTS.append("close")
"""


@pytest.fixture
def events(tmp_path, monkeypatch):
    """Isaac Lab 2.3.2 as installed in a folder of its own; what happened, in order."""
    files = {
        "isaaclab/__init__.py": "", "isaaclab/app.py": APP, "isaacsim/__init__.py": "",
        "isaaclab_tasks/__init__.py": TASKS, "isaaclab_tasks/utils.py": UTILS, "isaaclab_tasks/env.py": ENV,
        "isaaclab-2.3.2.dist-info/METADATA": "Metadata-Version: 2.1\nName: isaaclab\nVersion: 2.3.2\n",
    }  # fmt: skip
    for name, text in files.items():
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(textwrap.dedent(text), encoding="utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(sys, "argv", ["train", "--ranks", "2"])
    monkeypatch.setattr(isaac_launch, "_app", None)
    isaac.task_ids.cache_clear()
    from isaaclab.app import EVENTS  # pyright: ignore

    yield EVENTS
    isaac.task_ids.cache_clear()
    gymnasium.registry.pop(TASK, None)
    for name in [name for name in sys.modules if name.split(".")[0] in ("isaaclab", "isaaclab_tasks", "isaacsim")]:
        del sys.modules[name]


def test_the_app_starts_first_and_the_environments_close_without_ending_the_process(events):
    assert isaac.current_id(TASK) == (TASK, "")
    env = IsaacLabEnv(TASK, num_envs=2, device=CPU, decimation=8)
    assert env._env.cfg.decimation == 8
    assert env._env.cfg.sim.device == "cpu"
    env.close()
    assert events == ["app", "tasks", "env", "close"]
    again = IsaacLabEnv(TASK, num_envs=2, device=CPU)
    again.close()
    assert events.count("app") == 1
    assert sys.argv == ["train", "--ranks", "2"]


def test_final_observations_are_those_before_the_reset(events):
    env = IsaacLabEnv(TASK, num_envs=2, device=CPU)
    env.reset([1])
    assert env.step(torch.zeros(2, 1)).final is None
    second = env.step(torch.zeros(2, 1))
    assert (second.final.policy[1], second.observation.policy[1]) == (4.0, 0.0)
    assert env.step(torch.zeros(2, 1)).final.policy[0] == 3.0
    env.close()


def test_overrides_of_unknown_names_and_presets_are_refused(events):
    with pytest.raises(ConfigError, match=r"has no scene\.speed"):
        IsaacLabEnv(TASK, num_envs=2, device=CPU, scene={"speed": 3})
    with pytest.raises(ConfigError, match="presets=newton needs Isaac Lab 3"):
        IsaacLabEnv(TASK, num_envs=2, device=CPU, presets="newton")


def test_isaac_lab_2_without_isaac_sim_is_refused_with_what_to_install(events, tmp_path):
    (tmp_path / "isaacsim" / "__init__.py").unlink()
    (tmp_path / "isaacsim").rmdir()
    with pytest.raises(ConfigError, match=r"needs Isaac Sim: pip install 'isaaclab\[isaacsim\]'.*isaaclab==3.0.0"):
        IsaacLabEnv(TASK, num_envs=2, device=CPU)


def test_agent_configurations_are_read_after_the_app_started(events, monkeypatch):
    monkeypatch.setattr(published_agents, "start_app", lambda task, device: isaac_launch.start_app(task, "cpu"))
    assert published_agents._read(TASK) == {"num_envs": 4096, "configs": {"rsl_rl": {"seed": 3}}}
    assert events == ["app", "tasks"]


def test_an_entry_point_that_the_task_does_not_publish_is_refused_with_those_that_it_does(events):
    message = "publishes no skrl_cfg_entry_point, but rsl_rl_cfg_entry_point; choose one with --agent"
    with pytest.raises(ConfigError, match=message), isaac_launch.open_task(TASK, "cpu", "skrl_cfg_entry_point"):
        pass


def test_a_second_simulator_in_a_process_is_refused(events):
    with (
        isaac_launch.open_task(TASK, "cpu"),
        pytest.raises(ConfigError, match="a process has one simulator"),
        isaac_launch.open_task(TASK, "cpu"),
    ):
        pass
    with isaac_launch.open_task(TASK, "cpu"):
        pass
