"""Gymnasium's observation and action spaces as flat tensors."""

import math
from collections.abc import Mapping, Sequence
from typing import Any, cast

import gymnasium
import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import one_hot

from lockstep.envs.spaces import image_parts, named_parts
from lockstep.envs.spec import ActionSpec, ImagePart
from lockstep.errors import ConfigError

Space = gymnasium.Space[Any]


def flat_size(space: Space) -> int:
    """Numbers of a flattened observation: choices are one-hot, parts follow each other in the space's order."""
    match space:
        case gymnasium.spaces.Box():
            return math.prod(space.shape)
        case gymnasium.spaces.Discrete():
            return int(space.n)
        case gymnasium.spaces.MultiDiscrete():
            return int(space.nvec.sum())
        case gymnasium.spaces.Dict() | gymnasium.spaces.Tuple():
            return sum(flat_size(part) for _, part in named_parts(space))
        case _:
            raise ConfigError(f"an observation is a {type(space).__name__}, which cannot be flattened")


def flatten(space: Space, value: Any) -> Tensor:
    """A batch of observations [B, ...] as float32 [B, O]; of images channels first, bytes scaled to [0, 1]."""
    match space:
        case gymnasium.spaces.Box() if _part_shape(space) is not None:
            image = channels_first(space, cast(Tensor, value)).flatten(1).float()
            return image * (1 / 255) if space.dtype == np.uint8 else image
        case gymnasium.spaces.Box():
            return cast(Tensor, value).reshape(len(value), -1).float()  # a space without dimensions is one number
        case gymnasium.spaces.Discrete():
            return _one_hot(cast(Tensor, value).flatten(), space.n, space.start)
        case gymnasium.spaces.MultiDiscrete():
            columns = cast(Tensor, value).flatten(1).unbind(1)
            choices = zip(columns, space.nvec.ravel(), space.start.ravel(), strict=True)
            return torch.cat([_one_hot(*column) for column in choices], 1)
        case _:
            return torch.cat([flatten(part, value[name]) for name, part in named_parts(space)], 1)


def _one_hot(choice: Tensor, n: Any, start: Any) -> Tensor:
    """Choices [B] from `start` to `start + n - 1` as float32 [B, n]."""
    return one_hot(choice.long() - int(start), int(n)).float()


def image_shape(space: Space, *, floats: bool = False) -> tuple[int, int, int] | None:
    """Channels, height and width of an observation that is an image of uint8, or of `floats`; None for all others.

    The channels are the first dimension, or the last one if that is smaller; see `channels_first`.
    """
    if isinstance(space, gymnasium.spaces.Box) and len(space.shape) == 3 and (space.dtype != np.uint8) == floats:
        first, second, last = space.shape
        return (last, first, second) if last < first else (first, second, last)
    return None


def _part_shape(space: Space) -> tuple[int, int, int] | None:
    """Channels, height and width of a part of an observation that is an image, of bytes or floats."""
    return image_shape(space) or image_shape(space, floats=True)


def _image_parts(groups: Mapping[str, Space]) -> tuple[ImagePart, ...]:
    """The images in `joined(groups, ...)`, by their columns."""
    return image_parts(gymnasium.spaces.Tuple(groups.values()), _part_shape)


def channels_first(space: Space, image: Tensor) -> Tensor:
    """Images [B, ...] of a space as [B, C, H, W]."""
    assert isinstance(space, gymnasium.spaces.Box)
    return image.movedim(-1, 1) if space.shape[2] < space.shape[0] else image


def only_image(spaces: Mapping[str, Space], groups: Mapping[str, Any]) -> Tensor:
    """The one group of `spaces`, an image, as [B, C, H, W]."""
    ((name, space),) = spaces.items()
    return channels_first(space, groups[name])


def float_image_range(groups: Mapping[str, Space], given: Sequence[float] | None) -> tuple[float, float] | None:
    """The range of an image of floats [channels, height, width], the only group; None if there is no such image.

    Args:
        groups: of the policy.
        given: the setting `image_range`; None: the bounds of the space.

    Raises:
        ConfigError: an image has no finite range, or `given` is for no image.
    """
    space = next(iter(groups.values()))
    if len(groups) > 1 or image_shape(space, floats=True) is None:
        if given is not None:
            raise ConfigError(
                f"env.kwargs.image_range={list(given)} is for one image of floats, not for {dict(groups)}"
            )
        return None
    assert isinstance(space, gymnasium.spaces.Box)
    low, high = (float(space.low.min()), float(space.high.max())) if given is None else given
    if not (math.isfinite(low) and math.isfinite(high) and low < high):
        found = f"images of floats {list(space.shape)}" if given is None else f"env.kwargs.image_range={list(given)}"
        raise ConfigError(
            f"{found}: networks receive images as bytes; give the smallest and the largest number, for example "
            "--set env.kwargs.image_range=[-1,1]"
        )
    return low, high


