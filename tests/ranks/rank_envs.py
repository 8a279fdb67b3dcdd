"""Environments that know their rank: what a test needs to make one rank's data unlike the other's."""

import contextlib
import dataclasses
import os
import signal
import time

import numpy as np
from gymnasium.envs.classic_control import CartPoleEnv

from lockstep.envs.spec import ActionSpec, EnvSpec
from lockstep.envs.toy_tasks import Corridor
from lockstep.session.env_checks.vector_env import NUM_ENVS


class Ticking:
    """Episodes of a length and a reward per step that depend on the rank; observations are noise.

    `signal_at`: the last rank sends itself SIGUSR1 in this step, but not where the environment itself is checked.
    `slow_s`: every step of it takes this long.
    """

    def __init__(self, num_envs, lengths=(4, 4), rewards=(1.0, 1.0), signal_at=None, slow_s=0.0):
        self.rank, self.ranks = int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))
        self.spec = EnvSpec(3, ActionSpec("discrete", (2,)), "same_step", True)
        self.num_envs = num_envs
        self.length, self.reward = lengths[self.rank], rewards[self.rank]
        self.signal_at, self.slow_s, self.steps = signal_at, slow_s, 0

    def reset(self, seeds):
        self.generators = [np.random.default_rng(seed) for seed in seeds]
        self.step_in_episode = np.zeros(self.num_envs, int)
        return self.observe()

    def observe(self):
        return np.stack([g.standard_normal(3, dtype=np.float32) for g in self.generators])

    def step(self, action):
        self.steps += 1
        if self.rank == self.ranks - 1:
            time.sleep(self.slow_s)
            if self.steps == self.signal_at and self.num_envs != NUM_ENVS:
                os.kill(os.getpid(), signal.SIGUSR1)
        self.step_in_episode += 1
        ended = self.step_in_episode >= self.length
        self.step_in_episode[ended] = 0
        observation = self.observe()
        reward = np.full(self.num_envs, self.reward, np.float32)
        return observation, reward, ended, np.zeros(self.num_envs, bool), observation

    def close(self):
        pass


class Faulty(Ticking):
    """Does what `fault` says in step `at` of the rank `on`; not yet where the environment itself is checked."""

    def __init__(self, num_envs, fault="", at=20, on=1, **kwargs):
        super().__init__(num_envs, **kwargs)
        self.fault, self.at, self.on = fault, at, on

    def step(self, action):
        observation, reward, ended, truncated, final = super().step(action)
        if self.rank == self.on and self.steps == self.at and self.num_envs != NUM_ENVS:
            match self.fault:
                case "raise":
                    raise ValueError("the motor is hot")
                case "sleep":
                    time.sleep(600)
                case "kill":
                    os.kill(os.getpid(), signal.SIGKILL)
                case "nan":
                    reward[2] = np.nan
                case "stop all":  # as if a person pressed Ctrl-C: once it trains, whatever the machine's speed
                    os.kill(os.getppid(), signal.SIGINT)
                case "":
                    pass
                case _:
                    os._exit(int(self.fault))
        return observation, reward, ended, truncated, final


class SlowToStart(Ticking):
    """Takes `start_s` to make environments for an evaluation: two of a shard, where training has more."""

    def __init__(self, num_envs, start_s=0.0, **kwargs):
        super().__init__(num_envs, **kwargs)
        if num_envs == 2:
            time.sleep(start_s)


class SlowToPlay(Ticking):
    """Takes `step_s` for each step of an evaluation on rank 1: two environments of a shard, where training has more."""

    def __init__(self, num_envs, step_s=0.0, **kwargs):
        super().__init__(num_envs, **kwargs)
        self.step_s = step_s if num_envs == 2 and self.rank == 1 else 0.0

    def step(self, action):
        time.sleep(self.step_s)
        return super().step(action)


class Halting(Ticking):
    """`Ticking` whose environments lose a step at each episode's end, in which they only reset themselves.

    Where episodes are short, few steps are transitions: replays of ranks fill at different speeds.
    """

    def __init__(self, num_envs, **kwargs):
        super().__init__(num_envs, **kwargs)
        self.spec = dataclasses.replace(self.spec, autoreset="next_step")
        self.ended = np.zeros(num_envs, bool)

    def step(self, action):
        resets = self.ended
        observation, reward, ended, truncated, _ = super().step(action)
        self.step_in_episode[resets] = 0
        self.ended = ended & ~resets
        return observation, np.where(resets, np.float32(0), reward), self.ended.copy(), truncated, None


class Pushing(Halting):
    """`Halting` with one continuous action instead of a choice."""

    def __init__(self, num_envs, **kwargs):
        super().__init__(num_envs, **kwargs)
        self.spec = dataclasses.replace(self.spec, action=ActionSpec("continuous", (1,), (-1.0,), (1.0,)))


class Dying(CartPoleEnv):
    """CartPole of Gymnasium; on rank 1 one of its processes is killed in its step `at`, whichever comes first."""

    def __init__(self, once, at=30):
        super().__init__()
        self.once, self.at, self.steps = once, at, 0

    def step(self, action):
        self.steps += 1
        if os.environ.get("RANK") == "1" and self.steps == self.at:
            with contextlib.suppress(FileExistsError):
                os.close(os.open(self.once, os.O_CREAT | os.O_EXCL))
                os.kill(os.getpid(), signal.SIGKILL)
        return super().step(action)


class Ringing(Corridor):
    """Sends its process SIGTERM in the third step of an evaluation, once: `mark` is a file that is there afterwards."""

    def __init__(self, num_envs, mark=""):
        super().__init__(num_envs)
        self.mark, self.count = mark, 0 if num_envs == 2 else -1_000_000  # the test trains with 4 to a shard

    def step(self, action):
        self.count += 1
        if self.count == 3 and self.mark:
            with contextlib.suppress(FileExistsError):
                os.close(os.open(self.mark, os.O_CREAT | os.O_EXCL))
                os.kill(os.getpid(), signal.SIGTERM)
        return super().step(action)


def mirrored_groups(observation, action, critic):
    """For `symmetry` of `grouped_envs:Hidden`, in torch: its critic observes speed, position and step."""
    import torch

    other = torch.cat([-critic[:, :4], critic[:, 4:]], 1)
    return torch.cat([observation, -observation]), torch.cat([action, 1 - action]), torch.cat([critic, other])


def mirrored(observation, action):
    """For `symmetry`, in torch."""
    import torch

    return torch.cat([observation, -observation]), torch.cat([action, -action])
