"""Environments on torch tensors, for tests."""

from dataclasses import replace

import numpy as np
import torch

from lockstep.envs.spec import ActionSpec, EnvSpec, ImagePart
from lockstep.torch.envs.interface import Observation, TensorStep


class Walk:
    """Random walks from seeds, in live buffers; every environment has an episode length of its own.

    The policy observes the position, and the critic the position and the steps of the episode. The action is added to
    the position. The episode terminates above 2, and is truncated after 3, 4, 5, ... steps. With `picture`, the policy
    observes an image, which is brighter to the right. `reset_pays`: the reward of a step that only resets (next_step).
    """

    on_tensors = True

    def __init__(
        self, num_envs, *, device, autoreset="same_step", critic=True, bad_step=None, picture=False, reset_pays=0.0
    ):
        self.spec = EnvSpec(
            observation_size=36 * 36 if picture else 1,
            image=(1, 36, 36) if picture else None,
            action=ActionSpec("continuous", (1,), (-1.0,), (1.0,)),
            autoreset=autoreset,
            separately_seedable=False,
            critic_size=2 if critic else None,
        )
        self.num_envs, self.device = num_envs, device
        self._generator = torch.Generator(device)
        self._position, self._steps, self._reward = (torch.zeros(num_envs, device=device) for _ in range(3))
        self._ended = torch.zeros(num_envs, dtype=torch.bool, device=device)
        self._limit = 3.0 + torch.arange(num_envs, device=device)
        kind = torch.uint8 if picture else torch.float32
        self._seen = torch.zeros(num_envs, *self.spec.observation_shape, dtype=kind, device=device)
        self._critic = torch.zeros(num_envs, 2, device=device)
        self._bad_step, self._count, self._reset_pays = bad_step, 0, reset_pays
        self.closed = False

    def reset(self, seeds):
        self._generator.manual_seed(int(seeds[0]))
        self._position.copy_(self._draw())
        self._steps.zero_()
        self._ended.zero_()
        return self._observe()

    def step(self, action):
        self._count += 1
        resets = self._ended.clone() if self.spec.autoreset == "next_step" else torch.zeros_like(self._ended)
        moved = self._position + action[:, 0]
        self._position.copy_(torch.where(resets, self._draw(), moved))
        self._steps.copy_(torch.where(resets, 0.0, self._steps + 1))
        self._reward.copy_(torch.where(resets, self._reset_pays, self._position))
        if self._bad_step == self._count:
            self._reward[-1] = float("nan")
        terminated = (self._position > 2) & ~resets
        truncated = (self._steps >= self._limit) & ~resets
        self._ended.copy_(terminated | truncated)
        if self.spec.autoreset == "next_step":
            return TensorStep(self._observe(), self._reward, terminated, truncated)
        final = Observation(*(None if part is None else part.clone() for part in self._observe()))
        self._position.copy_(torch.where(self._ended, self._draw(), self._position))
        self._steps.copy_(torch.where(self._ended, 0.0, self._steps))
        return TensorStep(self._observe(), self._reward, terminated, truncated, final)

    def _draw(self):
        return torch.rand(self.num_envs, generator=self._generator, device=self.device)

    def _observe(self):
        if self.spec.image is None:
            self._seen.copy_(self._position[:, None])
        else:
            self._seen.copy_((128 + 40 * self._position).clamp(0, 255).to(torch.uint8)[:, None, None, None])
        if self.spec.critic_size is None:
            return Observation(self._seen)
        self._critic.copy_(torch.stack([self._position, self._steps], 1))
        return Observation(self._seen, self._critic)

    def state(self):
        kept = ("_position", "_steps", "_ended")
        return {"generator": self._generator.get_state(), "count": self._count} | {k: getattr(self, k) for k in kept}

    def restore(self, state):
        self._generator.set_state(state["generator"])
        self._count = state["count"]
        for name in ("_position", "_steps", "_ended"):
            getattr(self, name).copy_(state[name])

    def close(self):
        self.closed = True


class WithoutFile(Walk):
    """Reads a file that is not there, at each step."""

    def step(self, action):
        return open("/nowhere/terrain.npz")


class OneReward(Walk):
    """Gives one reward for all."""

    def step(self, action):
        step = super().step(action)
        return step._replace(reward=step.reward.mean())


class WithoutDevice(Walk):
    """Lacks the device."""

    def __init__(self, num_envs, *, device):
        super().__init__(num_envs, device=device)
        self.device = None


class Seeing(Walk):
    """Also observes pictures, which it gives to no network."""

    def __init__(self, num_envs, *, device):
        super().__init__(num_envs, device=device)
        self.spec = replace(self.spec, unused_groups=("camera",))


class Arm(Walk):
    """Observes its position, and a picture [1, 6, 6] that is brighter to the right; the critic only the picture."""

    def __init__(self, num_envs, *, device):
        super().__init__(num_envs, device=device)
        picture = ImagePart(0, (1, 6, 6))
        self.spec = replace(
            self.spec,
            observation_size=1 + 36,
            image_parts=(replace(picture, begin=1),),
            critic_size=36,
            critic_image_parts=(picture,),
        )

    def _observe(self):
        pictures = (0.5 + 0.2 * self._position[:, None]).clamp(0, 1).repeat(1, 36)
        return Observation(torch.cat([self._position[:, None], pictures], 1), pictures)


class Capturable(Walk):
    """Says that its steps can be CUDA graphs, and not what they draw from."""

    capturable = True


class FinalAfterReset(Walk):
    """Returns what it observes after the reset as the final observation, too, as Isaac Gym does."""

    def step(self, action):
        step = super().step(action)
        return step._replace(final=step.observation)


class FinalCriticAfterReset(Walk):
    """`FinalAfterReset` of the critic alone."""

    def step(self, action):
        step = super().step(action)
        return step._replace(final=step.final._replace(critic=step.observation.critic[:]))


class OneBuffer(Walk):
    """Keeps observations and final observations, which differ, in one tensor."""

    def step(self, action):
        step = super().step(action)
        both = torch.stack([step.observation.policy, step.final.policy], 1)
        return step._replace(
            observation=step.observation._replace(policy=both[:, 0]), final=step.final._replace(policy=both[:, 1])
        )


class GymnasiumTuples(Walk):
    """Returns from `step` what Gymnasium's environments return."""

    def step(self, action):
        step = super().step(action)
        return step.observation.policy, step.reward, step.terminated, step.truncated, {}


class Dicts(Walk):
    """Observes a dict of groups."""

    def reset(self, seeds):
        return super().reset(seeds)._asdict()


class TensorsAlone(Walk):
    """Steps to a tensor as observation, of the policy alone."""

    def step(self, action):
        step = super().step(action)
        return step._replace(observation=step.observation.policy)


class FinalDicts(Walk):
    """Gives its final observations as a dict of groups."""

    def step(self, action):
        step = super().step(action)
        return step._replace(final=step.final._asdict())


class WithoutFinal(Walk):
    """Gives no final observations."""

    def step(self, action):
        return super().step(action)._replace(final=None)


class Drawn(Walk):
    """Draws pictures of the first environment's position."""

    def render(self):
        return np.full((4, 6, 3), 128 + int(40 * self._position[0]), np.uint8)


class DrawnSlowly(Drawn):
    """Says how quickly its videos are to be shown."""

    frames_per_second = 5.0


class Choosing(Walk):
    """Has groups of its own to choose from."""

    def __init__(self, num_envs, *, device, policy_keys=(), critic_keys=()):
        super().__init__(num_envs, device=device)
        self.keys = tuple(policy_keys), tuple(critic_keys)
