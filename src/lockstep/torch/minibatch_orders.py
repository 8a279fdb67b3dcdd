"""The random orders in which PPO's minibatches take the rows of each shard."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from torch import Tensor

from lockstep.algorithms.ppo import PPOConfig
from lockstep.experience.sequences import draw_order
from lockstep.torch.comm import Comm
from lockstep.torch.transfer import to_device
from lockstep.world import stream


class MinibatchOrders:
    """Draws the order of each local shard's rows in every epoch from a stream of the shard's own.

    The orders of an update may be drawn before it begins, while a GPU is busy. A checkpoint has the streams as they are
    without that.

    Args:
        config: epochs, minibatches and steps.
        sequence_length: consecutive steps of an environment that stay together.
        seed: of the run.
        comm: the ranks.
    """

    def __init__(self, config: PPOConfig, sequence_length: int, seed: int, comm: Comm) -> None:
        self._config = config
        self._sequence_length = sequence_length
        self._device = comm.device
        self._streams = [stream(seed, "minibatch", shard) for shard in comm.world.shards]
        self._drawn_ahead = dict[int, tuple[Any, Tensor]]()
        """Of each shard: the state of its stream before it drew the orders of the next update, and these."""

    def take(self, k: int, rows: int) -> Tensor:
        """[E, rows]: the order of local shard `k`'s rows in each epoch of an update."""
        _, ahead = self._drawn_ahead.pop(k, (None, None))
        return self._draw(self._streams[k], rows) if ahead is None else ahead

    def draw_ahead(self, sizes: Sequence[int]) -> None:
        """Draw what `take` will return for the next update, given the rows of each shard."""
        for k, (generator, rows) in enumerate(zip(self._streams, sizes, strict=True)):
            self._drawn_ahead[k] = generator.bit_generator.state, self._draw(generator, rows)

    def _draw(self, generator: np.random.Generator, rows: int) -> Tensor:
        return to_device(draw_order(generator, self._config, self._sequence_length, rows), self._device)

    def state(self, k: int) -> Any:
        """The state of local shard `k`'s stream, from which `take` draws what it would return now."""
        return self._drawn_ahead[k][0] if k in self._drawn_ahead else self._streams[k].bit_generator.state

    def restore(self, k: int, state: Any) -> None:
        """Load `state(k)`."""
        self._streams[k].bit_generator.state = state
        self._drawn_ahead.pop(k, None)
