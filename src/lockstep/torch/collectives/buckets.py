"""Gradients summed over ranks in buckets, while the backward pass computes the rest (Li et al., arXiv:2006.15704)."""

from collections.abc import Callable

from torch import Tensor

from lockstep.errors import ConfigError
from lockstep.torch.flat import FlatParameters

StartSum = Callable[[Tensor, bool], Callable[[], object]]


class GradientBuckets:
    """The flat gradient of one local shard, cut into buckets of whole parameters.

    A backward pass computes gradients roughly from the last parameter to the first. Buckets are sent in that order, the
    same on every rank, each once it is full and all before it were sent. The last one is left to the message that has
    the other sums.

    Args:
        flat: the parameters.
        start_sum: starts to add a tensor over ranks, in place, and returns a function that waits for the sum. Its other
            argument: whether this is the first bucket of a backward pass.
        bucket_bytes: the least size of a bucket.

    Attributes:
        started: whether a backward pass is being watched.
    """

    def __init__(self, flat: FlatParameters, start_sum: StartSum, bucket_bytes: int) -> None:
        self.started = False
        self._row = flat.rows[0]
        self._start_sum = start_sum
        self._bucket_of = [0] * len(flat.module_parameters)
        """Of each parameter."""
        self._ends = [flat.num_parameters]
        """Of each bucket: it ends before this number of the row, and begins where the next one ends."""
        begin = flat.num_parameters
        for number, parameter in reversed([*enumerate(flat.module_parameters)]):
            if (self._ends[-1] - begin) * self._row.element_size() >= bucket_bytes:
                self._ends.append(begin)
            self._bucket_of[number] = len(self._ends) - 1
            begin -= parameter.numel()
        self._missing: list[set[int]] = []
        """Of each bucket: parameters whose gradient the backward pass has not computed yet."""
        self._waits: list[Callable[[], object]] = []
        """Of each bucket that was sent."""
        flat.watch(self._computed)

    def start(self) -> None:
        """Watch the next backward pass."""
        self.started = True
        self._waits.clear()
        self._missing = [set() for _ in self._ends]
        for parameter, bucket in enumerate(self._bucket_of):
            self._missing[bucket].add(parameter)

    def stop(self) -> int:
        """End the watch; returns how many gradients, the first ones of the row, are not sent.

        Every rank sends the same buckets: also those of which its backward pass has left out a parameter.
        """
        self.started = False
        while len(self._waits) < len(self._ends) - 1:
            self._send()
        return self._ends[-1]

    def wait(self) -> None:
        """Wait until the buckets that were sent are sums over all ranks; on a GPU its current stream waits."""
        for wait in self._waits:
            wait()

    def _computed(self, parameter: int) -> None:
        """Send the buckets that are full, now that the gradient of a parameter is complete."""
        if not self.started:
            return
        missing = self._missing[self._bucket_of[parameter]]
        if parameter not in missing:
            raise ConfigError(
                "a second backward pass before average_gradients_, whose gradients may have been sent: call "
                "start_gradients_ before the last backward pass only, or leave it out"
            )
        missing.remove(parameter)
        while len(self._waits) < len(self._ends) - 1 and not self._missing[len(self._waits)]:
            self._send()

    def _send(self) -> None:
        """Send the next bucket."""
        bucket = len(self._waits)
        part = self._row[self._ends[bucket + 1] : self._ends[bucket]]
        self._waits.append(self._start_sum(part, bucket == 0))
