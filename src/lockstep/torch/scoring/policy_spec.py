"""Everything that defines a policy learned from a log, except its parameters."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from lockstep.config.settings import updated
from lockstep.data.dataset import DatasetInfo
from lockstep.data.feature_file import features_from_dict, features_to_dict
from lockstep.data.features import Features
from lockstep.envs.spec import EnvSpec
from lockstep.run import OFFLINE_ALGORITHMS, OfflineConfig, ScoreNetworkConfig
from lockstep.session.policy_file import FROM_LOG

FORMAT = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicySpec:
    """Everything that defines a policy except its parameters."""

    info: DatasetInfo
    """Of the training data."""
    state: Features
    action: Features | None
    """Features of candidates, or of continuous actions; None for named actions."""
    network: ScoreNetworkConfig
    algo: str
    algorithm: OfflineConfig
    spec: EnvSpec | None = None
    """Of the simulator, if there is one."""

    def to_dict(self) -> dict[str, Any]:
        """As plain values."""
        return {
            "format": FORMAT,
            "algo": FROM_LOG + self.algo,
            "info": self.info.to_dict(),
            "state": features_to_dict(self.state),
            "action": None if self.action is None else features_to_dict(self.action),
            "network": asdict(self.network),
            "algorithm": asdict(self.algorithm),
            "spec": None if self.spec is None else self.spec.to_dict(),
        }

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> "PolicySpec":
        """From the result of `to_dict`."""
        algo = str(data["algo"]).removeprefix(FROM_LOG)
        return cls(
            info=DatasetInfo.from_dict(data["info"]),
            state=features_from_dict(data["state"]),
            action=None if data["action"] is None else features_from_dict(data["action"]),
            network=updated(ScoreNetworkConfig(), data["network"]),
            algo=algo,
            algorithm=updated(OFFLINE_ALGORITHMS[algo](), data["algorithm"]),
            spec=None if data["spec"] is None else EnvSpec.from_dict(data["spec"]),
        )
