"""PettingZoo's parallel environments: agents as rows, and those that end before others."""

import sys
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from lockstep.cli.main import main
from lockstep.config.env import EnvConfig
from lockstep.distributed.timers import Timers
from lockstep.envs import pettingzoo
from lockstep.envs.make import env_spec, make_vector_env
from lockstep.errors import ConfigError, RunError
from lockstep.experience.evaluate import play
from lockstep.experience.rollout import Collector
from lockstep.launch.world_checks import check_world
from lockstep.run import Run, override
from lockstep.session.env_checks.episodes import Limits
from lockstep.session.env_checks.report import Report
from lockstep.session.env_checks.task import check_env_of_task
from lockstep.session.evaluation import Evaluation, Player
from lockstep.session.task_checks import check_agents, check_task
from lockstep.session.task_defaults import task_defaults
from lockstep.world import World, stream_seed

LEAVING = f"{Path(__file__).parents[2] / 'ranks' / 'agent_envs.py'}:Leaving"
THREE = EnvConfig(kwargs={"num_agents": 3})


class First:
    """Takes the first action; keeps which episodes begin."""

    state_size = 1

    def __init__(self):
        self.states = []

    def __call__(self, observation, state):
        self.states.append(state.copy())
        return observation, state + 1

    def draw_noise(self, generator, shape):
        return np.zeros((*shape, 1))

    def sample(self, parameters, noise):
        return np.zeros(parameters.shape[:-1], np.int64)

    mode = None


def collected(config=THREE, steps=8, rows=6, task=LEAVING):
    env, actor = make_vector_env(task, config, rows), First()
    world = World(size=1, num_shards=1)
    collector = Collector(world, [env], actor, actor, num_steps=steps, seed=3, timers=Timers())
    (rollout,) = collector.collect()
    return env, actor, collector, rollout


def test_video_has_the_speed_of_the_task(monkeypatch):
    env = make_vector_env(LEAVING, THREE, 3)
    assert env.frames_per_second == 30, "it has no metadata"
    monkeypatch.setattr(env._envs[0], "metadata", {"name": "leaving", "render_fps": 10}, raising=False)
    assert env.frames_per_second == 10


def test_threshold_of_a_class_is_a_number(monkeypatch):
    cls = type(make_vector_env(LEAVING, THREE, 3)._envs[0])
    monkeypatch.setattr(cls, "reward_threshold", 7, raising=False)
    assert isinstance(env_spec(LEAVING, THREE).reward_threshold, float)
    monkeypatch.setattr(cls, "reward_threshold", "high")
    with pytest.raises(ConfigError, match="reward_threshold='high' is no number"):
        env_spec(LEAVING, THREE)


def test_reward_beyond_float32_becomes_infinite_without_a_warning_of_numpy(monkeypatch):
    env = make_vector_env(LEAVING, THREE, 3)
    step = env._envs[0].step

    def beyond(action):
        observed, rewards, *others = step(action)
        return observed, dict.fromkeys(rewards, 1e300), *others

    monkeypatch.setattr(env._envs[0], "step", beyond)
    env.reset([0, 0, 0])
    assert np.isinf(env.step(np.zeros(3, np.int64))[1]).all()


