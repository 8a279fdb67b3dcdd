"""The backend of PyTorch for runs on logged data."""

from collections.abc import Sequence
from pathlib import Path

from lockstep.data.dataset import Dataset
from lockstep.run import OfflineRun
from lockstep.torch.comm import Comm
from lockstep.torch.deploy.offline_export import export_policy
from lockstep.torch.networks import AnyPolicy
from lockstep.torch.offline.scorer import PolicyScorer
from lockstep.torch.scoring.offline_policy import OfflinePolicy
from lockstep.torch.session import Torch


class OfflineTorch(Torch):
    """The `lockstep.session.offline.session.OfflineBackend` of torch."""

    def scorer(self, policy: AnyPolicy, run: OfflineRun, comm: Comm) -> PolicyScorer:
        """The policy with its models, always with the newest parameters."""
        assert isinstance(policy, OfflinePolicy)
        return PolicyScorer(policy, run)

    def export(self, policy: AnyPolicy, dataset: Dataset, folder: Path) -> Sequence[str]:
        """Write the finished policy in every format that is installed; returns one line for the user about each."""
        assert isinstance(policy, OfflinePolicy)
        return export_policy(policy, dataset, folder)
