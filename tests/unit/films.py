"""An environment whose every observation is another one, and that remembers all it showed: a replay must tell the same.

A frame holds its environment and its number in its bytes, so that a sampled transition tells which one it is.
"""

from dataclasses import dataclass, field

import numpy as np

from lockstep.envs.spec import ActionSpec, EnvSpec

SHAPE = (2, 4)


@dataclass
class Episode:
    """What one environment showed from a reset to an end; `end` is '' while it runs."""

    observation: list = field(default_factory=list)
    action: list = field(default_factory=list)
    reward: list = field(default_factory=list)
    end: str = ""


def film_spec(autoreset, frames=4, image=True, action=None):
    """Of a film; `frames` 0 gives flat vectors."""
    action = action or ActionSpec("discrete", (3,))
    if not image:
        return EnvSpec(3, action, autoreset, separately_seedable=True)
    return EnvSpec(frames * 8, action, autoreset, separately_seedable=True, image=(frames, *SHAPE), frames=frames)


class Film:
    """Episodes of random lengths, ended by both kinds of end, also at once; follows `VectorEnv`."""

    def __init__(self, spec, num_envs=3, seed=0, p_end=0.15):
        self.spec, self.num_envs, self.p_end = spec, num_envs, p_end
        self.random = np.random.default_rng(seed)
        self.shown = 0
        self.current = [Episode() for _ in range(num_envs)]
        self.place = {}
        self.over = np.zeros(num_envs, bool)

    def frame(self, b):
        self.shown += 1
        number = np.array([self.shown], ">u4").view(np.uint8)
        return np.concatenate([[b + 1], number, self.random.integers(256, size=3)]).astype(np.uint8).reshape(SHAPE)

    def show(self, b, episode):
        """The next observation of an episode: the newest frame behind those before it, zeros before the first."""
        if self.spec.image is None:
            self.shown += 1
            observation = np.array([b, self.shown, self.random.normal()], np.float32)
        else:
            older = episode.observation[-1][1:] if episode.observation else np.zeros((self.spec.frames - 1, *SHAPE))
            observation = np.concatenate([older, self.frame(b)[None]]).astype(np.uint8)
        self.place[self.shown] = (episode, len(episode.observation))
        episode.observation.append(observation)
        return observation

    def begin(self, b):
        self.current[b] = Episode()
        return self.show(b, self.current[b])

    def reset(self, seeds):
        self.over[:] = False
        return np.stack([self.begin(b) for b in range(self.num_envs)])

    def step(self, action):
        rows = []
        for b in range(self.num_envs):
            episode = self.current[b]
            if self.over[b]:
                rows.append((self.begin(b), 0.0, False, False, np.zeros(self.spec.observation_shape)))
                self.over[b] = False
                continue
            reward = float(np.float32(self.random.normal()))
            terminated, truncated = self.random.random(2) < self.p_end / 2
            episode.action.append(np.array(action[b]))
            episode.reward.append(reward)
            episode.end = "terminated" if terminated else "truncated" if truncated else ""
            observation = final = self.show(b, episode)
            if episode.end and self.spec.autoreset == "same_step":
                observation = self.begin(b)
            self.over[b] = bool(episode.end) and self.spec.autoreset == "next_step"
            rows.append((observation, reward, terminated, truncated, final))
        observation, reward, terminated, truncated, final = (np.stack(column) for column in zip(*rows, strict=True))
        kind = self.spec.observation_dtype
        last = final.astype(kind) if self.spec.autoreset == "same_step" else None
        return observation.astype(kind), reward.astype(np.float32), terminated, truncated, last

    def which(self, observation):
        """The episode that showed an observation, and when."""
        if self.spec.image is None:
            return self.place[int(observation[1])]
        return self.place[int(observation[-1].reshape(-1)[1:5].copy().view(">u4")[0])]

    def close(self):
        pass


def assert_shown(film, drawn, n_step, gamma):
    """Each sampled transition is one that the film showed, with the n-step return of the film's own record."""
    for i in range(len(drawn.index)):
        episode, t = film.which(drawn.observation[i])
        assert (drawn.observation[i] == episode.observation[t]).all(), "the film showed another observation"
        assert (drawn.action[i] == episode.action[t]).all(), "another action was taken"
        steps = min(n_step, len(episode.reward) - t)
        assert steps == n_step or episode.end, "a window that is not complete was sampled"
        returned = sum(gamma**k * r for k, r in enumerate(episode.reward[t : t + steps]))
        assert abs(drawn.return_[i] - returned) < 1e-5, f"{drawn.return_[i]} was returned instead of {returned}"
        if episode.end == "terminated" and t + steps == len(episode.reward):
            assert drawn.discount[i] == 0, "a terminated episode is bootstrapped"
        else:
            assert abs(drawn.discount[i] - gamma**steps) < 1e-6, f"{drawn.discount[i]} does not discount {steps} steps"
            shown = (drawn.next_observation[i] == episode.observation[t + steps]).all()
            assert shown, "the film showed another observation after these steps"