def test_agent_that_ended_waits_for_the_others_with_weight_0():
    env, actor, collector, rollout = collected()
    assert (env.spec.num_agents, env.num_envs) == (3, 6)
    weights = [[1, 1, 0, 0], [1, 1, 1, 0], [1, 1, 1, 1]]
    assert rollout.weight.T.tolist() == [row * 2 for row in weights] * 2, "rows of waiting agents are learned from"
    assert rollout.ended[:, :3].T.tolist() == [[t in ends for t in range(8)] for ends in ((1, 5), (2, 6), (3, 7))]
    assert (rollout.terminated == rollout.ended)[:, [0, 2, 3, 5]].all() and not rollout.terminated[:, [1, 4]].any()
    assert (rollout.reward == rollout.weight * np.array([1, 2, 3] * 2)).all()
    assert rollout.observation[:, 2, 1].tolist() == [0, 1, 2, 3, 0, 1, 2, 3, 0]
    assert rollout.observation[:, 0, 1].tolist() == [0, 1, 0, 0, 0, 1, 0, 0, 0]
    assert rollout.observation[:, 4, 0].tolist() == [1, 1, 1, 0, 1, 1, 1, 0, 1]
    final = {
        (t, int(b)): last[:2].tolist() for t, envs, rows in rollout.final for b, last in zip(envs, rows, strict=True)
    }
    assert final == {(t, b): [1, 3] for t in (2, 6) for b in (1, 4)}, "not the true final observation of a truncation"
    assert collector.episodes[0].lengths.tolist() == [2, 2, 3, 3, 4, 4] * 2
    assert collector.episodes[0].returns.tolist() == [2, 2, 6, 6, 12, 12] * 2
    states = np.stack(actor.states)[:, 0, :3, 0].T.tolist()
    assert states[2] == [0, 1, 2, 3] * 2, "the state of an earlier episode"
    assert [states[0][t] for t in (0, 1, 4, 5)] == [0, 1] * 2, "the state of an earlier episode"


def test_agent_that_ended_does_not_act_again_though_its_environment_names_it():
    *_, left = collected()
    *_, lingering = collected(task=LEAVING.replace("Leaving", "Lingering"))
    assert lingering.weight.tolist() == left.weight.tolist() and lingering.ended.tolist() == left.ended.tolist()


def test_environments_are_seeded_by_their_global_number_and_episode():
    env, *_ = collected()
    assert env._seeds.tolist() == [stream_seed(3, "env", 0), stream_seed(3, "env", 3)], "environments have other seeds"
    drawn = [collected()[-1].observation[:, [2, 5], 2] for _ in range(2)]
    assert (drawn[0] == drawn[1]).all()
    assert len(np.unique(drawn[0])) == 9 * 2, "environments or episodes draw the same numbers"


def test_limit_truncates_all_agents():
    *_, collector, rollout = collected(EnvConfig(kwargs={"num_agents": 3}, max_episode_steps=3), steps=6)
    assert collector.episodes[0].lengths.tolist() == [2, 2, 3, 3, 3, 3] * 2
    assert rollout.final[0][1].tolist() == [1, 2, 4, 5]


def test_the_check_tells_of_an_agent_that_never_takes_part():
    said = {}
    for name in ("Absent", "Leaving"):
        report = Report()
        check_env_of_task(LEAVING.replace("Leaving", name), THREE, report, Limits(steps=100, seconds=30.0))
        said[name] = [text for text in report.warnings if "took no part" in text]
    assert said["Leaving"] == []
    assert said["Absent"][0].startswith("agent 2 took no part in 100 random steps: the first evaluation would wait")
    assert len(said["Absent"]) == 1


def test_a_space_that_is_no_method_is_refused_by_name():
    with pytest.raises(
        ConfigError, match=r"observation_space is no method; write def observation_space\(self, agent\)"
    ):
        env_spec(LEAVING.replace("Leaving", "OneSpace"), EnvConfig())


def test_evaluation_counts_the_episodes_of_each_agent():
    env = make_vector_env(LEAVING, THREE, 1)
    played = play(env, lambda seen: np.ones(len(seen), np.int64), 5, [7] * 3, lambda: None)
    assert (played.lengths, played.returns) == ([2, 2, 3, 3, 4, 4], [22, 22, 36, 36, 52, 52]), "an agent counts less"


