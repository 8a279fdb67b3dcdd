"""Tasks of several agents, of which some end before others."""

import gymnasium
import numpy as np
import pettingzoo


class Leaving(pettingzoo.ParallelEnv):
    """Agent i ends in step i + 2, agent 1 by truncation; the rest of the episode is without it.

    It observes its number, the step and a random number of its environment, and is paid i + 1, and 10 for action 1.
    """

    def __init__(self, num_agents=2, odd_one=False, render_mode=None):
        self.possible_agents = [f"agent_{i}" for i in range(num_agents)]
        self.odd_one = odd_one

    def observation_space(self, agent):
        size = 4 if self.odd_one and agent == self.possible_agents[-1] else 3
        return gymnasium.spaces.Box(-np.inf, np.inf, (size,), np.float32)

    def action_space(self, agent):
        return gymnasium.spaces.Discrete(2, start=5)

    def reset(self, seed=None, options=None):
        self.generator = np.random.default_rng(seed)
        self.agents = list(self.possible_agents)
        self.steps, self.seed = 0, seed
        return self.observe(self.agents), {agent: {} for agent in self.agents}

    def step(self, actions):
        assert list(actions) == self.agents, "an agent that has ended was asked to act"
        assert all(action in (5, 6) for action in actions.values())
        self.steps += 1
        acting, number = self.agents, self.possible_agents.index
        over = {agent: self.steps == number(agent) + 2 for agent in acting}
        reward = {agent: float(number(agent) + 1 + 10 * (actions[agent] == 6)) for agent in acting}
        terminated = {agent: over[agent] and number(agent) != 1 for agent in acting}
        truncated = {agent: over[agent] and number(agent) == 1 for agent in acting}
        self.agents = [agent for agent in acting if not over[agent]]
        return self.observe(acting), reward, terminated, truncated, {agent: {} for agent in acting}

    def observe(self, agents):
        drawn = self.generator.standard_normal()
        return {agent: np.array([self.possible_agents.index(agent), self.steps, drawn], np.float32) for agent in agents}

    def render(self):
        return np.full((8, 8, 3), 20 * self.steps, np.uint8)

    def state(self):
        return {"agents": self.agents, "steps": self.steps, "generator": self.generator.bit_generator.state}

    def restore(self, state):
        self.agents, self.steps = list(state["agents"]), state["steps"]
        self.generator.bit_generator.state = state["generator"]


class Lingering(Leaving):
    """Goes on naming agents that have ended, until all have."""

    def step(self, actions):
        self.agents = list(actions)
        found = super().step(actions)
        self.agents = list(self.possible_agents) if self.agents else []
        found[0].update({agent: None for agent in self.possible_agents if agent not in found[0]})
        return found


class OneSpace(Leaving):
    """Has one space, where a method is needed."""

    observation_space = gymnasium.spaces.Box(-1, 1, (3,))


class Absent(Leaving):
    """Its last agent never takes part."""

    def reset(self, seed=None, options=None):
        observed, infos = super().reset(seed, options)
        del observed[self.agents.pop()]
        return observed, infos


class Endless(Leaving):
    """Its last agent goes on without end."""

    def step(self, actions):
        observed, reward, terminated, truncated, infos = super().step(actions)
        last = self.possible_agents[-1]
        self.agents, terminated[last] = [*[agent for agent in self.agents if agent != last], last], False
        return observed, reward, terminated, truncated, infos


class Faulty(Leaving):
    """Has the fault `fault`."""

    def __init__(self, fault, num_agents=2, render_mode=None):
        super().__init__(num_agents)
        self.fault = fault

    def reset(self, seed=None, options=None):
        observed, infos = super().reset(seed, options)
        if self.fault == "no observation":
            del observed["agent_1"]
        return observed if self.fault == "no infos" else (observed, infos)

    def step(self, actions):
        found = super().step(actions)
        if self.fault == "one number":
            found[0]["agent_1"] = np.ones(1, np.float32)
        if self.fault == "text":
            found[1]["agent_1"] = "1.5"
        return found[:4] if self.fault == "four values" else found
