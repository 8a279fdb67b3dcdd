"""The gradient step of the algorithms on logged data: several networks, one message, one optimizer step.

Shapes: K shards of this process, L slots of a device, N rows of a shard's part of a minibatch, P parameters, of which
the first T have target networks.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, Self, cast

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from lockstep.jax.adam import Adam, AdamState, clip_by_global_norm
from lockstep.jax.batch import slots
from lockstep.jax.comm import Comm
from lockstep.jax.flat import FlatParameters, Params, divisor, subtree, with_prefix
from lockstep.jax.offline.batch import Part
from lockstep.jax.sgd import Sgd, SgdState
from lockstep.record.metric_means import MetricMeans
from lockstep.record.progress import Progress
from lockstep.run import OfflineRun

STEP_METRICS = ("optim/grad_norm", "optim/skipped", "optim/learning_rate", "data/epoch")
Loss = Callable[[Params, Params, Part], tuple[Array, Array]]
"""From all parameters, those of the target networks, and a part, to the weighted sum of the losses, and sums."""


class State(NamedTuple):
    """Parameters and optimizer state."""

    params: Array
    """All parameters [P]."""
    target_params: Array
    """Parameters of the target networks [T]."""
    optimizer: AdamState | SgdState
    learning_rate: Array

    def named(self, flat: FlatParameters, flat_target: FlatParameters) -> dict[str, np.ndarray]:
        """The state that a checkpoint holds, as host arrays by name."""
        named = with_prefix("policy", flat.split(self.params))
        named |= with_prefix("target", flat_target.split(self.target_params))
        named |= with_prefix("optimizer", self.optimizer._asdict()) | {"learning_rate": self.learning_rate}
        return {name: np.asarray(array) for name, array in named.items()}

    def loaded(self, flat: FlatParameters, flat_target: FlatParameters, arrays: Mapping[str, np.ndarray]) -> Self:
        """The state with the entries of `arrays`, named as in `named`, replaced; on the host."""
        before = self.named(flat, flat_target)
        merged = {name: np.asarray(arrays.get(name, old), old.dtype) for name, old in before.items()}
        named = cast(Params, merged)  # numpy arrays, for `Comm.replicate`
        return self._replace(
            params=flat.join(subtree(named, "policy")),
            target_params=flat_target.join(subtree(named, "target")),
            optimizer=type(self.optimizer)(**subtree(named, "optimizer")),
            learning_rate=named["learning_rate"],
        )


class OfflineOptimizer:
    """All parameters of a policy, its target networks, and one optimizer, in one compiled gradient step.

    The networks share no parameters, and each has its own loss: the gradient of the sum of the losses is the gradient
    of each loss for its own network.

    Args:
        run: the config.
        params: all parameters, equal on all ranks.
        comm: the ranks.
        loss: returns the weighted sum of the losses of all networks over rows [N], and `num_sums` sums.
        followed: the networks with targets. The gradient of the first is clipped, and its norm logged.
        num_sums: the number of sums; the first is the weight of the rows.
        score_weight_index: index of the sum that is the rows' weight in the loss of the first of `followed`.

    Attributes:
        flat: layout of all parameters, those of `followed` first.
        flat_target: layout of the parameters of the target networks.
        state: on the devices.
    """

    def __init__(
        self,
        run: OfflineRun,
        params: Params,
        comm: Comm,
        loss: Loss,
        *,
        followed: Sequence[str],
        num_sums: int,
        score_weight_index: int = 0,
    ) -> None:
        c = run.algorithm
        self.config = c
        self.comm = comm
        self._loss = loss
        self._epochs = run.epochs
        self._num_sums = num_sums
        self._score_weight_index = score_weight_index
        networks = [with_prefix(name, subtree(params, name)) for name in followed]
        self.flat = FlatParameters(params, first=followed)
        self.flat_target = FlatParameters({k: v for network in networks for k, v in network.items()}, first=followed)
        self._num_scores = FlatParameters(networks[0]).num_parameters
        self._optimizer = Adam(c.adam_eps) if c.optimizer == "adam" else Sgd()
        self._step_spmd = comm.spmd(self.step)
        self._copy = comm.spmd(self._copied, donate=False)
        self._split = jax.jit(self.flat.split)
        flat_params = self.flat.join(params)
        rate = jnp.asarray(c.learning_rate, jnp.float32)
        start = State(flat_params, self.flat_target.join(params), self._optimizer.init(flat_params), rate)
        self.state: State = comm.replicate(start)
        self._rate = np.float32(c.learning_rate)
        self._epoch = 0.0

    def learn(
        self, parts: Sequence[Part], caller_sums: np.ndarray, progress: Progress
    ) -> tuple[np.ndarray, np.ndarray, bool]:
        """Take one gradient step on every shard's part of a minibatch; *collective*, one message.

        Args:
            parts: one for each local shard.
            caller_sums: [K, I] further numbers to sum over all shards.
            progress: of the run, before this step.

        Returns:
            The sums over all shards, the gradient norm and whether the step was skipped [num_sums + 2] (all but the
            last are 0 if it was); `caller_sums` over all shards [I]; whether the step was skipped.
        """
        self._schedule(progress)
        own = self.comm.shard(list(zip(parts, caller_sums.astype(np.float32), strict=True)))
        (self.state, summed), _ = self._step_spmd(self.state, own)
        # The only host sync of a step: the caller's sums carry the flag of a signal to stop.
        totals = self.comm.read(summed).astype(np.float64)
        count = self._num_sums + 2
        return totals[:count], totals[count:], bool(totals[count - 1])

    def _schedule(self, progress: Progress) -> None:
        """Set the learning rate of the next step."""
        c, rate = self.config, self.config.learning_rate
        self._epoch = progress.env_steps * self._epochs / progress.total_steps
        if c.learning_rate_schedule == "linear":
            rate *= 1.0 - progress.fraction
        elif c.learning_rate_schedule == "exponential":
            rate *= c.learning_rate_decay ** int(self._epoch)
        if np.float32(rate) != self._rate:
            self._rate = np.float32(rate)
            self.state = self.state._replace(learning_rate=self.comm.replicate(self._rate))

    def step(self, state: State, own: tuple[Part, Array]) -> tuple[tuple[State, Array], tuple[()]]:
        """Take one gradient step; a no-op if any number is not finite.

        Also returns the sums over all shards, the gradient norm, whether the step was skipped, and the caller's sums.
        """
        c, end = self.config, self.flat.num_parameters
        rows = [self.shard_sums(state, *slot) for slot in slots(own, self.comm.num_slots)]
        total = self.comm.sum_shards(jnp.stack(rows), "average_gradients")
        gradient, sums, extra = jnp.split(total, [end, end + self._num_sums])
        of_scores, of_others = jnp.split(gradient, [self._num_scores])
        # Products, as XLA divides a vector by a number in one layout and multiplies by the inverse in another.
        of_scores, of_others = of_scores * (1.0 / divisor(sums[self._score_weight_index])), of_others * (1.0 / sums[0])
        of_scores, norm = clip_by_global_norm(of_scores, c.max_grad_norm)
        gradient = jnp.concatenate([of_scores, of_others])
        if c.l2_decay:
            gradient = gradient + c.l2_decay * state.params
        totals = jnp.concatenate([sums, jnp.stack([norm, jnp.zeros_like(norm)])])
        # Without barriers programs of different layouts may fuse these products with the sums of Adam or not, and round
        # differently.
        gradient, totals = jax.lax.optimization_barrier((gradient, totals))
        skipped = ~(jnp.isfinite(totals).all() & jnp.isfinite(of_others).all())
        params, optimizer = cast(Any, self._optimizer).step(
            state.optimizer, state.params, gradient, state.learning_rate, skipped
        )
        moved = state.target_params + c.target_rate * (params[: self.flat_target.num_parameters] - state.target_params)
        if_skipped = jnp.zeros_like(totals).at[-1].set(1.0)
        after = State(
            params=params,
            target_params=jnp.where(skipped, state.target_params, moved),
            optimizer=optimizer,
            learning_rate=state.learning_rate,
        )
        return (after, jnp.concatenate([jnp.where(skipped, if_skipped, totals), extra])), ()

    def shard_sums(self, state: State, part: Part, extra: Array) -> Array:
        """One shard's contribution to a step: its gradient sum [P], its sums, and those of the caller."""
        # The barriers isolate the shard's computation: other shards on this device must not change its bits.
        flat_params, target, part = jax.lax.optimization_barrier((state.params, state.target_params, part))
        params, targets = self.flat.split(flat_params), self.flat_target.split(target)
        gradient, sums = jax.grad(self._loss, has_aux=True)(params, targets, part)
        return jax.lax.optimization_barrier(jnp.concatenate([self.flat.join(gradient), sums, extra]))

    def copy_to_target(self) -> None:
        """Copy the followed networks into their targets."""
        self.state, _ = self._copy(self.state, ())

    def _copied(self, state: State, own: tuple[()]) -> tuple[State, tuple[()]]:
        return state._replace(target_params=jnp.copy(state.params[: self.flat_target.num_parameters])), own

    def params(self) -> Params:
        """Copies of the current parameters by name, on the first local device."""
        return self._split(self.comm.local(self.state.params))

    def warmup(self, parts: Sequence[Part], num_extra: int) -> None:
        """Compile the gradient step, without changing the state; *collective*."""
        own = self.comm.shard([(part, np.zeros(num_extra, np.float32)) for part in parts])
        copy = self.comm.replicate(self.comm.read(self.state))
        self._step_spmd(copy, own)
        self.params()

    def add_metrics(self, metrics: MetricMeans, totals: np.ndarray) -> None:
        """Add `STEP_METRICS`, from the first result of `learn`."""
        metrics.add(STEP_METRICS[:1], totals[-2:-1], 1.0 - totals[-1])
        metrics.add(STEP_METRICS[1:], [totals[-1], float(self._rate), self._epoch], 1.0)

    def named(self) -> dict[str, np.ndarray]:
        """Copies of the state that is equal on all ranks, by name."""
        return self.comm.read(self.state).named(self.flat, self.flat_target)

    def load(self, arrays: Mapping[str, np.ndarray]) -> None:
        """Load the result of `named`, or a part of it."""
        self.state = self.comm.replicate(self.comm.read(self.state).loaded(self.flat, self.flat_target, arrays))
        self._rate = np.float32(self.comm.read(self.state.learning_rate))
