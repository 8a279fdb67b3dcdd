"""One shard of environments on torch tensors: its buffers of a rollout, its steps and its episodes.

Shapes: T steps, B environments, O and C numbers of the policy's and of the critic's observation, E episodes that ended
in a rollout.
"""

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from lockstep.envs.spec import ActionSpec
from lockstep.experience.rollout import NonFiniteValue, Rollout, find_non_finite
from lockstep.torch.batch import EvaluatedRollout
from lockstep.torch.envs.capturable import can_capture, steps_in_place
from lockstep.torch.envs.interface import (
    Observation,
    TensorVectorEnv,
    check_step,
    no_final_observation,
)
from lockstep.torch.envs.saved_tensors import to_arrays
from lockstep.torch.moments import DeviceMoments
from lockstep.torch.networks import Policy
from lockstep.torch.recurrent import Sequences, finite_state
from lockstep.torch.transfer import to_device


@dataclass(slots=True)
class TensorRollout:
    """One shard's consecutive steps on the device. Tensors are reused by the next rollout."""

    evaluated: EvaluatedRollout
    normalizer_sums: np.ndarray
    """Of this shard, for `Normalizers.update_statistics`."""
    fault: NonFiniteValue | None
    """The first number from an environment that is not finite; None if all are."""
    to_host: Callable[[], Rollout]
    """Copies everything to the host, for error reports."""


class TensorEpisodes:
    """Returns and lengths of a shard's episodes, computed on the device; see `lockstep.experience.episodes`.

    Attributes:
        returns: [E] on the host, of the last rollout.
        lengths: [E].
    """

    def __init__(self, num_envs: int, device: torch.device) -> None:
        self._return, self._length = (torch.zeros(num_envs, dtype=torch.float64, device=device) for _ in range(2))
        self.returns, self.lengths = np.zeros(0), np.zeros(0)

    def update(self, reward: Tensor, weight: Tensor, env: Tensor, step: Tensor) -> Tensor:
        """Take in a rollout [T, B]. A reward that is not finite counts 0.

        Args:
            reward: of each step.
            weight: 0 where a step only resets the environment, else 1.
            env: [E] of each episode that ended, ascending.
            step: [E] in which it ended, ascending within an environment.

        Returns:
            Returns and lengths [2, E], for `report` once they are on the host.
        """
        totals = torch.stack([reward.nan_to_num(0.0, 0.0, 0.0), weight]).double()
        for t in range(1, len(reward)):  # `cumsum` has no deterministic kernel on GPUs
            totals[:, t] += totals[:, t - 1]
        totals += torch.stack([self._return, self._length]).unsqueeze(1)
        summed = totals[:, step, env]
        carried = totals[:, -1].clone()
        # A sum runs over all episodes of the environment in this rollout: subtract the sum up to the previous end.
        follows = torch.zeros_like(env, dtype=torch.bool)
        follows[1:] = env[1:] == env[:-1]
        previous = torch.where(follows, summed.roll(1, 1), 0.0)
        episodes = summed - previous
        # The sum of an environment's episodes that ended is that at its last end.
        carried.index_add_(1, env, -episodes)
        self._return, self._length = carried.unbind()
        return episodes

    def report(self, episodes: np.ndarray) -> None:
        """Set the result of `update`."""
        self.returns, self.lengths = episodes

    def state(self) -> dict[str, np.ndarray]:
        """Returns and lengths of the unfinished episodes."""
        return to_arrays({"return": self._return, "length": self._length})

    def restore(self, state: dict[str, np.ndarray]) -> None:
        """Restore a `state`."""
        self._return.copy_(torch.from_numpy(state["return"]))
        self._length.copy_(torch.from_numpy(state["length"]))


class _Buffer:
    """One group of observations of a rollout: as the environment gave them, and as the network receives them.

    Attributes:
        raw: [T + 1, B, ...]; the last row is where the rollout stopped.
        seen: [T + 1, B, ...], normalized.
        final: [T, B, ...] before the reset, valid where an episode ended; None with `next_step` autoreset.
    """

    def __init__(self, like: Tensor, num_steps: int, moments: DeviceMoments | None, *, same_step: bool) -> None:
        shape = like.shape
        self.moments = moments
        dtype = like.dtype if like.dtype == torch.uint8 else torch.float32  # as the spec says; copies convert
        self.raw = like.new_zeros(num_steps + 1, *shape, dtype=dtype)
        self.seen = self.raw if moments is None else torch.zeros_like(self.raw)
        self.final = like.new_zeros(num_steps, *shape, dtype=dtype) if same_step else None

    def normalized(self, rows: Tensor) -> Tensor:
        """Rows as the network receives them."""
        return rows if self.moments is None else self.moments.normalize(rows)

    def normalize(self, t: int) -> Tensor:
        """Row t as the network receives it."""
        if self.moments is not None:
            self.seen[t] = self.moments.normalize(self.raw[t])
        return self.seen[t]

    def final_rows(self, step: Tensor, env: Tensor) -> tuple[Tensor, Tensor]:
        """Final observations, as the environment gave them and as the network receives them."""
        assert self.final is not None
        rows = self.final[step, env]
        return rows, self.normalized(rows)


