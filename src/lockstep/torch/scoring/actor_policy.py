"""A policy of continuous actions learned from a log: an actor with its critics, and the preprocessing of raw features.

Shapes: N rows, F raw features of a state, S numbers after preprocessing, D dimensions of an action, P parameters of
its distribution.
"""

import math

import numpy as np
import torch
from torch import Tensor, nn

from lockstep.algorithms.offline_continuous import CQLConfig, IQLConfig, TD3BCConfig
from lockstep.data.info import DatasetInfo
from lockstep.session.offline.policy_spec import OfflinePolicySpec, as_prepared, bounds_of, least_at_bound
from lockstep.torch.encoders import Mlp
from lockstep.torch.q_networks import initialize
from lockstep.torch.scoring.candidates import CandidateNetwork
from lockstep.torch.scoring.continuous_networks import (
    Actor,
    DeterministicActor,
    GaussianActor,
    ScoringCritics,
    SquashedGaussianActor,
)
from lockstep.torch.scoring.networks import OutcomeHeads
from lockstep.torch.scoring.preprocess import Preprocessor


class ContinuousNetworks(nn.Module):
    """The networks of an algorithm: an actor, critics, and of IQL the value of a state.

    Attributes:
        actor: states [N, S] to parameters of the distribution [N, P].
        critics: states and actions to Q.
        value: states [N, S] to V [N, 1]; None but for IQL.
        loss_weights: learned weights of loss terms, as logarithms: `log_alpha` of the entropy, `log_cql_alpha` of the
            penalty; empty but for CQL.
    """

    def __init__(self, policy_spec: OfflinePolicySpec) -> None:
        super().__init__()
        info, config, algorithm = policy_spec.info, policy_spec.network, policy_spec.algorithm
        assert isinstance(algorithm, IQLConfig | TD3BCConfig | CQLConfig)
        size = (info.state_size, info.action_size)
        self.actor: Actor
        if isinstance(algorithm, IQLConfig):
            self.actor = GaussianActor(*size, config)
        elif isinstance(algorithm, TD3BCConfig):
            self.actor = DeterministicActor(*size, config)
        else:
            self.actor = SquashedGaussianActor(info.state_size, policy_spec.action_spec, config)
        self.critics = ScoringCritics(algorithm.num_critics, *size, config)
        with_value = isinstance(algorithm, IQLConfig)
        sizes = (info.state_size, *config.hidden, 1)
        self.value = Mlp(sizes, config.activation, last_gain=1.0) if with_value else None
        self.loss_weights = nn.ParameterDict()
        if isinstance(algorithm, CQLConfig):
            self.loss_weights["log_alpha"] = nn.Parameter(torch.tensor(math.log(algorithm.initial_alpha)))
            if algorithm.cql_gap is not None:
                self.loss_weights["log_cql_alpha"] = nn.Parameter(torch.tensor(math.log(algorithm.cql_alpha)))


