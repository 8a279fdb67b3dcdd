"""Global counters of a run, over all ranks."""

from dataclasses import asdict, dataclass


@dataclass(slots=True)
class Progress:
    """The progress of a run, equal on all ranks: each is advanced by global counts."""

    total_steps: int
    """Environment steps of the whole run, over all ranks; offline: logged rows."""
    env_steps: int = 0
    """Environment steps so far, over all ranks; offline: logged rows."""
    updates: int = 0
    """Updates of the learner: one per rollout; offline: one per minibatch."""
    episodes: int = 0
    """Episodes ended, all ranks."""

    @property
    def finished(self) -> bool:
        """Whether the run has taken all its steps."""
        return self.env_steps >= self.total_steps

    @property
    def fraction(self) -> float:
        """Fraction of the run that is done, in [0, 1]."""
        return min(self.env_steps / self.total_steps, 1.0)

    def due(self, every: int | None, advanced: int) -> bool:
        """Whether a period of `every` environment steps ended within the last `advanced` ones. `None`: never."""
        return every is not None and self.env_steps // every > (self.env_steps - advanced) // every

    def state(self) -> dict[str, int]:
        """All counters, for `Progress(**state)`."""
        return asdict(self)
