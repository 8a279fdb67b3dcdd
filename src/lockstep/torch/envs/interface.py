"""The protocol of vectorized environments on torch tensors.

Shapes: B environments of a shard, O numbers of the policy's observation, C of the critic's, D action dimensions.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, Protocol, TypeGuard

import numpy as np
import torch
from torch import Tensor

from lockstep.envs.spec import EnvSpec
from lockstep.envs.state import has_state_methods
from lockstep.errors import RunError


class Observation(NamedTuple):
    """What the networks receive."""

    policy: Tensor
    """float32 [B, O], or bytes [B, channels, height, width] where the spec has an `image`."""
    critic: Tensor | None = None
    """float32 [B, C], the value network's own ("privileged") observation, if the spec has a `critic_size`."""

    def map(self, function: Callable[[Tensor], Tensor]) -> "Observation":
        """The results of a function of each tensor that is there."""
        return Observation(function(self.policy), None if self.critic is None else function(self.critic))


class TensorStep(NamedTuple):
    """The result of a step. All tensors are on the environment's device."""

    observation: Observation
    reward: Tensor
    """float32 [B]."""
    terminated: Tensor
    """bool [B]: the task ended the episode."""
    truncated: Tensor
    """bool [B]: a limit outside of the task, such as time, ended the episode."""
    final: Observation | None = None
    """The observations before the reset of this step, valid in rows where an episode ended.
    None if no episode ended, or with `autoreset="next_step"`, where `observation` is the true one."""


class TensorVectorEnv(Protocol):
    """The environments of one shard, stepped together, on torch tensors.

    A user-defined class has the attribute `on_tensors = True`, is constructed as
    `Class(num_envs=..., device=..., **kwargs)`, and is named as task `module:Class`.

    Returned tensors may be live buffers: the next call may overwrite them. Callers copy what they keep.

    No method needs to synchronize with the device: nothing in a rollout waits for a value of a tensor.

    The methods `state` and `restore` are optional (`SavableTensorEnv`). With them a resumed run ends with the same bits
    as an uninterrupted one; without them it starts new episodes.

    The method `render` is optional, too (`DrawnTensorEnv`).
    """

    spec: EnvSpec
    """Sizes and conventions of one environment."""
    num_envs: int
    """B."""
    device: torch.device
    """Of all tensors."""

    def reset(self, seeds: Sequence[int]) -> Observation:
        """Start new episodes everywhere.

        Args:
            seeds: one per environment; if they are not `separately_seedable`, only the first is used. All randomness
                must come from generators seeded here: torch's global generator is shared with other shards.

        Returns:
            The first observations.
        """
        ...

    def step(self, action: Tensor) -> TensorStep:
        """Step every environment once; ended episodes are reset as `spec.autoreset` states.

        Args:
            action: int64 `[B]` (discrete), int64 `[B, K]` (multi_discrete) or float32 `[B, D]` (continuous, in bounds).
                Choices are counted from 0.
                The environment may keep it.
        """
        ...

    def close(self) -> None:
        """Free all resources; may be called twice."""
        ...


class SavableTensorEnv(TensorVectorEnv, Protocol):
    """A `TensorVectorEnv` with the two methods that a resumed run needs to end with the same bits."""

    def state(self) -> dict[str, Any]:
        """The complete state, as of the next `step`.

        Returns:
            A tree of `dict` (text keys), `list`, `str`, `int`, `float`, `bool`, `None` and tensors. The tensors need
            not be copies. A generator is saved as `generator.get_state()`.
        """
        ...

    def restore(self, state: Mapping[str, Any]) -> None:
        """Load `state()` into an environment with the same arguments, which has been `reset` before with any seeds.

        Tensors of `state` are on the CPU.
        """
        ...


