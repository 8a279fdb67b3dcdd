"""A policy that was trained in environments as one file: from observations to actions, normalization inside.

Shapes: N observations O, A actions, D numbers of a continuous action, C choices at once.
"""

import copy
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from lockstep.errors import RunError
from lockstep.experience.normalize import RunningMoments
from lockstep.torch.deploy.exported_file import LARGEST_DIFFERENCE, Arrays, Exported, Format, difference, write_program
from lockstep.torch.deploy.program import trace
from lockstep.torch.networks import Policy
from lockstep.torch.q_networks import QPolicy
from lockstep.world import stream

_ROWS = 1000
_LIMIT = 10.0  # deviations, as in RunningMoments.normalize


class Acting(nn.Module):
    """The most likely action, or that of the largest Q; without noise."""

    def __init__(self, policy: Policy | QPolicy, observations: RunningMoments | None) -> None:
        super().__init__()
        self.policy, self.action = policy, policy.spec.action
        self.normalizes = observations is not None and observations.count > 0
        if observations is not None:
            deviation = np.sqrt(observations.variance + 1e-8)
            self.register_buffer("mean", torch.from_numpy(observations.mean).float())
            self.register_buffer("scale", torch.from_numpy(1 / deviation).float())
        self.register_buffer("low", torch.tensor(self.action.low))
        self.register_buffer("high", torch.tensor(self.action.high))

    def forward(self, observation: Tensor) -> dict[str, Tensor]:
        """Observations [N, *O], float32, or bytes of images, as the environment gives them.

        Returns:
            `scores`: Q [N, A], logits [N, A] or of all choices behind one another, or means [N, D]; `action`: [N]
            int64, [N, C] int64, or [N, D] within the bounds of the environment.
        """
        if self.normalizes:
            seen = (observation - self.get_buffer("mean")) * self.get_buffer("scale")
            observation = seen.clamp(-_LIMIT, _LIMIT)
        scores, _ = self.policy(observation)
        if self.action.kind == "continuous":
            return {"scores": scores, "action": scores.clamp(self.get_buffer("low"), self.get_buffer("high"))}
        if self.action.kind == "discrete":
            return {"scores": scores, "action": scores.argmax(-1)}
        choices = [part.argmax(-1) for part in torch.split(scores, list(self.action.sizes), -1)]
        return {"scores": scores, "action": torch.stack(choices, -1)}


def export_acting(policy: Policy | QPolicy, observations: RunningMoments | None, path: Path, to: Format) -> Exported:
    """Write a policy as a file, whole and tried on 1000 random observations, or not at all.

    Args:
        policy: on the CPU.
        observations: their normalizer, if there is one.
        path: where to.
        to: which format.

    Raises:
        ConfigError: a package is missing.
        RunError: the network cannot be traced, the file acts differently than the policy, or cannot be written.
    """
    examples = {"observation": torch.from_numpy(_random(policy, observations, 2))}
    module = Acting(copy.deepcopy(policy), observations)
    program = trace(module, examples, {"observation": "observations"}, ("scores", "action"))
    metadata = {"kind": "observations", "spec": policy.spec.to_dict()}
    return write_program(program, path, to, metadata, lambda run: _compared(policy, observations, path, run))


def _compared(
    policy: Policy | QPolicy, observations: RunningMoments | None, path: Path, run: Callable[[Arrays], Arrays]
) -> Exported:
    """By the file, and as evaluations act."""
    observation = _random(policy, observations, _ROWS)
    seen = observation if observations is None else observations.normalize(observation)
    with torch.inference_mode():
        wanted = policy(torch.from_numpy(seen))[0].float().numpy()
    found = run({"observation": observation})
    apart, worst = difference(found["scores"], wanted)
    if apart > LARGEST_DIFFERENCE:
        raise RunError(
            f"{path} was not written: of random observation {worst} it would make something else than the policy, by "
            f"{apart:.1e} of a score (up to {LARGEST_DIFFERENCE:g} is rounding); report this"
        )
    action = policy.distribution.mode(wanted)
    if policy.spec.action.kind == "continuous":
        return Exported(path, _ROWS, apart, None)
    same = (found["action"] == action).reshape(_ROWS, -1).all(-1)
    return Exported(path, _ROWS, apart, int(same.sum()))


def _random(policy: Policy | QPolicy, observations: RunningMoments | None, rows: int) -> NDArray[np.generic]:
    """Observations [rows, *O] like those that were seen in training, as far as the policy knows them."""
    spec, draws = policy.spec, stream(0, "export")
    if spec.image is not None:
        return draws.integers(256, size=(rows, *spec.image), dtype=np.uint8)
    drawn = draws.standard_normal((rows, spec.observation_size))
    if observations is not None:
        drawn = observations.mean + drawn * np.sqrt(observations.variance)
    return drawn.astype(np.float32)
