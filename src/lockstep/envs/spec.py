"""Sizes, action kinds and conventions of an environment, as plain values."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal

import numpy as np

from lockstep.errors import ConfigError


@dataclass(frozen=True, slots=True)
class ActionSpec:
    """One environment's action. Policies count choices from 0, and give several numbers as a vector."""

    kind: Literal["discrete", "multi_discrete", "continuous"]
    """A choice, several choices at once, or real numbers."""
    sizes: tuple[int, ...]
    """`discrete`: (choices,); `multi_discrete`: choices per component; `continuous`: (dimensions,)."""
    low: tuple[float, ...] = ()
    """Smallest value per dimension, -inf where unbounded; `continuous` only, which needs them."""
    high: tuple[float, ...] = ()
    """Largest value per dimension, +inf where unbounded; `continuous` only, which needs them."""
    start: tuple[int, ...] = ()
    """The environment's number of the first choice, per component; empty where it is 0."""
    shape: tuple[int, ...] | None = None
    """Of the environment's array of several numbers; `None`: a vector."""

    def __post_init__(self) -> None:
        """Refuse bounds of real numbers that are not one per dimension, or not in order: numpy would broadcast them."""
        if self.kind != "continuous":
            return
        (width,) = self.sizes
        for name, bounds in (("low", self.low), ("high", self.high)):
            if len(bounds) != width:
                raise ConfigError(
                    f"an action of sizes=({width},) has {name}={list(bounds)}; give one bound for each of its numbers, "
                    f"{'-' if name == 'low' else ''}math.inf where there is none"
                )
        if not all(low <= high for low, high in zip(self.low, self.high, strict=True)):  # NaN is in no order
            raise ConfigError(f"actions {self.values_text}: each low must be at most its high")

    def for_env(self, action: np.ndarray) -> np.ndarray:
        """Actions of a policy, [..., width] or one choice [...], as the environment takes them."""
        if self.start:
            action = action + (self.start[0] if self.kind == "discrete" else np.array(self.start))
        return action if self.shape is None else action.reshape((*action.shape[:-1], *self.shape))

    def same_numbers(self, other: "ActionSpec") -> bool:
        """Whether a policy's numbers mean the same for another action, as float32."""
        bounds = zip(self.float32_bounds, other.float32_bounds, strict=True)
        return (self.kind, self.sizes) == (other.kind, other.sizes) and all(np.array_equal(a, b) for a, b in bounds)

    def to_dict(self) -> dict[str, Any]:
        """A JSON-able dict, with infinite bounds as strings."""
        data = asdict(self) | {"sizes": list(self.sizes)}
        for bound in ("low", "high"):
            data[bound] = [v if abs(v) != math.inf else str(v) for v in data[bound]]
        return _without_defaults(data, start=(), shape=None)

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> "ActionSpec":
        """The inverse of `to_dict`."""
        action = dict(data)
        for bound in ("low", "high"):
            action[bound] = tuple(float(v) for v in action[bound])
        for name in ("sizes", "start", "shape"):
            if name in action:
                action[name] = tuple(int(n) for n in action[name])
        return cls(**action)

    @property
    def values_text(self) -> str:
        """What follows the word actions in a message: `of 4 choices`, or `from [-1.0] to [1.0]`."""
        if self.kind == "continuous":
            return f"from {[*map(_short, self.low)]} to {[*map(_short, self.high)]}"
        return f"of {self.sizes[0] if self.kind == 'discrete' else list(self.sizes)} choices"

    @property
    def float32_bounds(self) -> tuple[np.ndarray, np.ndarray]:
        """`low` and `high` as float32, rounded to the inside where there is a number between them."""
        low, high = np.array(self.low, np.float64), np.array(self.high, np.float64)
        with np.errstate(over="ignore"):
            least, most = low.astype(np.float32), high.astype(np.float32)
        within = np.where(least < low, np.nextafter(least, np.float32(np.inf)), least)
        below = np.where(most > high, np.nextafter(most, np.float32(-np.inf)), most)
        fits = within <= below
        return np.where(fits, within, least), np.where(fits, below, most)

    @property
    def num_parameters(self) -> int:
        """Outputs of a policy head: a logit per choice, or a mean per dimension."""
        return sum(self.sizes)

    @property
    def width(self) -> int:
        """Columns of a batch of actions."""
        return self.sizes[0] if self.kind == "continuous" else len(self.sizes)


@dataclass(frozen=True, slots=True)
class ImagePart:
    """An image among the numbers of a flat observation, channels first. Bytes of images are scaled to [0, 1]."""

    begin: int
    """Index of its first number."""
    shape: tuple[int, int, int]
    """Channels, height and width."""

    @property
    def columns(self) -> slice:
        """Where the image is in a row of numbers."""
        return slice(self.begin, self.begin + math.prod(self.shape))


