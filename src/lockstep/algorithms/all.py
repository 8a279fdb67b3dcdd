"""The one list of algorithms: everything that needs all of them, or their names, takes them from here."""

from collections.abc import Mapping
from typing import Literal

from lockstep.algorithms.dqn import DQNConfig
from lockstep.algorithms.interface import AlgorithmSettings
from lockstep.algorithms.offline import CloningConfig, OfflineDQNConfig
from lockstep.algorithms.offline_continuous import CQLConfig, IQLConfig, TD3BCConfig
from lockstep.algorithms.ppo import PPOConfig
from lockstep.algorithms.sac import SACConfig
from lockstep.algorithms.td3 import TD3Config

AlgorithmConfig = PPOConfig | DQNConfig | SACConfig | TD3Config
"""The settings of an algorithm that learns in environments."""
AlgorithmName = Literal["ppo", "dqn", "sac", "td3"]
"""The names of those algorithms."""
ALGORITHMS: Mapping[str, type[AlgorithmConfig]] = {
    "ppo": PPOConfig,
    "dqn": DQNConfig,
    "sac": SACConfig,
    "td3": TD3Config,
}
"""The settings class of each algorithm."""
_OFFERED: Mapping[str, type[AlgorithmSettings]] = ALGORITHMS  # so that the type checker compares them with the protocol

OfflineConfig = OfflineDQNConfig | CloningConfig | IQLConfig | TD3BCConfig | CQLConfig
"""The settings of an algorithm that learns from logged data."""
OfflineName = Literal["dqn", "parametric_dqn", "bc", "iql", "td3_bc", "cql"]
"""The names of those algorithms."""
OFFLINE_ALGORITHMS: Mapping[str, type[OfflineConfig]] = {
    "dqn": OfflineDQNConfig,
    "parametric_dqn": OfflineDQNConfig,
    "bc": CloningConfig,
    "iql": IQLConfig,
    "td3_bc": TD3BCConfig,
    "cql": CQLConfig,
}
"""The settings class of each algorithm that learns from logged data."""
CONTINUOUS_LOGS = (IQLConfig, TD3BCConfig, CQLConfig)
"""Those for logged data with continuous actions."""
JAX_OFFLINE_ALGORITHMS = ("dqn", "iql")
"""Those of them that JAX has."""
