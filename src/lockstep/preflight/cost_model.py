"""A cost model of one update, which predicts the speed of a run on another number of ranks and hosts.

An update is a rollout, gradient steps and messages. Computation has a fixed cost per call and a cost per row; ranks
that share a core take turns. A message has a fixed cost, a cost for every other rank of the host and for every other
host, the latency of the network (half a round trip) for each pass through `lockstep.distributed.network.links`, and the
transfer time of its bytes. Nothing overlaps: ranks compute, then wait for each other.

The model ignores evaluations and checkpoints, environments of unequal speed, stragglers (of a thousand ranks the
slowest decides), and other resources that hosts or ranks share.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from statistics import fmean, linear_regression

from lockstep.distributed.network.links import in_slices
from lockstep.errors import ConfigError
from lockstep.run import Run

_LOCAL_RANK_S = 40e-6  # through shared memory, on an idle machine; where only the whole was measured
_SLOWER = 0.98  # one host must be better by more than what a prediction can tell


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """The computation of one update, over all ranks."""

    num_envs: int
    num_steps: int
    """Steps of each environment in a rollout."""
    replay_ratio: float
    """How often a transition is learned from, on average: PPO's `num_epochs`."""
    gradient_steps: float
    """Mean per update."""
    num_bytes: int
    """Bytes of one message of gradients, from one rank."""
    num_shards: int | None = None
    """Pinned number of shards; None: one per rank."""
    more_steps: bool = False
    """Whether a larger `num_envs` means more gradient steps, as with a replay, instead of larger minibatches."""

    @classmethod
    def of(cls, run: Run, num_bytes: int, num_shards: int | None = None) -> "Work":
        """The work of a config; `num_bytes` of a message of gradients (four per parameter), `num_shards` if resumed."""
        c, gradient_steps = run.algorithm, run.algorithm.gradient_steps(run.num_envs)
        return cls(
            num_envs=run.num_envs,
            num_steps=c.num_steps,
            replay_ratio=gradient_steps * c.minibatch_rows(run.num_envs, 1) / (run.num_envs * c.num_steps),
            gradient_steps=gradient_steps,
            num_bytes=num_bytes,
            num_shards=run.num_shards or num_shards,
            more_steps=c.gradient_steps(2 * run.num_envs) > gradient_steps,
        )

    def with_envs(self, num_envs: int) -> "Work":
        """The same with another number of environments."""
        factor = num_envs / self.num_envs if self.more_steps else 1.0
        return replace(self, num_envs=num_envs, gradient_steps=factor * self.gradient_steps)

    @property
    def steps(self) -> int:
        """Environment steps of one update."""
        return self.num_envs * self.num_steps

    @property
    def messages(self) -> float:
        """Messages of one update: one for each gradient step, and one for the statistics before."""
        return self.gradient_steps + 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """The ranks and hosts that compute it, and the network between them."""

    ranks: int
    hosts: int = 1
    cores: float | None = None
    """Usable cores of a host; None: enough."""
    round_trip_s: float = 0.0
    """Between two hosts."""
    bandwidth: float | None = None
    """Bytes per second that a host can send; None: not counted."""

    def __post_init__(self) -> None:
        if not 1 <= self.hosts <= self.ranks:
            raise ConfigError(f"hosts={self.hosts} must be at least 1 and at most ranks={self.ranks}")

    @property
    def ranks_per_host(self) -> int:
        """Ranks of the fullest host."""
        return math.ceil(self.ranks / self.hosts)

    @property
    def turns(self) -> float:
        """How many ranks share a core."""
        return max(1.0, self.ranks_per_host / self.cores) if self.cores else 1.0

    def on_one_host(self) -> "Layout":
        """One of the hosts alone."""
        return replace(self, ranks=self.ranks_per_host, hosts=1, round_trip_s=0.0, bandwidth=None)


@dataclass(frozen=True, slots=True, kw_only=True)
class Costs:
    """Costs in seconds; not negative."""

    step_call: float = 0.0
    """Per step of one shard, acting included, whatever its number of environments."""
    step_row: float = 0.0
    """Per environment in such a step."""
    gradient_call: float = 0.0
    """Per gradient step of one shard."""
    gradient_row: float = 0.0
    """Per transition in a gradient step."""
    update: float = 0.0
    """Per update, for its other parts: values, advantages, logs."""
    local_message: float = 0.0
    """Per message within a host."""
    local_rank: float = 0.0
    """Per other rank of the host, for each message: its numbers are read and added."""
    host_message: float = 0.0
    """Per pass of a message between hosts, without latency."""
    host_peer: float = 0.0
    """Per other host, for each such pass."""
    round_trips: float = 0.5
    """Latency of a pass, not in seconds but in round trips of the network."""