@dataclass(frozen=True, slots=True)
class EnvSpec:
    """One environment of a task."""

    observation_size: int
    """Numbers of an observation."""
    action: ActionSpec
    autoreset: Literal["next_step", "same_step"]
    """`next_step`: the step after an end resets (its action is ignored, its reward 0).
    `same_step`: the step that ends an episode returns the next one's first observation and a separate final one."""
    separately_seedable: bool
    """Whether every environment takes its own seed; otherwise one seed is used for the batch."""
    reward_threshold: float | None = None
    """Mean return at which the task counts as solved, if defined."""
    max_episode_steps: int | None = None
    """Steps after which an episode is truncated; `None`: no limit."""
    image: tuple[int, int, int] | None = None
    """Channels, height and width of an observation that is a uint8 image; `None`: it is a flat float32 vector."""
    frames: int = 1
    """Consecutive frames in the channels of an image, newest last. Frames before an episode's first are zero."""
    critic_size: int | None = None
    """Numbers of the value network's own ("privileged") observation; `None`: it has the policy's."""
    num_agents: int = 1
    """Rows of an environment, each of an agent; all share the policy. With more than one, see `AgentsEnv`."""
    image_parts: tuple[ImagePart, ...] = ()
    """Images among the numbers of a flat observation, in the order of their columns."""
    critic_image_parts: tuple[ImagePart, ...] = ()
    """Images among the numbers of the value network's own observation."""
    unused_groups: tuple[str, ...] = ()
    """Names of observations that the task has and no network receives; a run prints them."""
    clip_observation: float | None = None
    """Observations are clipped to within this of 0, by `env.clip_observation`; `None`: they are as the task has them.
    Whoever acts on observations of the task itself, as `load_player` and exports do, clips them too."""

    def __post_init__(self) -> None:
        """Refuse a value network without observations, and images that contradict their sizes, or `frames`."""
        if self.critic_size is not None and self.critic_size < 1:
            raise ConfigError(
                f"critic_size={self.critic_size}: the value network would observe nothing; leave it out to give it the "
                "policy's observation"
            )
        if self.image is not None:
            channels, height, width = self.image
            if channels * height * width != self.observation_size or channels % self.frames:
                raise ConfigError(
                    f"an image of {list(self.image)} in {self.frames} frames does not have "
                    f"observation_size={self.observation_size}"
                )
        _check_image_parts("image_parts", self.image_parts, self.observation_size if self.image is None else 0)
        _check_image_parts("critic_image_parts", self.critic_image_parts, self.critic_size or 0)

    @property
    def has_images(self) -> bool:
        """Whether the policy's observation is an image, or numbers with images among them."""
        return self.image is not None or bool(self.image_parts)

    @property
    def observation_shape(self) -> tuple[int, ...]:
        """Shape of one observation."""
        return self.image or (self.observation_size,)

    @property
    def observation_dtype(self) -> type[np.uint8] | type[np.float32]:
        """Bytes for images, else float32."""
        return np.float32 if self.image is None else np.uint8

    def to_dict(self) -> dict[str, Any]:
        """A JSON-able dict, with infinite bounds as strings."""
        data = asdict(self) | {"action": self.action.to_dict()}
        return _without_defaults(data, image_parts=(), critic_image_parts=(), unused_groups=(), clip_observation=None)

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> "EnvSpec":
        """The inverse of `to_dict`."""
        image = data.get("image")
        action = ActionSpec.from_dict(data["action"])
        fields: dict[str, Any] = {**data, "action": action, "image": image and tuple(image)}
        for name in ("image_parts", "critic_image_parts"):
            parts: list[dict[str, Any]] = data.get(name, [])
            fields[name] = tuple(ImagePart(part["begin"], tuple(part["shape"])) for part in parts)
        fields["unused_groups"] = tuple(data.get("unused_groups", ()))
        return cls(**fields)


def _without_defaults(data: dict[str, Any], **defaults: Any) -> dict[str, Any]:
    """Without the entries that have their default, which earlier versions neither write nor read."""
    return {name: value for name, value in data.items() if name not in defaults or value != defaults[name]}


def _short(value: float) -> float:
    """A bound with few digits, for messages."""
    return float(f"{value:.6g}")


def threshold_of(owner: Any, task: str) -> float | None:
    """The `reward_threshold` of a class, an environment or an entry of Gymnasium's registry; `None` if it has none."""
    threshold = getattr(owner, "reward_threshold", None)
    try:
        return None if threshold is None else float(threshold)  # some tasks register an int
    except (TypeError, ValueError):
        raise ConfigError(f"task={task}: reward_threshold={threshold!r} is no number; give one, or None") from None


def number_columns(parts: Sequence[ImagePart], size: int) -> list[slice]:
    """The columns of an observation of `size` numbers that belong to no image."""
    edges = [0, *(edge for part in parts for edge in (part.columns.start, part.columns.stop)), size]
    return [slice(begin, end) for begin, end in zip(edges[::2], edges[1::2], strict=True) if begin < end]


def _check_image_parts(name: str, parts: Sequence[ImagePart], size: int) -> None:
    """Raise `ConfigError` for images that overlap, are not in order, or exceed an observation of `size` numbers."""
    begin = 0
    for part in parts:
        columns = part.columns
        if not begin <= columns.start < columns.stop <= size:
            raise ConfigError(
                f"{name}: an image of {list(part.shape)} at {part.begin} does not fit into the {size} numbers of an "
                "observation, or overlaps the one before"
            )
        begin = columns.stop
