"""Gradient steps, acting and rollouts as CUDA graphs (`capture`): the host launches one graph instead of all kernels.

A graph repeats kernels with the addresses and the Python numbers of its recording. What changes between steps is
therefore in tensors that stay: batches are copied into static ones, and learning rates, flags and noise are written in
place. The function that is captured has no effects on Python objects that a replay would have to repeat.
"""

import gc
import sys
from collections import Counter
from collections.abc import Callable, Generator, Hashable, Sequence
from contextlib import contextmanager
from dataclasses import fields, is_dataclass, replace
from functools import partial
from typing import Any, Generic, NamedTuple, Protocol, TypeVar

import torch
from torch import Tensor

from lockstep.algorithms.ppo import PPOConfig
from lockstep.algorithms.sac import SACConfig
from lockstep.algorithms.td3 import TD3Config
from lockstep.errors import RunError
from lockstep.record.journal import Journal
from lockstep.run import AnyRun, Run
from lockstep.torch.batch import RowBatch
from lockstep.torch.comm import Comm
from lockstep.torch.flat import FlatParameters

Accumulated = TypeVar("Accumulated")
Applied = TypeVar("Applied")
Result = TypeVar("Result")
Input = RowBatch | Tensor
Capture = Callable[[Callable[..., Any]], Callable[..., Any]]
"""Makes a CUDA graph of a function of a list of inputs."""
_MAX_STEPS = 256
"""Longer rollouts run without graphs: recording one for each step would take minutes."""
_WARMUPS = 3
"""Calls before a capture: libraries initialize, and `torch.compile` compiles."""


class Graphs(Protocol):
    """Records what functions launch."""

    def warm_up(self, function: Callable[[], Result]) -> Result:
        """Call a function as it will be captured, with its effects."""
        ...

    def capture(
        self, function: Callable[[], Result], generators: Sequence[torch.Generator] = ()
    ) -> tuple[Callable[[], None], Result]:
        """Record a function, without its effects.

        Args:
            function: what to record.
            generators: all that it draws from; each launch draws from them as a call would.

        Returns:
            A function that launches what was recorded, and the result, whose tensors are valid after each launch.
        """
        ...


class CudaGraphs:
    """CUDA graphs, recorded on a stream of their own; they share the memory of what is not part of their results."""

    def __init__(self) -> None:
        self._stream = torch.cuda.Stream()
        self._pool = torch.cuda.graph_pool_handle()

    def warm_up(self, function: Callable[[], Result]) -> Result:
        """Call a function on the stream of the captures."""
        current = torch.cuda.current_stream()
        self._stream.wait_stream(current)
        with torch.cuda.stream(self._stream):
            result = function()
        current.wait_stream(self._stream)
        return result

    def capture(
        self, function: Callable[[], Result], generators: Sequence[torch.Generator] = ()
    ) -> tuple[Callable[[], None], Result]:
        """Record a function. Raises `RunError` if it does what a graph cannot."""
        graph = torch.cuda.CUDAGraph()
        for generator in generators:
            graph.register_generator_state(generator)
        recording = torch.cuda.graph(graph, pool=self._pool, stream=self._stream, capture_error_mode="thread_local")
        current = torch.cuda.current_stream()
        try:
            with _without_garbage_collection(), recording:
                result = function()
        except RuntimeError as error:
            torch.cuda.set_stream(current)  # torch stays on the other one when a capture has failed
            raise RunError(
                f"a step cannot be a CUDA graph ({str(error).splitlines()[0]}); use capture=false, or a network, and "
                "an environment with `capturable = True`, that do not read tensors on the host"
            ) from error
        # A capture writes to the generators' counters on its stream, a launch on the current one.
        current.wait_stream(self._stream)
        return graph.replay, result


