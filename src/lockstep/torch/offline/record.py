"""Run a policy in environments and log its decisions with their true probabilities, or densities.

Shapes: B environments, O observation, A actions, D dimensions of a continuous action.
"""

import math
from collections.abc import Mapping
from typing import Any, cast

import numpy as np
import torch

from lockstep.envs.spec import ActionSpec, EnvSpec
from lockstep.errors import ConfigError
from lockstep.experience.acting import Actor
from lockstep.experience.exploration import EpsilonGreedy
from lockstep.experience.rollout import clipper
from lockstep.experience.sampling import NoisyDeterministic
from lockstep.record.run_dir import RUN_FILE
from lockstep.run import load
from lockstep.session.offline import recording as logs
from lockstep.session.offline.policy_spec import as_prepared, bound_margin, least_at_bound
from lockstep.session.offline.recording import Choice, Names, Recording, draw, names_of
from lockstep.session.which_policy import FoundPolicy
from lockstep.torch.distributions import Categorical, SquashedGaussian
from lockstep.torch.export import policy_from
from lockstep.torch.networks import Policy, actor_of
from lockstep.torch.scoring.actor_policy import ActionsOfActor
from lockstep.torch.scoring.offline_policy import OfflinePolicy
from lockstep.world import stream


def record(
    recording: Recording, policy: FoundPolicy, metadata: Mapping[str, Any], arrays: Mapping[str, np.ndarray]
) -> dict[str, Any]:
    """Write the log of a run's policy, as `read_policy` gives it.

    Returns what `lockstep.session.offline.recording.record` does.

    Raises:
        ConfigError: the run cannot be played, or its task or actions cannot be logged.
        RunError: the environment gave a number that is not finite, or an episode does not end.
    """
    source = recording.source
    if policy.run_dir is None:
        raise ConfigError(f"{source} has no run.yaml beside it, which names the task; give a directory below runs/")
    run = load(policy.run_dir / RUN_FILE)
    if run.task is None:
        raise ConfigError(f"{source} learned from a log and has no task to play; train it with --set task=ID")
    loaded, observation_moments = policy_from(policy.path, metadata, arrays)
    return logs.record(
        recording,
        run.task,
        run.env,
        lambda spec: (_by_policy(loaded, observation_moments, spec, recording), _names(spec, loaded)),
    )


def _names(spec: EnvSpec, policy: Any) -> Names:
    """Indices as names. A policy learned from a log uses the names of that log, so that both logs can be combined."""
    numbered = names_of(spec)
    if not isinstance(policy, OfflinePolicy):
        return numbered
    info, numbers = policy.info, numbered.actions
    if numbers is None:
        return Names([*info.state_features], None, [*info.action_features])
    named = numbers if set(numbers) <= set(info.actions) else [*info.actions]
    return Names([*info.state_features], [*info.candidates] or named, numbered.dimensions)


def _by_policy(policy: Any, observation_moments: Any, spec: EnvSpec, recording: Recording) -> Choice:
    """Actions of a run's policy. Its observations are normalized as in training; the log holds them unnormalized."""
    if policy.spec is None or not policy.spec.action.same_numbers(spec.action):
        raise ConfigError(f"the policy of {recording.source} does not fit this task: their actions differ")
    if policy.spec.observation_shape != spec.observation_shape:
        raise ConfigError(
            f"the policy of {recording.source} was trained with observations of {list(policy.spec.observation_shape)}, "
            f"and its task gives {list(spec.observation_shape)}: the environment or its settings (env) have changed"
        )
    if isinstance(policy, Policy) and policy.state_size > 0:
        raise ConfigError(
            f"{recording.source} has a recurrent policy (network.recurrent), whose state a log does not hold; record a "
            "run without one"
        )
    distribution, epsilon = policy.distribution, recording.epsilon
    actor = cast(Actor, actor_of(policy, torch.device("cpu")))
    if epsilon and spec.action.kind != "discrete":
        raise ConfigError(f"--epsilon {epsilon} is for tasks with named actions; leave it out, or use --sampled")
    if recording.how == "sampled":
        _check_draws(distribution, spec.action, recording)
    if isinstance(policy, OfflinePolicy) and recording.how == "sampled":
        _check_density(policy, spec.action, recording)
    clip = clipper(spec.action)
    generator = stream(recording.seed, "record policy")

    def choose(observation: np.ndarray, noise: np.ndarray) -> tuple[np.ndarray, np.ndarray | None]:
        seen = observation if observation_moments is None else observation_moments.normalize(observation)
        parameters = actor(seen)
        if spec.action.kind == "discrete":
            return draw(_probabilities(parameters, distribution, recording), noise)
        if recording.how == "greedy":
            return clip(distribution.mode(parameters)), None
        drawn = distribution.sample(parameters, distribution.draw_noise(generator, parameters.shape[:-1]))
        return clip(drawn), _log_density(distribution, parameters, drawn, spec.action)

    return choose


