"""The settings of networks, and those that each algorithm begins with."""

from dataclasses import dataclass
from typing import Literal

from lockstep.config.settings import convert_fields
from lockstep.errors import ConfigError


@dataclass(frozen=True, slots=True, kw_only=True)
class NetworkConfig:
    """The policy and value networks."""

    encoder: Literal["auto", "mlp", "nature", "impala", "wide", "small"] = "auto"
    """What stands between an observation and the heads. `auto`: `nature` for images, `impala` for
    those with a side below 36 pixels, `mlp` for all else.
    `nature`: Mnih et al., 2015; `small`: Mnih et al., 2013; `impala`: Espeholt et al., 2018; `wide`: 128, 128 and 512
    channels; `mlp`: the linear layers of `hidden`."""
    features: int = 512
    """Units of the linear layer behind the convolutions."""
    hidden: tuple[int, ...] = (64, 64)
    """Vectors, and images among numbers: units of each hidden layer."""
    critic_hidden: tuple[int, ...] | None = None
    """As `hidden`, of the value network or the critics; `null`: those of `hidden`."""
    activation: Literal["tanh", "relu", "elu", "silu"] = "tanh"
    """Between the layers of `hidden`. `silu`: x sigmoid(x), elsewhere called swish."""
    initialization: Literal["orthogonal", "uniform"] | None = None
    """First weights of the layers of `hidden` and of PPO's heads. `uniform`: within 1 / sqrt(fan-in), torch's default.
    Biases are 0, those of `uniform` in SAC and TD3 within the same bound. `null`: `uniform` for SAC and TD3, else
    `orthogonal`."""
    shared: bool | None = None
    """One body with two heads instead of two networks; `null`: for images."""
    module: str | None = None
    """Your own network, `module:Class`; `docs/networks.md` says what it is called with."""
    initial_log_std: float = 0.0
    """Log standard deviation of continuous actions at the start."""
    state_dependent_std: bool = False
    """Whether the policy's head also gives the log standard deviations of continuous actions, by observation."""
    channels_last: bool = False
    """Images in channels-last layout on a GPU, where tensor cores convolve them faster; torch only. On a CPU torch's
    images are in this layout in any case."""
    recurrent: Literal["none", "gru", "lstm"] = "none"
    """PPO only: recurrent layers before the heads, which remember what an observation does not show."""
    recurrent_size: int = 64
    """Units of each recurrent layer."""
    recurrent_layers: int = 1
    """Recurrent layers, one on top of another."""

    def __post_init__(self) -> None:
        """Refuse layers without units."""
        convert_fields(self, "network.")
        for name in ("features", "recurrent_size", "recurrent_layers"):
            if getattr(self, name) < 1:
                raise ConfigError(f"network.{name}={getattr(self, name)} must be at least 1")
        _check_widths("network.hidden", self.hidden)
        _check_widths("network.critic_hidden", self.critic_hidden or ())

    @property
    def value_hidden(self) -> tuple[int, ...]:
        """Units of each hidden layer of the value network."""
        return self.hidden if self.critic_hidden is None else self.critic_hidden


def _check_widths(name: str, widths: tuple[int, ...]) -> None:
    if any(width < 1 for width in widths):
        raise ConfigError(f"{name}={list(widths)}: each layer needs at least 1 unit")


def default_network(algo: str) -> NetworkConfig:
    """The networks of an algorithm where no setting of theirs is given."""
    if algo in ("sac", "td3"):
        return NetworkConfig(hidden=(256, 256), activation="relu")
    return NetworkConfig()


@dataclass(frozen=True, slots=True, kw_only=True)
class ScoreNetworkConfig:
    """The networks that score or choose actions and predict rewards, for logged data."""

    hidden: tuple[int, ...] = (128, 64)
    """Units of each hidden layer."""
    activation: Literal["relu", "tanh", "elu", "silu"] = "relu"
    """Between layers."""

    def __post_init__(self) -> None:
        """Refuse layers without units."""
        convert_fields(self, "network.")
        _check_widths("hidden", self.hidden)


def default_score_network(algo: str) -> ScoreNetworkConfig:
    """The networks of an algorithm on logged data where no setting of theirs is given."""
    if algo in ("iql", "td3_bc", "cql"):
        return ScoreNetworkConfig(hidden=(256, 256))
    return ScoreNetworkConfig()
