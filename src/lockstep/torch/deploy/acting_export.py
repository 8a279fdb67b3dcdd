"""Export of a policy that was trained in environments: from observations to actions, with normalization included.

Shapes: N observations O, A actions, D dimensions of a continuous action, C parts of a multi-discrete one, S numbers
of a recurrent policy's state.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from lockstep.errors import RunError
from lockstep.experience.normalize import EPS, RunningMoments
from lockstep.torch.continuous_policy import ContinuousPolicy
from lockstep.torch.deploy.exported_file import LARGEST_DIFFERENCE, Arrays, Exported, Format, difference, write_program
from lockstep.torch.deploy.program import trace
from lockstep.torch.networks import ActingPolicy, Policy
from lockstep.torch.recurrent import Sequences
from lockstep.world import stream

_ROWS = 1000
_STEPS = 20
"""Of each episode in which a recurrent policy is compared."""


class GreedyPolicy(nn.Module):
    """Clips and normalizes observations, and returns the most likely action, or the one with the largest Q."""

    def __init__(self, policy: ActingPolicy, observation_moments: RunningMoments | None) -> None:
        super().__init__()
        self.policy = policy
        self.action = policy.spec.action
        self.normalizes = observation_moments is not None and observation_moments.count > 0
        if observation_moments is not None:
            self.register_buffer("bounds", torch.tensor(observation_moments.bounds))
            deviation = np.sqrt(observation_moments.variance + EPS)
            self.register_buffer("mean", torch.from_numpy(observation_moments.mean).float())
            self.register_buffer("scale", torch.from_numpy(1 / deviation).float())
        low, high = self.action.float32_bounds
        self.register_buffer("low", torch.tensor(low))  # a copy: torch.export cannot save an empty array of numpy's
        self.register_buffer("high", torch.tensor(high))
        self.register_buffer("start", torch.tensor(self.action.start))

    def forward(self, observation: Tensor, state: Tensor | None = None) -> dict[str, Tensor]:
        """Map observations [N, *O] to actions. They are float32, or uint8 for images, as the environment returns them.

        Args:
            observation: of N environments.
            state: [N, S], needed by a recurrent policy: 0 where an episode begins, else the last `next_state`.

        Returns:
            `scores`: Q [N, A], logits [N, A], concatenated logits of the C parts, or means [N, D] (of SAC
            and TD3 before tanh); `action`: as the environment takes it, [N] int64, [N, C] int64, or [N, D] within its
            bounds, where C and D may be several dimensions; of a recurrent policy `next_state`.
        """
        if (limit := self.policy.spec.clip_observation) is not None:
            observation = observation.clamp(-limit, limit)
        if self.normalizes:
            normalized = (observation - self.get_buffer("mean")) * self.get_buffer("scale")
            observation = normalized.clamp(-self.get_buffer("bounds"), self.get_buffer("bounds"))
        if state is None:
            return self._choose(self.policy(observation)[0])
        assert isinstance(self.policy, Policy)
        scores, next_state = self.policy.recurrent.act(observation, state)
        return {**self._choose(scores), "next_state": next_state}

    def _choose(self, scores: Tensor) -> dict[str, Tensor]:
        """Scores and the actions that they choose."""
        if self.action.kind == "continuous":
            scores = scores[:, : self.action.width]  # without log standard deviations that depend on it
            action = self.policy.unscaled(scores.tanh()) if isinstance(self.policy, ContinuousPolicy) else scores
            action = action.clamp(self.get_buffer("low"), self.get_buffer("high"))
        elif self.action.kind == "discrete":
            action = scores.argmax(-1)
        else:
            action = torch.stack([part.argmax(-1) for part in torch.split(scores, list(self.action.sizes), -1)], -1)
        if self.action.start:
            action = action + self.get_buffer("start")
        if self.action.shape is not None:
            action = action.reshape(-1, *self.action.shape)
        return {"scores": scores, "action": action}


def export_acting(policy: ActingPolicy, observation_moments: RunningMoments | None, path: Path, to: Format) -> Exported:
    """Write a policy to a file, atomically, after comparing the file with the policy on 1000 random observations.

    Args:
        policy: on the CPU; not to be trained afterwards. No copy is made: a network of the user's may hold anything.
        observation_moments: the normalizer of observations, if there is one.
        path: the file to write.
        to: the format.

    Raises:
        ConfigError: a package is missing.
        RunError: the network cannot be traced, the file differs from the policy, or it cannot be written.
    """
    examples = {"observation": torch.from_numpy(_random(policy, observation_moments, 2))}
    outputs: tuple[str, ...] = ("scores", "action")
    metadata: dict[str, Any] = {"kind": "observations", "spec": policy.spec.to_dict()}
    if state_size := _state_size(policy):
        metadata["state_size"] = state_size
        examples["state"] = torch.zeros(2, state_size)
        outputs = (*outputs, "next_state")
    module = GreedyPolicy(policy, observation_moments)
    program = trace(module, examples, dict.fromkeys(examples, "observations"), outputs)
    return write_program(program, path, to, metadata, lambda run: _compare(policy, observation_moments, path, run))


def _compare(
    policy: ActingPolicy,
    observation_moments: RunningMoments | None,
    path: Path,
    run: Callable[[Arrays], Arrays],
) -> Exported:
    observation = _random(policy, observation_moments, _ROWS)
    limit = policy.spec.clip_observation
    clipped = observation if limit is None else np.clip(observation, -limit, limit)
    normalized = clipped if observation_moments is None else observation_moments.normalize(clipped)
    if _state_size(policy):
        assert isinstance(policy, Policy)
        parameters, found = _unrolled(policy, normalized), _run_steps(policy, observation, run)
    else:
        with torch.inference_mode():
            parameters = policy(torch.from_numpy(normalized))[0].float().numpy()
        found = run({"observation": observation})
    action = policy.spec.action
    if action.kind == "continuous":
        chosen = np.clip(policy.distribution.mode(parameters), *action.float32_bounds)
        expected = np.concatenate([parameters[:, : action.width], chosen], -1)
        action_found = found["action"].reshape(_ROWS, -1)
        largest, row = difference(np.concatenate([found["scores"], action_found], -1), expected)
    else:
        largest, row = difference(found["scores"], parameters)
    if largest > LARGEST_DIFFERENCE:
        raise RunError(
            f"{path} was not written: of random observation {row} it would make something else than the policy, by "
            f"{largest:.1e} of a score (up to {LARGEST_DIFFERENCE:g} is rounding); report this"
        )
    if action.kind == "continuous":
        return Exported(path, _ROWS, largest, None)
    same = (found["action"] == action.for_env(policy.distribution.mode(parameters))).reshape(_ROWS, -1).all(-1)
    return Exported(path, _ROWS, largest, int(same.sum()))


def _state_size(policy: ActingPolicy) -> int:
    return policy.actor_state_size if isinstance(policy, Policy) else 0


def _unrolled(policy: Policy, observation: NDArray[np.generic]) -> NDArray[np.float32]:
    """What a recurrent policy makes of episodes of `_STEPS` observations, as in training."""
    rows = torch.from_numpy(observation)
    sequences = Sequences(torch.zeros(_ROWS // _STEPS, policy.state_size), torch.zeros(_STEPS, _ROWS // _STEPS))
    network = policy.recurrent
    critic_size = policy.spec.critic_size
    with torch.inference_mode():  # parameters do not depend on the critic's own observation
        actor, critic = network.features(rows, None if critic_size is None else torch.zeros(_ROWS, critic_size))
        assert critic is not None
        return network.unroll(actor, critic, sequences)[0].numpy()


def _run_steps(policy: Policy, observation: NDArray[np.generic], run: Callable[[Arrays], Arrays]) -> Arrays:
    """What a file makes of the same episodes, step by step."""
    state = np.zeros((_ROWS // _STEPS, policy.actor_state_size), np.float32)
    steps: list[Arrays] = []
    for rows in np.split(observation, _STEPS):
        steps.append(run({"observation": rows, "state": state}))
        state = steps[-1]["next_state"]
    return {name: np.concatenate([step[name] for step in steps]) for name in ("scores", "action")}


def _random(policy: ActingPolicy, observation_moments: RunningMoments | None, rows: int) -> NDArray[np.generic]:
    """Random observations [rows, *O], with the mean and variance of training if a normalizer has them."""
    spec, random = policy.spec, stream(0, "export")
    if spec.image is not None:
        return random.integers(256, size=(rows, *spec.image), dtype=np.uint8)
    sampled = random.standard_normal((rows, spec.observation_size))
    if observation_moments is not None:
        sampled = observation_moments.mean + sampled * np.sqrt(observation_moments.variance)
    return sampled.astype(np.float32)