@contextmanager
def _without_garbage_collection() -> Generator[None]:
    """An older graph that is freed during a capture makes it invalid."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


class _Captured(NamedTuple):
    replay: Callable[[], None]
    columns: list[Tensor]
    """All tensors of the static inputs."""
    result: Any


class CapturedStep(Generic[Result]):
    """A function of tensors, captured once for each shape of its inputs and each value of its options.

    The first calls of each run without a graph, with all effects. Results are overwritten by the next call.

    Args:
        function: takes a list of inputs, then options.
        graphs: makes the graphs.
        on_failure: called with the reason if the function cannot be captured, which then runs without graphs; None:
            that is an error.
        generators: all that the function draws from.
        max_graphs: inputs of more shapes, or more options, than this are not captured.

    Attributes:
        num_replays: how many calls launched a graph.
    """

    def __init__(
        self,
        function: Callable[..., Result],
        graphs: Graphs,
        on_failure: Callable[[RunError], None] | None = None,
        generators: Sequence[torch.Generator] = (),
        max_graphs: int = 32,
    ) -> None:
        self.num_replays = 0
        self._function = function
        self._graphs = graphs
        self._on_failure = on_failure
        self._generators = generators
        self._max_graphs = max_graphs
        self._failed = False
        self._num_calls = Counter[Hashable]()
        self._captured = dict[Hashable, _Captured]()

    def __call__(self, inputs: Sequence[Input], *options: Hashable) -> Result:
        """The result of the function."""
        if self._failed:
            return self._function(inputs, *options)
        key = (_layout(inputs), options)
        captured = self._captured.get(key)
        if captured is not None:
            torch._foreach_copy_(  # pyright: ignore[reportPrivateUsage, reportPrivateImportUsage]
                captured.columns, _columns(inputs), non_blocking=True
            )
        elif self._num_calls[key] < _WARMUPS:
            if key in self._num_calls or len(self._num_calls) < self._max_graphs:
                self._num_calls[key] += 1
            return self._graphs.warm_up(lambda: self._function(inputs, *options))
        else:
            try:
                captured = self._captured[key] = self._capture(inputs, options)
            except RunError as error:
                if self._on_failure is None:
                    raise
                self._failed = True
                self._on_failure(error)
                return self._function(inputs, *options)
        captured.replay()
        self.num_replays += 1
        return captured.result

    def _capture(self, inputs: Sequence[Input], options: tuple[Hashable, ...]) -> _Captured:
        copies: dict[int, Any] = {}
        static: list[Input] = [_copied(given, copies) for given in inputs]
        replay, result = self._graphs.capture(lambda: self._function(static, *options), self._generators)
        return _Captured(replay, _columns(static), result)


class GradientStep(Generic[Applied, Accumulated]):
    """A gradient step of all ranks together; *collective*, one message.

        accumulate(inputs, *options)                  gradients and sums of the local shards
        sums = comm.average_gradients_(flat)          the mean gradient, equal on all ranks
        apply([sums], *options)                       clips it and takes the optimizer's step

    On a GPU these are CUDA graphs, unless `capture=false` or there is an `obstacle`: one graph of all three in a world
    of one. With several ranks `accumulate` and `apply` are a graph each, and the collective between them is in neither:
    `docs/decisions/0022-collectives-outside-graphs.md`. Without graphs large gradients are sent while the backward pass
    computes the rest (`Comm.start_gradients_`).

    Args:
        run: the config.
        comm: the ranks.
        flat: the gradients.
        accumulate: computes the gradients and sums of all local shards.
        apply: changes the parameters by the mean gradient, given a list with the sums over all shards.
        candidates: whether the policy scores candidates.
    """

    def __init__(
        self,
        run: AnyRun,
        comm: Comm,
        flat: FlatParameters,
        accumulate: Callable[..., Accumulated],
        apply: Callable[..., Applied],
        *,
        candidates: bool = False,
    ) -> None:
        self._comm = comm
        self._flat = flat
        self._accumulate = accumulate
        self._apply = apply
        self._take: Callable[..., tuple[Applied, Accumulated]] = self._accumulate_average_apply
        captured = obstacle(run, comm, flat, candidates=candidates) is None
        graphs = graphs_on(comm.device) if captured else None
        self._sends_early = graphs is None
        if graphs is None:
            return
        on_failure = _on_failure(run, comm, "gradient steps run")
        if comm.world.size == 1:
            self._take = CapturedStep(self._accumulate_average_apply, graphs, on_failure)
        else:
            self._accumulate = CapturedStep(accumulate, graphs, on_failure)
            self._apply = CapturedStep(apply, graphs, on_failure)

    def __call__(self, inputs: Sequence[Input], *options: Hashable) -> tuple[Applied, Accumulated]:
        """Take one step.

        Args:
            inputs: tensors and batches of tensors, for `accumulate`.
            options: of `accumulate` and of `apply`; there is a graph for each value of them.

        Returns:
            What `apply` returns, and what `accumulate` returns. The next step overwrites the tensors.
        """
        return self._take(inputs, *options)

    def _accumulate_average_apply(self, inputs: Sequence[Input], *options: Hashable) -> tuple[Applied, Accumulated]:
        if self._sends_early:
            self._comm.start_gradients_(self._flat)
        accumulated = self._accumulate(inputs, *options)
        return self._apply([self._comm.average_gradients_(self._flat)], *options), accumulated


def capture_rollout(run: Run, comm: Comm, num_steps: int) -> "Callable[..., CapturedStep[Any]] | None":
    """What captures the functions of a rollout's steps; None where they run without graphs.

    Args:
        run: the config.
        comm: the ranks.
        num_steps: of a rollout; each has a graph of its own, so that long ones are not captured.
    """
    graphs = _graphs_of_acting(run, comm) if num_steps <= _MAX_STEPS else None
    if graphs is None:
        return None
    on_failure = _on_failure(run, comm, "steps of rollouts run")
    # Twice: observations are not normalized before the first update.
    return partial(CapturedStep, graphs=graphs, on_failure=on_failure, max_graphs=2 * num_steps)


def capture_acting(journal: Journal, run: Run, comm: Comm) -> Capture | None:
    """What captures acting in environments on the host, and says so; None where acting runs without a graph."""
    graphs = _graphs_of_acting(run, comm)
    if graphs is None:
        return None
    journal.say("capture: acting is a CUDA graph")
    return partial(CapturedStep, graphs=graphs, on_failure=_on_failure(run, comm, "acting runs"))


def _graphs_of_acting(run: Run, comm: Comm) -> Graphs | None:
    """What makes the graphs; None where the policy's forward pass is not captured."""
    own_code = run.capture is None and run.network.module is not None
    return None if run.capture is False or own_code else graphs_on(comm.device)