def test_evaluation_ends_though_an_agent_never_takes_part_or_waits_for_ever(monkeypatch):
    monkeypatch.setattr("lockstep.experience.evaluate.MAX_STEPS", 20)
    absent, endless = (make_vector_env(LEAVING.replace("Leaving", name), THREE, 1) for name in ("Absent", "Endless"))

    def first(observation):
        return np.zeros(len(observation), np.int64)

    with pytest.raises(RunError, match="agent 2 of environment 0 took no part in 20 steps"):
        play(absent, first, 3, [7] * 3, stopped_after(1000))
    played = play(endless, first, 6, [7] * 3, stopped_after(1000))
    assert (played.lengths, played.num_cut) == ([2, 2, 3, 3, 20, 20], 2)


def stopped_after(steps):
    """A heartbeat that fails where an evaluation goes on and on."""
    left = iter(range(steps))
    return lambda: next(left)


def test_video_lasts_until_the_last_agent_has_ended(tmp_path):
    spec, actor = env_spec(LEAVING, THREE), First()
    actor.mode = lambda parameters: np.zeros(len(parameters), np.int64)
    evaluation = Evaluation(Run(task=LEAVING, env=THREE), None, spec, Player(actor, actor, None))
    evaluation.record(tmp_path / "one.gif", 0, heartbeat=lambda: None)
    with Image.open(tmp_path / "one.gif") as video:
        assert video.n_frames == 4, "the video ends with the first agent"


LATE = """
import numpy as np
import pettingzoo
from gymnasium import spaces

class Late(pettingzoo.ParallelEnv):
    \"\"\"The first agent ends after 4 steps; the second begins after 2, and ends after 6.\"\"\"

    metadata = {"render_modes": ["rgb_array"]}
    possible_agents = ["a", "b"]

    def __init__(self, render_mode=None):
        pass

    def observation_space(self, agent):
        return spaces.Box(-1, 1, (2,), np.float32)

    def action_space(self, agent):
        return spaces.Discrete(2)

    def reset(self, seed=None, options=None):
        self.steps, self.agents = 0, ["a"]
        return {"a": np.zeros(2, np.float32)}, {"a": {}}

    def step(self, actions):
        self.steps += 1
        seen = dict.fromkeys(["a", "b"], np.zeros(2, np.float32))
        over = {"a": self.steps == 4, "b": self.steps == 6}
        self.agents = [agent for agent, steps in (("a", range(4)), ("b", range(2, 6))) if self.steps in steps]
        no = dict.fromkeys(seen, False)
        return seen, dict.fromkeys(seen, 1.0), over, no, {agent: {} for agent in seen}

    def render(self):
        return np.full((8, 8, 3), 30 * self.steps, np.uint8)


class InTurn(pettingzoo.AECEnv):
    possible_agents = ["a", "b"]
"""


def test_video_shows_an_agent_that_begins_later_from_its_beginning(here):
    Path("late.py").write_text(LATE)
    task, actor = "late.py:Late", First()
    actor.mode = lambda parameters: np.zeros(len(parameters), np.int64)
    evaluation = Evaluation(Run(task=task), None, env_spec(task, EnvConfig()), Player(actor, actor, None))
    evaluation.record(here / "one.gif", 0, heartbeat=lambda: None)
    with Image.open("one.gif") as video:
        assert video.n_frames == 6, "the video ends with the agent that began first"
    assert [state[1, 0] for state in actor.states] == [0, 0, 0, 1, 2, 3]


def test_agents_that_act_in_turn_are_refused_by_what_they_are(here):
    Path("late.py").write_text(LATE)
    with pytest.raises(ConfigError, match=r"InTurn is no pettingzoo.ParallelEnv, in which all agents act at once"):
        env_spec("late.py:InTurn", EnvConfig())


def test_agents_that_ranks_would_divide_are_refused_before_the_ranks_start():
    run = Run(task=LEAVING, env=EnvConfig(kwargs={"num_agents": 2}), num_envs=6)
    check_world(run, World(size=3))
    with pytest.raises(ConfigError, match=r"each of 2 shards needs whole environments of 2 agents; use 4 or 8"):
        check_world(run, World(size=2))


