"""Evaluate the policy of a run on logged data."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from lockstep.data.dataset import Dataset
from lockstep.estimators.result import Estimates
from lockstep.run import OfflineRun
from lockstep.session.offline.estimate import estimate
from lockstep.session.offline.policy_spec import check_fits
from lockstep.session.policy_file import no_log_error
from lockstep.torch.comm import Comm
from lockstep.torch.export import policy_from
from lockstep.torch.hardware import pin
from lockstep.torch.offline.scorer import PolicyScorer
from lockstep.torch.scoring.offline_policy import OfflinePolicy
from lockstep.world import World


def evaluate_run(
    run: OfflineRun,
    path: Path,
    metadata: Mapping[str, Any],
    arrays: Mapping[str, np.ndarray],
    data: str,
    world: World,
) -> Estimates:
    """All estimates of a policy from prepared data; *collective*.

    Args:
        run: its config.
        path: a policy file, or the folder of a checkpoint, for messages.
        metadata: of that policy.
        arrays: of that policy, by name. All ranks use the policy of rank 0: a run that trains may have gone on while
            they looked for it.
        data: a folder of prepared data.
        world: the ranks.

    Raises:
        ConfigError: the data do not exist or do not fit the policy.
    """
    pin(run, replace(world, pinned=run.num_shards is not None))
    with Comm(
        world,
        device=run.device,
        backend=run.backend,
        share_gpus=run.share_gpus,
        timeout_s=run.timeout_s,
        startup_timeout_s=run.startup_timeout_s,
    ) as comm:
        metadata, arrays = comm.broadcast_object([metadata, arrays], tag="policy")
        policy, _ = policy_from(path, metadata, arrays)
        if not isinstance(policy, OfflinePolicy):
            raise no_log_error(path)
        dataset = Dataset.open(data, verify=world.local_rank == 0 and "small")
        check_fits(policy.policy_spec, dataset, run.data)
        return estimate(PolicyScorer(policy.to(comm.device), run), dataset, comm, run)