def _check_draws(distribution: Any, action: ActionSpec, recording: Recording) -> None:
    """Raise `ConfigError` if the algorithm draws nothing: the recording would be that of a greedy policy."""
    if isinstance(distribution, ActionsOfActor):
        draws = not distribution.deterministic
    elif isinstance(distribution, EpsilonGreedy):
        draws = distribution.epsilon > 0
    else:
        draws = not isinstance(distribution, NoisyDeterministic) or distribution.std > 0
    if not draws:
        other = "explore with --epsilon P" if action.kind == "discrete" else "record one with policy=sampled"
        if isinstance(distribution, NoisyDeterministic):
            other = "record one that was trained with exploration_noise above 0"
        raise ConfigError(
            f"--sampled: the policy of {recording.source} always takes its best action; leave --sampled out, or {other}"
        )


def _check_density(policy: OfflinePolicy, action: ActionSpec, recording: Recording) -> None:
    """Raise `ConfigError` if the task would clip numbers that the policy draws: they have the density of others."""
    distribution = policy.distribution
    if not isinstance(distribution, ActionsOfActor) or distribution.deterministic:
        return
    drawn = policy.policy_spec.action_spec
    bounds = zip(*drawn.float32_bounds, *action.float32_bounds, strict=True)
    for k, (least, most, low, high) in enumerate(bounds):
        if least < low or most > high:
            raise ConfigError(
                f"--sampled: {recording.source} draws number {k} of an action from [{least:g}, {most:g}], of which its "
                f"task takes [{low:g}, {high:g}], so that their densities would not be those of what is done; prepare "
                f"its log with --set 'action_bounds=[{low:g}, {high:g}]' and train again, or leave --sampled out"
            )


def _log_density(distribution: Any, parameters: np.ndarray, drawn: np.ndarray, bounds: ActionSpec) -> np.ndarray | None:
    """The log-density [B] of actions [B, D] that are clipped to the bounds after they were drawn.

    Numbers within the bounds have their density; at a bound (`bound_margin`) the probability of all that is clipped or
    rounded to it counts. None: the policy is deterministic.
    """
    if isinstance(distribution, ActionsOfActor):
        return None if distribution.deterministic else distribution.log_prob(parameters, drawn)
    low, high = np.array(bounds.low), np.array(bounds.high)
    if isinstance(distribution, SquashedGaussian):
        scaled, half_range = torch.from_numpy(as_prepared(drawn, bounds)), torch.from_numpy((high - low) / 2)
        at_bound = torch.from_numpy(least_at_bound(bounds))
        return distribution.log_density(torch.from_numpy(parameters), scaled, half_range, at_bound).numpy()
    if isinstance(distribution, NoisyDeterministic) and distribution.std == 0:
        return None
    mean, log_std = (torch.from_numpy(part).double() for part in distribution.mean_and_log_std(parameters))
    margin, certain = bound_margin(bounds), torch.from_numpy(low == high)
    low, high = torch.from_numpy(low + margin), torch.from_numpy(high - margin)
    action, std = torch.from_numpy(drawn).double(), log_std.exp()
    density = -(0.5 * ((action - mean) / std).square() + log_std + 0.5 * math.log(2 * math.pi))
    below = cast(torch.Tensor, torch.special.log_ndtr((low - mean) / std))
    above = cast(torch.Tensor, torch.special.log_ndtr((mean - high) / std))
    density = torch.where(action <= low, below, torch.where(action >= high, above, density))
    return torch.where(certain, 0.0, density).sum(-1).numpy()


def _probabilities(parameters: np.ndarray, distribution: Any, recording: Recording) -> np.ndarray:
    """p(a) [B, A] of the recorded policy, from the outputs of its network [B, A]."""
    scores = parameters.astype(np.float64)
    num_actions = scores.shape[-1]
    uniform = np.full_like(scores, 1 / num_actions)
    best = np.eye(num_actions)[scores.argmax(-1)]
    if recording.how == "greedy":
        return (1 - recording.epsilon) * best + recording.epsilon * uniform
    if isinstance(distribution, Categorical):
        chosen = np.exp(scores - scores.max(-1, keepdims=True))
        return chosen / chosen.sum(-1, keepdims=True)
    assert isinstance(distribution, EpsilonGreedy)
    return (1 - distribution.epsilon) * best + distribution.epsilon * uniform
