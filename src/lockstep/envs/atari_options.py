"""What `env.kwargs` can say of an Atari game."""

from dataclasses import dataclass

from lockstep.errors import ConfigError


@dataclass(frozen=True, slots=True, kw_only=True)
class AtariOptions:
    """What `env.kwargs` can say of a game; the names are those of `ale_py.AtariVectorEnv`."""

    frameskip: int = 4
    """Frames of the console that an action lasts."""
    repeat_action_probability: float = 0.0
    """At each frame, that the console goes on with the action before ("sticky"); default: what the task's id says."""
    noop_max: int = 30
    """A game begins with fewer than this many frames without an action, how many is drawn."""
    use_fire_reset: bool = True
    """Press FIRE where a game begins, and with `episodic_life` where a life does."""
    maxpool: bool = True
    """Show the brighter of the last two frames: some consoles draw things every other frame only."""
    img_height: int = 84
    """Pixels."""
    img_width: int = 84
    """Pixels."""
    grayscale: bool = True
    """One channel per frame instead of three."""
    stack_num: int = 4
    """Frames that are seen at once, one per step."""
    full_action_space: bool = False
    """All 18 actions of the joystick, also those that the game does not know."""
    episodic_life: bool = True
    """Whether an episode ends with a life, in training; evaluation plays whole games."""
    reward_clipping: bool = True
    """Whether a reward is only its sign, in training; evaluation counts the game's own points."""

    def __post_init__(self) -> None:
        """Refuse what no console can do."""
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