class TensorShard:
    """The environments of one shard, and the tensors of their rollout.

    Attributes:
        captures_acting: whether acting is a CUDA graph.
        captures_envs: whether the environments' steps are, too.
    """

    def __init__(  # noqa: PLR0913  # everything a rollout needs, once, by keyword
        self,
        env: TensorVectorEnv,
        policy: Policy,
        *,
        first: Observation,
        num_steps: int,
        moments: dict[str, DeviceMoments],
        gamma: float,
        reward_scale: float,
        generator: torch.Generator,
        compiled: bool = False,
        capture: Callable[..., Callable[..., Any]] | None = None,
    ) -> None:
        spec, size, device = env.spec, env.num_envs, env.device
        self.env = env
        self.generator = generator
        self.episodes = TensorEpisodes(size, device)
        self._policy = policy
        # Only for steps: the episodes that end in a rollout are of another number each time, and would compile again.
        self._step_policy = torch.compile(policy, dynamic=False) if compiled else policy
        self._returns = moments.get("returns")
        self._gamma = gamma
        self._reward_scale = reward_scale
        self._same_step = spec.autoreset == "same_step"
        self._clip = clipper(spec.action, device)
        names = ("observations", "critic_observations")
        self.groups = [
            _Buffer(part, num_steps, moments.get(name), same_step=self._same_step)
            for name, part in zip(names, first, strict=True)
            if part is not None
        ]
        shape = () if spec.action.kind == "discrete" else (spec.action.width,)
        kind = torch.float32 if spec.action.kind == "continuous" else torch.int64
        steps = (num_steps, size)
        self.action = torch.zeros(*steps, *shape, dtype=kind, device=device)
        self._parameters = torch.zeros(*steps, policy.distribution.num_parameters, device=device)
        self._value = torch.zeros(num_steps + 1, size, device=device)
        self._reward = torch.zeros(steps, device=device)
        self._terminated, self._truncated = (torch.zeros(steps, dtype=torch.bool, device=device) for _ in range(2))
        self.ended = torch.zeros(num_steps + 1, size, dtype=torch.bool, device=device)
        """Row t + 1: in step t."""
        self.states = torch.zeros(num_steps + 1, size, policy.state_size, device=device)
        """Of a recurrent policy, before each step; the last row is where the rollout stopped."""
        self.begins = torch.ones(num_steps + 1, size, device=device)
        """1 where an episode begins; for recurrent policies."""
        self.discounted = torch.zeros(size, dtype=torch.float64, device=device)
        self._with_final = [False] * num_steps
        self.noise = torch.zeros(0)
        self._act, self._step = self._act_on_noise, self._step_env
        self._check_step: AbstractContextManager[None] | None = None
        """Of the first step, if steps are captured."""
        self.captures_acting = capture is not None
        self.captures_envs = capture is not None and can_capture(env)
        if capture is not None:
            self._capture_with(capture)
        self.store(-1, first)
        if compiled:  # before training, whose time is measured
            with torch.no_grad():
                self._step_policy(*(group.normalize(-1) for group in self.groups))

    def _capture_with(self, capture: Callable[..., Callable[..., Any]]) -> None:
        """Let graphs do what they can."""
        self._act = capture(self._act)
        if can_capture(self.env):
            self._check_step = steps_in_place(self.env)
            # A step that broke off while it was captured cannot be repeated: that is an error.
            self._step = capture(self._step, generators=self.env.generators, on_failure=None)

    def store(self, row: int, observation: Observation) -> None:
        """Copy an observation, which may be a live buffer."""
        for group, part in zip(self.groups, observation, strict=False):
            assert part is not None
            group.raw[row].copy_(part)

    def start(self) -> None:
        """Continue from the last row of the previous rollout, and draw the noise of all steps."""
        for group in self.groups:
            group.raw[0].copy_(group.raw[-1])
        self.ended[0] = self.ended[-1]
        self.states[0] = finite_state(self.states[-1])
        self.begins[0] = self.begins[-1]
        self.noise = self._policy.distribution.draw_noise_tensor(self.generator, tuple(self._reward.shape))

    def act(self, t: int) -> Tensor:
        """The actions of step t for the environment."""
        moments = [group.moments for group in self.groups if group.moments is not None]
        action = self._act([self.noise[t]], t, any(of.is_empty for of in moments))
        # A graph's result is overwritten later; an environment may keep its action.
        return action.clone() if self.captures_acting and not self.captures_envs else action

    def _act_on_noise(self, noise: Sequence[Tensor], t: int, unnormalized: bool) -> Tensor:
        """What `act` computes; `unnormalized` only tells a graph from before the first update from later ones."""
        observations = [group.normalize(t) for group in self.groups]
        parameters, value, state = self._outputs(self._step_policy, observations, self.states[t], self.begins[t])
        if state is not None:
            self.states[t + 1] = state
        self._parameters[t] = parameters
        self._value[t] = value
        action = self._policy.distribution.sample_tensor(parameters, noise[0])
        self.action[t] = action
        return self._clip(action)

    def _outputs(
        self,
        policy: Callable[..., tuple[Tensor, Tensor]],
        observations: Sequence[Tensor],
        state: Tensor,
        begins: Tensor,
    ) -> tuple[Tensor, Tensor, Tensor | None]:
        """Distribution parameters and values of one step and, of a recurrent policy, the state after it."""
        if self._policy.state_size == 0:
            return *policy(*observations), None
        network = self._policy.recurrent
        return network.unroll(*network.features(*observations), Sequences(state, begins.unsqueeze(0)))

    def step(self, t: int, action: Tensor) -> None:
        """Step the environments, and copy what they return."""
        check, self._check_step = self._check_step, None
        with check or nullcontext():
            self._step([action], t)

    def _step_env(self, actions: Sequence[Tensor], t: int) -> None:
        """What `step` does."""
        step = self.env.step(actions[0])
        check_step(self.env.spec, self.env.num_envs, step)
        self.store(t + 1, step.observation)
        self._reward[t] = step.reward
        self._terminated[t] = step.terminated
        self._truncated[t] = step.truncated
        # The same in every replay: whether the environment gives final observations does not change.
        self._with_final[t] = step.final is not None
        if self._policy.state_size > 0:
            torch.logical_or(self._terminated[t], self._truncated[t], out=self.ended[t + 1])
            # With `next_step` autoreset the observation after an end is still the final one of the old episode.
            self.begins[t + 1] = self.ended[t + 1 if self._same_step else t]
        if step.final is not None and self._same_step:
            for group, part in zip(self.groups, step.final, strict=False):
                assert part is not None and group.final is not None
                group.final[t].copy_(part)

    def finish(self, first_env: int) -> TensorRollout:
        """Compute what needs no work per step; synchronizes with the device."""
        torch.logical_or(self._terminated, self._truncated, out=self.ended[1:])
        ended, reward = self.ended[1:], self._reward
        if not self._same_step:
            reward.masked_fill_(self.ended[:-1], 0.0)  # a row that only resets belongs to no episode, whatever it pays
        weight = torch.ones_like(reward) if self._same_step else 1.0 - self.ended[:-1].float()
        env, step = ended.T.nonzero().unbind(1)
        observations = [group.normalize(-1) for group in self.groups]
        self._value[-1] = self._outputs(self._policy, observations, self.states[-1], self.begins[-1])[1]
        next_value = self._value[1:].clone()
        is_final = (self._truncated & ~self._terminated)[step, env]
        healthy = [reward, *(group.raw for group in self.groups)]
        if self._same_step:
            self._check_final(step, is_final)
            finals = [group.final_rows(step, env) for group in self.groups]
            if len(env):  # a network of the user's own may not take 0 rows
                observations = [normalized for _, normalized in finals]
                begins = reward.new_zeros(len(env))
                value = self._outputs(self._policy, observations, self.states[step + 1, env], begins)[1]
                next_value[step, env] = torch.where(is_final, value.float(), next_value[step, env])
            healthy += [torch.where(_per_row(is_final, raw), raw, 0) for raw, _ in finals]
        finite = torch.stack([part.isfinite().all() for part in healthy if part.is_floating_point()]).all()
        episodes = self.episodes.update(reward, weight, env, step)
        sums = self._normalizer_sums(weight)
        statistics = torch.cat([finite.double().reshape(1), episodes.flatten(), sums]).cpu().numpy()
        _, episodes, sums = np.split(statistics, [1, 1 + 2 * len(env)])
        self.episodes.report(episodes.reshape(2, -1))
        flat = [group.seen[:-1].flatten(0, 1) for group in self.groups]
        scaled = reward * self._reward_scale
        evaluated = EvaluatedRollout(
            observation=flat[0],
            action=self.action.flatten(0, 1),
            parameters=self._parameters.flatten(0, 1),
            value=self._value[:-1],
            next_value=next_value,
            reward=scaled if self._returns is None else self._returns.scale(scaled),
            terminated=self._terminated.float(),
            ended=ended.float(),
            weight=weight,
            critic=flat[1] if len(flat) > 1 else None,
            state=self.states[:-1].flatten(0, 1) if self._policy.state_size > 0 else None,
            begins=self.begins[:-1].flatten() if self._policy.state_size > 0 else None,
            raw=[group.raw[:-1].flatten(0, 1) for group in self.groups],
            normalize=[group.normalized for group in self.groups],
        )
        to_host = lambda: self._to_host(weight, first_env)  # noqa: E731
        return TensorRollout(evaluated, sums, None if statistics[0] else to_host().fault, to_host)

    def _check_final(self, step: Tensor, is_final: Tensor) -> None:
        """Refuse an environment that truncated an episode without a final observation.

        Args:
            step: [E] in which an episode ended.
            is_final: [E], whether it was truncated.
        """
        if all(self._with_final):
            return
        without = to_device(~np.array(self._with_final), step.device)
        if bool((without[step] & is_final).any()):
            raise no_final_observation()

    def _normalizer_sums(self, weight: Tensor) -> Tensor:
        """Sums of all moments, in the order of `Normalizers.named`."""
        flat = weight.flatten()
        sums = [
            group.moments.sums(group.raw[:-1].flatten(0, 1), flat) for group in self.groups if group.moments is not None
        ]
        if self._returns is not None:
            sums.append(self._returns.sums(self._discounted_returns().reshape(-1, 1), flat))
        return torch.cat(sums) if sums else weight.new_zeros(0, dtype=torch.float64)

    def _discounted_returns(self) -> Tensor:
        """G_t = r_t + gamma G_{t-1} of every step [T, B]; an episode starts at 0. See `DiscountedReturns`."""
        reward = (self._reward * self._reward_scale).double().nan_to_num(0.0, 0.0, 0.0)
        continues = (~self.ended[1:]).double()
        discounted = torch.empty_like(reward)
        for t in range(len(reward)):
            torch.add(reward[t], self.discounted, alpha=self._gamma, out=discounted[t])
            self.discounted = discounted[t] * continues[t]
        return discounted

    def _to_host(self, weight: Tensor, first_env: int) -> Rollout:
        """The rollout in numpy, with its first non-finite number."""
        group = self.groups[0]
        final = list[tuple[int, np.ndarray, np.ndarray]]()
        cut: np.ndarray = (self._truncated & ~self._terminated).cpu().numpy()
        if group.final is not None:
            last: np.ndarray = group.final.cpu().numpy()
            for t in np.flatnonzero(cut.any(1)):
                rows = np.flatnonzero(cut[t])
                final.append((int(t), rows, last[t, rows]))
        tensors = (group.raw, self.action, self._reward, self._terminated, self.ended[1:], weight)
        observation, action, reward, terminated, ended, weights = (to_arrays(tensor) for tensor in tensors)
        fault = find_non_finite(observation, reward, final, first_env)
        for critic in self.groups[1:]:
            fault = fault or find_non_finite(critic.raw.cpu().numpy(), reward, [], first_env)
        return Rollout(observation, action, reward, terminated, ended, weights, final, fault)


def _per_row(flags: Tensor, rows: Tensor) -> Tensor:
    """Flags [E] in a shape that broadcasts over rows [E, ...]."""
    return flags.view(-1, *[1] * (rows.ndim - 1))


def clipper(action: ActionSpec, device: torch.device) -> Callable[[Tensor], Tensor]:
    """The function that clips actions for the environment, as `lockstep.experience.rollout.clipper`."""
    if action.kind != "continuous":
        return lambda chosen: chosen
    if not np.isfinite([*action.low, *action.high]).any():
        return lambda chosen: chosen.nan_to_num(0.0, 0.0, 0.0)
    low, high = (torch.from_numpy(bound).to(device) for bound in action.float32_bounds)
    return lambda chosen: chosen.nan_to_num(0.0, 0.0, 0.0).clamp(low, high)