def test_stacked_observations_begin_anew_after_waiting():
    env = make_vector_env(LEAVING, EnvConfig(kwargs={"num_agents": 2}, frame_stack=2), 2)
    env.reset([0, 0])
    for _ in range(3):
        observation, *_ = env.step(np.zeros(2, np.int64))
    assert observation[:, [0, 1, 3, 4]].tolist() == [[0, 0, 0, 0], [1, 0, 1, 0]]


def test_state_continues_in_another_environment():
    first, second = (make_vector_env(LEAVING, THREE, 6) for _ in range(2))
    first.reset(list(range(6)))
    second.reset([9] * 6)
    action = np.zeros(6, np.int64)
    for _ in range(3):
        first.step(action)
    second.restore(first.state())
    for _ in range(6):
        for mine, other in zip(first.step(action), second.step(action), strict=True):
            assert (mine == other).all()


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"kwargs": {"num_agents": 3, "odd_one": True}}, r"observation_space of agent_0 is .* that of agent_2"),
        ({"kwargs": {"agents": 3}}, "unknown"),
        ({"policy_keys": ("a",)}, "env.policy_keys"),
        ({"wrappers": ("a:B",)}, "env.wrappers"),
        ({"vectorization": "async"}, "env.vectorization=async"),
    ],
)
def test_settings_that_do_not_fit_are_refused(config, message):
    with pytest.raises(ConfigError, match=message):
        env_spec(LEAVING, EnvConfig(**config))


@pytest.mark.parametrize(
    ("fault", "message"),
    [
        ("no infos", "environment 0 of its shard: reset returned a dict; return 2 dicts by agent: observations, infos"),
        ("no observation", "environment 0 of its shard: there is no observation of agent agent_1"),
        (
            "four values",
            "environment 0 of its shard: step returned 4 values; return 5 dicts by agent: observations, rewards, term",
        ),
        (
            "text",
            r"environment 0 of its shard \(agent agent_1\) gave the reward '1.5' in step, which is text",
        ),
        (
            "one number",
            r"environment 0 of its shard: the observation of agent agent_1 has the shape \[1\] when flat, .* \[3\]",
        ),
    ],
)
def test_faults_of_an_environment_are_named(fault, message):
    env = make_vector_env(LEAVING.replace("Leaving", "Faulty"), EnvConfig(kwargs={"fault": fault}), 2)
    with pytest.raises(RunError, match=message):
        env.reset([0, 0])
        env.step(np.zeros(2, np.int64))


def test_shards_hold_whole_environments():
    spec = env_spec(LEAVING, THREE)
    with pytest.raises(ConfigError, match=r"num_envs=16 counts agents.*whole environments of 3 agents; use 12 or 18"):
        check_agents(16, 2, spec)
    check_agents(18, 2, spec)
    with pytest.raises(ConfigError, match="algo=dqn does not support; use ppo"):
        check_task(override(Run(task=LEAVING, num_envs=18), {"algo": "dqn"}), spec)
    assert task_defaults(LEAVING, {"env.kwargs.num_agents": 3}).num_envs == 3 * 16


def test_tasks_of_the_package_are_listed_and_misspelled_ones_refused(monkeypatch, capsys):
    found = pettingzoo.task_ids("pettingzoo")
    if find_spec("pygame") is not None and find_spec("pymunk") is not None:
        assert "pettingzoo/butterfly/pistonball_v6" in found
    with pytest.raises(ConfigError, match=r"pettingzoo/butterfly/pistonbal_v6 is unknown"):
        env_spec("pettingzoo/butterfly/pistonbal_v6", EnvConfig())
    monkeypatch.setattr(pettingzoo, "find_spec", lambda name: None)
    assert main(["train", "mpe2/simple_spread_v3"]) == 2
    assert "task=mpe2/simple_spread_v3 needs the Python package mpe2: pip install mpe2" in capsys.readouterr().err
    assert "mpe2" not in sys.modules