def image_bytes(image: Tensor, low: float, high: float) -> Tensor:
    """An image of floats from `low` to `high` as bytes; values outside of the range are clipped."""
    return ((image - low) * (255.0 / (high - low))).round_().clamp_(0, 255).to(torch.uint8)


def action_spec(space: Space) -> ActionSpec:
    """The action of a space."""
    shape = None if space.shape is None or len(space.shape) == 1 else tuple(space.shape)
    match space:
        case gymnasium.spaces.Box():
            low, high = (
                tuple(map(float, np.broadcast_to(bound, space.shape).ravel())) for bound in (space.low, space.high)
            )
            return ActionSpec("continuous", (len(low),), low, high, shape=shape)
        case gymnasium.spaces.Discrete():
            return ActionSpec("discrete", (int(space.n),), start=(int(space.start),) if space.start else ())
        case gymnasium.spaces.MultiDiscrete():
            sizes, start = (tuple(map(int, numbers.ravel())) for numbers in (space.nvec, space.start))
            return ActionSpec("multi_discrete", sizes, start=start if any(start) else (), shape=shape)
        case _:
            raise ConfigError(f"an action is a {type(space).__name__}; known are Box, Discrete and MultiDiscrete")


def env_action(spec: ActionSpec, action: Tensor) -> Tensor:
    """`ActionSpec.for_env` of tensors: actions [B, width], or one choice [B], as the environment takes them."""
    if spec.start:
        action = action + (spec.start[0] if spec.kind == "discrete" else action.new_tensor(spec.start))
    return action if spec.shape is None else action.reshape(len(action), *spec.shape)


def groups_of(space: Space) -> Mapping[str, Space]:
    """The groups of an observation, by name."""
    if not isinstance(space, gymnasium.spaces.Dict):
        raise ConfigError(f"an observation is a {type(space).__name__}, not a Dict of groups")
    return dict(named_parts(space))


def chosen_groups(
    spaces: Mapping[str, Space], policy_keys: Sequence[str], critic_keys: Sequence[str]
) -> tuple[dict[str, Space], dict[str, Space]]:
    """The groups of the policy and of the value network; no group for a value network that receives the policy's.

    Raises:
        ConfigError: a group does not exist; names the setting and the groups that do.
    """
    for setting, keys in (("policy_keys", policy_keys), ("critic_keys", critic_keys)):
        for key in keys:
            if key not in spaces:
                raise ConfigError(
                    f"env.{setting}={list(keys)}: there is no group {key!r}; the task has {', '.join(spaces)}"
                )
    same = tuple(critic_keys) == tuple(policy_keys)
    return {key: spaces[key] for key in policy_keys}, {} if same else {key: spaces[key] for key in critic_keys}


def observation_fields(
    spaces: Mapping[str, Space],
    policy: Mapping[str, Space],
    critic: Mapping[str, Space],
    image: tuple[int, int, int] | None,
) -> dict[str, Any]:
    """The fields of an `EnvSpec` that the observations of a task decide, by name.

    Args:
        spaces: all groups.
        policy: those of the policy.
        critic: the value network's own.
        image: the policy's observation, if it is one uint8 image.
    """
    return {
        "observation_size": sum(map(flat_size, policy.values())),
        "image": image,
        "image_parts": _image_parts(policy) if image is None else (),
        "critic_size": sum(map(flat_size, critic.values())) or None,
        "critic_image_parts": _image_parts(critic),
        "unused_groups": tuple(name for name in spaces if name not in policy and name not in critic),
    }


def joined(spaces: Mapping[str, Space], groups: Mapping[str, Any]) -> Tensor:
    """The flattened groups [B, O], one after the other."""
    parts = [flatten(space, groups[name]) for name, space in spaces.items()]
    return parts[0] if len(parts) == 1 else torch.cat(parts, 1)
