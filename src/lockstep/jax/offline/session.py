"""The backend of JAX for runs on logged data."""

from collections.abc import Sequence
from pathlib import Path

from lockstep.data.dataset import Dataset
from lockstep.errors import ConfigError
from lockstep.jax.comm import Comm
from lockstep.jax.networks import AnyPolicy
from lockstep.jax.offline.scorer import PolicyScorer
from lockstep.jax.scoring.offline_policy import OfflinePolicy
from lockstep.jax.session import Jax
from lockstep.run import OfflineRun


class OfflineJax(Jax):
    """The `lockstep.session.offline.session.OfflineBackend` of JAX."""

    _scorer: PolicyScorer | None = None

    def scorer(self, policy: AnyPolicy, run: OfflineRun, comm: Comm) -> PolicyScorer:
        """The policy with its models, with the current parameters; one for all estimates of a run, compiled once."""
        assert isinstance(policy, OfflinePolicy)
        if self._scorer is None or self._scorer.policy is not policy:
            self._scorer = PolicyScorer(policy, run, comm.devices[0])
        self._scorer.load_params()
        return self._scorer

    def export(self, policy: AnyPolicy, dataset: Dataset, folder: Path) -> Sequence[str]:
        """Not available for JAX, whose runs are refused with `model_path`."""
        raise ConfigError("model_path is for ml_framework=torch; export the run afterwards: lockstep export RUN")
