"""The probabilities of a JAX policy, and the predictions of its models, for logged rows.

Shapes: N rows, S numbers of a state, A named actions, D dimensions of a continuous action, C columns (the reward, then
each metric).
"""

from typing import Any

import jax
import numpy as np
from jax import Array
from numpy.typing import NDArray

from lockstep.data.columns import Ragged
from lockstep.data.packages import import_optional
from lockstep.data.rows import Rows
from lockstep.estimators.trajectories import Floats
from lockstep.jax.flat import Params
from lockstep.jax.scoring import choices
from lockstep.jax.scoring.actor_policy import ActorPolicy
from lockstep.jax.scoring.offline_policy import OfflinePolicy
from lockstep.run import OfflineRun
from lockstep.session.offline.evaluator import MAX_LOG_RATIO, MAX_ROWS, NUM_SAMPLES, Scores
from lockstep.session.offline.policy_spec import least_at_bound
from lockstep.world import stream

_HALF_LOG_TAU = 0.5 * np.log(2 * np.pi)


class PolicyScorer:
    """A policy and its models, as `lockstep.session.offline.evaluator.Scorer`.

    Rows are filled up to `MAX_ROWS`, so that one compilation serves all. After the policy has learned, `load_params`
    makes the newest parameters count.

    Args:
        policy: with the parameters to score by.
        run: the seed of sampled actions.
        device: of the computation.
    """

    def __init__(self, policy: OfflinePolicy, run: OfflineRun, device: Any) -> None:
        self.policy = policy
        self.policy_spec = policy.policy_spec
        self._seed, self._device = run.seed, device
        self.load_params()
        self._named = jax.jit(self._score_named)
        self._continuous = jax.jit(self._score_continuous)

    def load_params(self) -> None:
        """Score by the current parameters of the policy from now on."""
        self._params: Params = jax.device_put(self.policy.params, self._device)

    def score(self, rows: Rows, *, with_ratio: bool, unlogged: NDArray[np.int64]) -> Scores:
        """Score logged rows."""
        if isinstance(self.policy, ActorPolicy):
            return self._continuous_scores(rows, with_ratio)
        return self._named_scores(rows, unlogged)

    def _named_scores(self, rows: Rows, unlogged: NDArray[np.int64]) -> Scores:
        assert not isinstance(rows.possible_actions, Ragged)
        every, index = np.arange(len(rows)), rows.action_index
        found = self._named(self._params, _filled(rows.state), _filled(rows.possible_actions))
        pi, *outcomes = (np.asarray(array, np.float64)[: len(rows)] for array in found)
        predicted: list[Floats] = []
        for outcome in outcomes:
            predicted += [outcome[every, index], np.einsum("na,nac->nc", pi, outcome)]
        return Scores(pi[every, index] / rows.propensity, pi[:, unlogged].sum(1), predicted)

    def _score_named(self, params: Params, state: Array, possible: Array) -> list[Array]:
        """Pi of all actions [N, A], 0 where nothing is possible; and the outcomes of each model [N, A, C]."""
        policy = self.policy
        assert not isinstance(policy, ActorPolicy)
        pi = choices.probability(policy.scores(params, state, possible), possible, policy.config)
        found = [pi * (possible != 0).any(-1, keepdims=True)]
        if policy.has_models:
            found += [policy.outcomes(params, head, state) for head in ("reward", "value")]
        return found

    def _continuous_scores(self, rows: Rows, with_ratio: bool) -> Scores:
        """The ratio of densities, 0, and predictions, where E_pi is a mean over sampled actions."""
        policy = self.policy
        assert isinstance(policy, ActorPolicy)
        count, width = rows.action.shape
        samples = 1 if policy.deterministic else NUM_SAMPLES
        noise = stream(self._seed, "estimate", int(rows.index[0])).standard_normal(
            (samples, count, width), dtype=np.float32
        )
        filled = np.stack([_filled(one) for one in noise])
        parameters, predicted = self._continuous(self._params, _filled(rows.state), _filled(rows.action), filled)
        ratio = np.zeros(count)
        if with_ratio:
            mean, log_std = (np.asarray(array, np.float64)[:count] for array in parameters)
            log_density = self._log_density(mean, log_std, rows.action)
            ratio = np.exp(np.minimum(log_density - rows.propensity, MAX_LOG_RATIO))
        found: list[Floats] = []
        for of_action, of_policy in predicted:
            found.append(np.asarray(of_action, np.float64)[:count])
            found.append(np.asarray(of_policy, np.float64)[:, :count].mean(0))
        return Scores(ratio, np.zeros(count), found)

    def _score_continuous(
        self, params: Params, state: Array, action: Array, noise: Array
    ) -> tuple[tuple[Array, Array], list[tuple[Array, Array]]]:
        """Mean and log standard deviation of the policy; the outcomes of logged and of drawn actions by each model."""
        policy, predicted = self.policy, list[tuple[Array, Array]]()
        assert isinstance(policy, ActorPolicy)
        if policy.has_models:
            drawn = [policy.act(params, state, one) for one in noise]
            for head in ("reward", "value"):
                of_policy = jax.numpy.stack([policy.outcomes(params, head, state, one) for one in drawn])
                predicted.append((policy.outcomes(params, head, state, action), of_policy))
        return policy.mean_and_log_std(params, state), predicted

    def _log_density(self, mean: Floats, log_std: Floats, action: NDArray[np.float32]) -> Floats:
        """The log-density of actions [N, D] as the policy draws them, in the units of the log [N].

        At a bound it is the logarithm of the probability of all numbers there, which has no unit.
        """
        special = import_optional("scipy.special", "offline")
        bounds = self.policy_spec.action_spec
        at_bound = least_at_bound(bounds)
        scaled = (action - mean) * np.exp(-log_std)
        inside = -(0.5 * scaled**2 + log_std + _HALF_LOG_TAU) - np.log(np.subtract(bounds.high, bounds.low) / 2)
        # Standard deviations by which the mean is beyond the first number at the bound.
        outwards = (np.sign(action) * mean - at_bound) * np.exp(-log_std)
        clipped = special.log_ndtr(outwards)
        return np.where(np.abs(action) >= at_bound, clipped, inside).sum(-1)


def _filled(column: NDArray[Any]) -> NDArray[Any]:
    """The column [N, ...] with rows of zeros up to `MAX_ROWS`."""
    filled = np.zeros((MAX_ROWS, *column.shape[1:]), column.dtype)
    filled[: len(column)] = column
    return filled