def _on_failure(run: AnyRun, comm: Comm, what: str) -> Callable[[RunError], None] | None:
    """What prints on rank 0 why steps are not captured; None with `capture=true`, where that is an error.

    Only an attempt shows it, after the lines of the start.
    """

    def say(error: RunError) -> None:
        if comm.world.rank == 0:
            print(f"lockstep: note: {what} without CUDA graphs: {error.__cause__}", file=sys.stderr)

    return None if run.capture else say


def graphs_on(device: torch.device) -> Graphs | None:
    """What makes the graphs of a device; None on a CPU."""
    return CudaGraphs() if device.type == "cuda" else None


def obstacle(run: AnyRun, comm: Comm, flat: FlatParameters, *, candidates: bool = False) -> str | None:
    """Why gradient steps of these settings are not captured; None if they are.

    Args:
        run: the config.
        comm: the ranks.
        flat: the gradients.
        candidates: whether the policy scores candidates.
    """
    config = run.algorithm
    if run.capture is False:
        return "capture=false"
    if run.capture is None and (own_code := _own_code(run)):
        return f"{own_code} may do in Python what a graph does not repeat; if it does not, capture=true is faster"
    if run.capture is None and comm.overlaps_gradients(flat):
        return (
            "gradients this large are sent while the backward pass computes the rest; a graph would send them after it"
        )
    if isinstance(config, PPOConfig) and config.kl_reference == "previous_epoch":
        return "kl_reference=previous_epoch writes into the minibatches"
    if isinstance(config, SACConfig | TD3Config) and config.dropout > 0:
        return "dropout seeds its generator for each minibatch"
    if candidates:
        return "rows have different numbers of candidates"
    return None


def _own_code(run: AnyRun) -> str | None:
    """The setting by which code of the user is part of a gradient step."""
    if isinstance(run, Run) and run.network.module is not None:
        return "network.module"
    return "symmetry" if isinstance(run.algorithm, PPOConfig) and run.algorithm.symmetry is not None else None


def announce_capture(
    journal: Journal, run: AnyRun, comm: Comm, flat: FlatParameters, *, candidates: bool = False
) -> None:
    """Print what is captured in this run, or why `capture=true` has no effect."""
    on_gpu = graphs_on(comm.device) is not None
    if run.capture is False or (run.capture is None and not on_gpu):
        return
    reason = obstacle(run, comm, flat, candidates=candidates) if on_gpu else "CUDA graphs need a GPU"
    if reason is not None and run.capture:
        journal.warn(f"capture=true has no effect on gradient steps: {reason}")
    elif reason is not None:
        journal.say(f"capture: gradient steps are no CUDA graphs: {reason}")
    elif comm.world.size > 1:
        journal.say("capture: a gradient step is two CUDA graphs, with the collective between them")
    else:
        journal.say("capture: gradient steps are CUDA graphs")


def _columns(inputs: Sequence[Input]) -> list[Tensor]:
    """All tensors of the inputs, in order."""
    return [column for given in inputs for column in _named(given).values()]


def _named(given: Input) -> dict[str, Tensor]:
    return {"": given} if isinstance(given, Tensor) else given.columns()


def _layout(inputs: Sequence[Input]) -> Hashable:
    """Names, shapes and types of all tensors, and which of the inputs are the same object."""
    first = {id(given): i for i, given in reversed(list(enumerate(inputs)))}
    return tuple(
        (first[id(given)], *((name, column.shape, column.dtype) for name, column in _named(given).items()))
        for given in inputs
    )


def _copied(value: Any, copies: dict[int, Any]) -> Any:
    """A copy of all tensors of a value; what occurs twice is copied once."""
    if id(value) in copies:
        return copies[id(value)]
    if isinstance(value, Tensor):
        copied = value.clone()
    elif is_dataclass(value) and not isinstance(value, type):
        copied = replace(value, **{field.name: _copied(getattr(value, field.name), copies) for field in fields(value)})
    else:
        copied = value
    copies[id(value)] = copied
    return copied