ROLLOUT, LEARNING, MESSAGES = "rollout", "learning", "messages"
PARTS: dict[str, tuple[str, ...]] = {
    ROLLOUT: ("step_call", "step_row"),
    LEARNING: ("gradient_call", "gradient_row", "update"),
    MESSAGES: ("local_message", "local_rank", "host_message", "host_peer", "round_trips"),
}
"""The parts of an update, and the costs of each."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Prediction:
    """Seconds of one update, by part."""

    steps: int
    rollout: float
    learning: float
    local_messages: float
    host_messages: float
    transfer: float

    @property
    def seconds(self) -> float:
        """Of one update."""
        return self.rollout + self.learning + self.local_messages + self.host_messages + self.transfer

    @property
    def steps_per_second(self) -> float:
        """Environment steps, all ranks together."""
        return self.steps / self.seconds

    @property
    def bound(self) -> str:
        """The part that takes most of the time."""
        parts = {
            "environments": self.rollout,
            "learning": self.learning,
            "messages within a host": self.local_messages,
            "messages between hosts": self.host_messages,
            "bandwidth": self.transfer,
        }
        return max(parts, key=lambda name: parts[name])


def exchange(hosts: int, num_bytes: int) -> tuple[int, float]:
    """The passes of a message of `num_bytes` through the network, and how often a host sends its size in all."""
    if in_slices(hosts, num_bytes):
        return 2, 2 * (hosts - 1) / hosts
    return int(hosts > 1), hosts - 1


def predict(costs: Costs, work: Work, layout: Layout) -> Prediction:
    """One update of `work` on `layout`."""
    amounts = amounts_of(work, layout)
    seconds = {name: amounts[name] * getattr(costs, name) for name in amounts}
    return Prediction(
        steps=work.steps,
        rollout=sum(seconds[name] for name in PARTS[ROLLOUT]),
        learning=sum(seconds[name] for name in PARTS[LEARNING]),
        local_messages=seconds["local_message"] + seconds["local_rank"],
        host_messages=seconds["host_message"] + seconds["host_peer"] + seconds["round_trips"],
        transfer=transfer_s(work, layout),
    )


def amounts_of(work: Work, layout: Layout) -> dict[str, float]:
    """The multiplicity of each cost in one update, for the rank with most work."""
    num_shards = work.num_shards or layout.ranks
    if num_shards < layout.ranks:
        raise ConfigError(f"num_shards={num_shards} is fewer than ranks={layout.ranks}")
    shards, turns = math.ceil(num_shards / layout.ranks), layout.turns
    rows = shards * work.num_envs / num_shards * work.num_steps
    trips, _ = exchange(layout.hosts, work.num_bytes)
    neighbours, peers = layout.ranks_per_host - 1, layout.hosts - 1
    return {
        "step_call": turns * shards * work.num_steps,
        "step_row": turns * rows,
        "gradient_call": turns * shards * work.gradient_steps,
        "gradient_row": turns * rows * work.replay_ratio,
        "update": turns,
        "local_message": turns * work.messages * (neighbours > 0),
        "local_rank": turns * work.messages * neighbours,
        "host_message": turns * work.messages * trips,
        "host_peer": turns * work.messages * trips * peers,
        "round_trips": work.messages * trips * layout.round_trip_s,
    }


def transfer_s(work: Work, layout: Layout) -> float:
    """Seconds of an update for which a host's link is busy; 0 if its bandwidth is unknown."""
    _, sent = exchange(layout.hosts, work.num_bytes)
    return work.messages * sent * work.num_bytes / layout.bandwidth if layout.bandwidth else 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """The ranks of several hosts, and one of these hosts alone with the whole work."""

    here: Prediction
    one_host: Prediction
    advice: str | None
    """The advice if one host alone would be faster."""


def compare(costs: Costs, work: Work, layout: Layout) -> Comparison:
    """Whether several hosts are worth their messages."""
    here, alone = predict(costs, work, layout), predict(costs, work, layout.on_one_host())
    between = here.host_messages + here.transfer
    advice = None
    larger = (
        "fewer updates_per_step with a larger batch_size"
        if work.more_steps
        else "a larger num_envs or num_steps, fewer num_minibatches or num_epochs"
    )
    if layout.hosts > 1 and here.steps_per_second < _SLOWER * alone.steps_per_second:
        advice = (
            f"more nodes are slower here: {work.messages:g} messages per update x "
            f"{between / work.messages * 1e3:.3g} ms = {between * 1e3:.3g} ms between hosts, against "
            f"{(here.seconds - between) * 1e3:.3g} ms of work; "
            f"{layout.hosts} hosts would do {here.steps_per_second:.0f} steps/s, one of them alone "
            f"{alone.steps_per_second:.0f}; use one node, or more work per message: {larger}"
        )
    return Comparison(here=here, one_host=alone, advice=advice)


def fit_call_and_row_cost(samples: Sequence[tuple[float, float]]) -> tuple[float, float]:
    """Fit the seconds of a call and of each of its rows to measured calls, `(rows, seconds)`; neither is negative.

    If all calls have the same number of rows, their time is taken as the cost of a call.
    """
    rows, seconds = zip(*samples, strict=True)
    mean_rows, mean_s = fmean(rows), fmean(seconds)
    slope = linear_regression(rows, seconds).slope if len(set(rows)) > 1 else 0.0
    slope = min(max(slope, 0.0), mean_s / mean_rows)
    return mean_s - slope * mean_rows, slope


def measured(
    layout: Layout,
    steps: Sequence[tuple[float, float]],
    gradients: Sequence[tuple[float, float]],
    message_s: float,
) -> tuple[Costs, Layout]:
    """Costs and layout from a few quick measurements, such as a preflight takes.

    `steps` are `(environments, seconds)` of one step of a shard, acting included; `gradients` are `(transitions,
    seconds)` of a gradient step without its message; `message_s` is the time of a small sum over all ranks.
    """
    step_call, step_row = fit_call_and_row_cost(steps)
    gradient_call, gradient_row = fit_call_and_row_cost(gradients)
    neighbours = layout.ranks_per_host - 1
    local = message_s / neighbours if layout.hosts == 1 and neighbours else _LOCAL_RANK_S
    between = max(message_s - local * neighbours, 0.0) if layout.hosts > 1 else 0.0  # a small one goes once
    costs = Costs(
        step_call=step_call,
        step_row=step_row,
        gradient_call=gradient_call,
        gradient_row=gradient_row,
        local_rank=local,
    )
    return costs, replace(layout, round_trip_s=between / costs.round_trips)
