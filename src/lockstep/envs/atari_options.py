"""`env.kwargs` of an Atari game."""

from dataclasses import dataclass

from lockstep.errors import ConfigError


@dataclass(frozen=True, slots=True, kw_only=True)
class AtariOptions:
    """`env.kwargs` of an Atari game, named as in `ale_py.AtariVectorEnv`."""

    frameskip: int = 4
    """Console frames per action."""
    repeat_action_probability: float = 0.0
    """Sticky actions: probability per frame that the console repeats the previous action; default: by the task's id."""
    noop_max: int = 30
    """A game starts with a random number of no-op frames below this."""
    use_fire_reset: bool = True
    """Press FIRE at the start of a game, and with `episodic_life` at the start of a life."""
    maxpool: bool = True
    """Take the maximum of the last two frames, because some games draw objects in every other frame only."""
    img_height: int = 84
    """Pixels."""
    img_width: int = 84
    """Pixels."""
    grayscale: bool = True
    """One channel per frame instead of three."""
    stack_num: int = 4
    """Frames per observation, one per step."""
    full_action_space: bool = False
    """All 18 joystick actions, including those without an effect in the game."""
    episodic_life: bool = True
    """Whether an episode ends with a life, in training; evaluation plays whole games."""
    reward_clipping: bool = True
    """Whether rewards are reduced to their sign, in training; evaluation uses the game's score."""

    def __post_init__(self) -> None:
        """Refuse invalid values."""
        for name in ("frameskip", "img_height", "img_width", "stack_num"):
            if getattr(self, name) < 1:
                raise ConfigError(f"env.kwargs {name}={getattr(self, name)} must be at least 1")
        if self.noop_max < 0:
            raise ConfigError(f"env.kwargs noop_max={self.noop_max} must not be negative")
        if not 0 <= self.repeat_action_probability <= 1:
            raise ConfigError(
                f"env.kwargs repeat_action_probability={self.repeat_action_probability} must be a probability, "
                "from 0 to 1"
            )