class ActorPolicy(nn.Module):
    """An actor whose actions lie within the bounds of the log, and the networks that it was learned with.

    Args:
        policy_spec: everything but the parameters.
        seed: of the initial parameters.

    Attributes:
        policy_spec: everything but the parameters.
        state: preprocesses raw features of states.
        network: actor and critics, for states after preprocessing and actions scaled to [-1, 1].
        heads: models of the reward, of metrics and of the policy's value, for estimates; None without them.
        half_range: half the distance between the bounds [D].
        distribution: chooses a simulator's actions from the result of `forward`.
    """

    def __init__(self, policy_spec: OfflinePolicySpec, seed: int = 0) -> None:
        super().__init__()
        info, config = policy_spec.info, policy_spec.algorithm
        assert policy_spec.action is not None
        self.policy_spec, self.spec = policy_spec, policy_spec.spec
        self.state = Preprocessor(policy_spec.state)
        self.network = ContinuousNetworks(policy_spec)
        size, outcomes = (info.state_size, info.action_size), 1 + len(info.metrics)
        self.heads = None
        if config.estimate:
            self.heads = OutcomeHeads(lambda: CandidateNetwork(*size, policy_spec.network, outputs=outcomes))
        initialize(self, seed)
        self.network.critics.initialize(torch.Generator().manual_seed(seed))
        low, high = bounds_of(policy_spec.action)
        self.half_range: Tensor
        self._center: Tensor
        self.register_buffer("half_range", torch.from_numpy((high - low) / 2), persistent=False)
        self.register_buffer("_center", torch.from_numpy((high + low) / 2), persistent=False)
        for name, bound in zip(("_low", "_high"), policy_spec.action_spec.float32_bounds, strict=True):
            self.register_buffer(name, torch.from_numpy(bound), persistent=False)
        self._at_bound = torch.from_numpy(least_at_bound(policy_spec.action_spec))
        self.distribution = ActionsOfActor(self)

    @property
    def info(self) -> DatasetInfo:
        """Of the training data."""
        return self.policy_spec.info

    @property
    def deterministic(self) -> bool:
        """Whether it always takes the same action in a state, and so has no density."""
        return self.policy_spec.algorithm.policy == "greedy"

    def forward(self, observation: Tensor) -> tuple[Tensor, Tensor]:
        """Map a simulator's observations [N, F] to parameters of the distribution [N, P]; 0 [N] stands for a value."""
        parameters = self.network.actor(self.state(observation, torch.ones_like(observation)))
        return parameters, torch.zeros_like(parameters[:, 0])

    def act(self, state: Tensor, noise: Tensor | None = None) -> Tensor:
        """Actions [N, D], scaled to [-1, 1], in preprocessed states [N, S].

        Args:
            state: [N, S].
            noise: standard normal [N, D]; None: the mode, which a deterministic policy takes in any case.
        """
        parameters = self.network.actor(state)
        if noise is None or self.deterministic:
            return self.network.actor.mode(parameters)
        return self.network.actor.sample(parameters, noise)

    def log_density(self, state: Tensor, action: Tensor) -> Tensor:
        """The log-density of logged actions [N, D], scaled to [-1, 1], in the units of the log [N], float64."""
        actor = self.network.actor
        assert not self.deterministic and not isinstance(actor, DeterministicActor)
        return actor.log_density(actor(state), action, self.half_range, self._at_bound.to(action.device))

    def unscaled(self, action: Tensor) -> Tensor:
        """Actions [..., D] from [-1, 1] to the bounds of the log, float32."""
        within = (self.get_buffer("_low"), self.get_buffer("_high"))  # rounding may lead outside of the bounds
        return (self._center + self.half_range * action).float().clamp(*within)


class ActionsOfActor:
    """The numpy interface of a policy's distribution, for evaluation in a simulator and for recordings."""

    def __init__(self, policy: ActorPolicy) -> None:
        self._policy = policy
        self._width = policy.info.action_size

    @property
    def deterministic(self) -> bool:
        """Whether actions have no density."""
        return self._policy.deterministic

    def draw_noise(self, generator: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
        """Standard normal noise [*shape, D]."""
        return generator.standard_normal((*shape, self._width), dtype=np.float32)

    @torch.inference_mode()
    def sample(self, parameters: np.ndarray, noise: np.ndarray) -> np.ndarray:
        """Actions [..., D] within the bounds of the log; those of a deterministic policy ignore the noise."""
        if self._policy.deterministic:
            return self.mode(parameters)
        actor = self._policy.network.actor
        return self._within_bounds(actor.sample(torch.from_numpy(parameters), torch.from_numpy(noise)))

    @torch.inference_mode()
    def mode(self, parameters: np.ndarray) -> np.ndarray:
        """The policy's best actions [..., D]."""
        return self._within_bounds(self._policy.network.actor.mode(torch.from_numpy(parameters)))

    @torch.inference_mode()
    def log_prob(self, parameters: np.ndarray, action: np.ndarray) -> np.ndarray:
        """The log-density of actions [B, D] as `sample` returned them [B]."""
        policy, actor = self._policy, self._policy.network.actor
        assert not isinstance(actor, DeterministicActor)
        bounds = policy.policy_spec.action_spec
        scaled, at_bound = torch.from_numpy(as_prepared(action, bounds)), torch.from_numpy(least_at_bound(bounds))
        return actor.log_density(torch.from_numpy(parameters), scaled, policy.half_range.cpu(), at_bound).numpy()

    def _within_bounds(self, action: Tensor) -> np.ndarray:
        return self._policy.unscaled(action.to(self._policy.half_range.device)).cpu().numpy()