class DrawnTensorEnv(TensorVectorEnv, Protocol):
    """A `TensorVectorEnv` that was made to be drawn, or a user-defined class that has the method `render`."""

    frames_per_second: float
    """Steps of an environment in a second of its own time; 30 for a class that leaves it out."""

    def render(self) -> np.ndarray:
        """A picture of the first environment, bytes [height, width, 3]."""
        ...


def can_draw(env: TensorVectorEnv) -> TypeGuard[DrawnTensorEnv]:
    """Whether `env` can be drawn."""
    return callable(getattr(env, "render", None))


def can_save(env: TensorVectorEnv) -> TypeGuard[SavableTensorEnv]:
    """Whether `env` can be saved; a class that supports it for some tasks only sets the attribute `savable: bool`."""
    return has_state_methods(env) and bool(getattr(env, "savable", True))


def check_step(spec: EnvSpec, num_envs: int, step: TensorStep) -> None:
    """Refuse a step of B environments of whose numbers any have another shape than the spec says.

    Shapes are known on the host: nothing waits for the device. torch would broadcast a single number silently.

    Raises:
        RunError: it names the shapes, or says that the critic's observation is missing, or what to return instead of
            something else than a `TensorStep`.
    """
    check_step_type(step)
    check_observation(spec, num_envs, step.observation, "step")
    if step.final is not None:
        check_observation(spec, num_envs, step.final, "step", "final observations")
    for name, column in (("rewards", step.reward), ("terminated", step.terminated), ("truncated", step.truncated)):
        _check_shape(name, column, (num_envs,))


def check_observation(
    spec: EnvSpec, num_envs: int, observation: Observation, method: str = "reset", name: str = "observations"
) -> None:
    """`check_step` of the observations alone, as `method` returned them.

    One of a critic that the spec does not have is ignored.
    """
    check_observation_type(observation, method, name)
    _check_shape(name, observation.policy, (num_envs, *spec.observation_shape))
    if spec.critic_size is None:
        return
    if observation.critic is None:
        raise no_critic_observation(spec)
    _check_shape(f"{name} of the critic", observation.critic, (num_envs, spec.critic_size))


def check_step_type(step: Any) -> None:
    """Refuse what is not a `TensorStep` of `Observation`s, such as the tuples of Gymnasium."""
    if not isinstance(step, TensorStep):
        raise RunError(
            f"step returned a {type(step).__name__}; return a TensorStep of {__name__}: {', '.join(TensorStep._fields)}"
        )
    check_observation_type(step.observation, "step")
    if step.final is not None:
        check_observation_type(step.final, "step", "final observations")


def check_observation_type(observation: Any, method: str, name: str = "observations") -> None:
    """Refuse what is not an `Observation`, such as a tensor alone or a dict of them."""
    if not isinstance(observation, Observation):
        raise RunError(
            f"{method} returned a {type(observation).__name__} as {name}; return an Observation "
            f"of {__name__}: {', '.join(Observation._fields)} (None where there is none)"
        )


def _check_shape(name: str, given: Any, wanted: tuple[int, ...]) -> None:
    shape = tuple(getattr(given, "shape", ()))
    if shape != wanted:
        raise RunError(f"the environments gave {name} of the shape {list(shape)}, and their spec says {list(wanted)}")


def no_critic_observation(spec: EnvSpec) -> RunError:
    """The error for environments that give no observation of the critic, which their spec has."""
    return RunError(
        f"the environments gave no observation of the critic, and their spec has critic_size={spec.critic_size}; "
        "return Observation(policy, critic)"
    )


def no_final_observation() -> RunError:
    """The error for an environment that truncates an episode without `TensorStep.final`."""
    return RunError(
        "an environment truncated an episode without a final observation, which the value of that episode "
        'needs; return TensorStep.final, or use autoreset="next_step"'
    )


def overwritten_final_observation() -> RunError:
    """The error for an environment that truncates an episode and gives the new observation as `TensorStep.final`."""
    return RunError(
        "step returned the same tensor as observation and as final observation in a step that truncated an episode: "
        "the last one of the old episode is lost; copy it before the reset"
    )
