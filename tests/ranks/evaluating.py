"""What tests of evaluated policies call, also inside ranks: each rank evaluates the checkpoint that it has found."""

from pathlib import Path
from typing import Any
from unittest import mock

import made_data
from lockstep import World, spawn, train
from lockstep.cli.evaluate import evaluate_run
from lockstep.run import OfflineRun, ScoreNetworkConfig, load, override
from lockstep.session.offline import estimate as counterfactual
from lockstep.session.which_policy import read_policy


def played(rank: int, run_dir: str, steps: list[int], ml_framework: Any) -> list[float]:
    """Returns of new episodes by the policy of checkpoint `steps[rank]`."""
    found = evaluate_run(Path(run_dir), episodes=8, seed=5, step=steps[rank], ml_framework=ml_framework)
    return list(found["returns"])


def estimated(rank: int, run_dir: str, steps: list[int], ml_framework: str) -> dict[str, Any]:
    """Estimates of the policy of checkpoint `steps[rank]` from the data that it learned from."""
    if ml_framework == "jax":
        from lockstep.jax.offline.evaluate import evaluate_run as estimates
    else:
        from lockstep.torch.offline.evaluate import evaluate_run as estimates
    run = load(Path(run_dir) / "run.yaml")
    assert isinstance(run, OfflineRun)
    found, metadata, arrays = read_policy(Path(run_dir), step=steps[rank])
    with mock.patch.object(counterfactual, "_BLOCK", 64):  # so that each rank has some
        return estimates(run, found.path, metadata, arrays, run.data, World.from_environment()).to_dict()


def check_estimates(folder: Path, ml_framework: str) -> None:
    """Two ranks that have found different checkpoints estimate what one rank does, by the checkpoint of rank 0."""
    data = made_data.write(folder / "data", made_data.discrete_columns(300, metrics=0))
    run = OfflineRun(data=str(data), algo="dqn", network=ScoreNetworkConfig(hidden=(8,)))
    changes = {"num_shards": 2, "policy": "softmax", "epochs": 4, "checkpoint_every": 300, "num_checkpoints": 9}
    train(override(run, {**changes, "ml_framework": ml_framework}), run_dir=folder / "run")
    run_dir = str(folder / "run")
    steps = sorted(int(path.name.removeprefix("step_")) for path in (folder / "run/checkpoints").glob("step_*"))
    first, last = (estimated(0, run_dir, [step], ml_framework) for step in (steps[0], steps[-1]))
    mixed = spawn(estimated, 2, (run_dir, [steps[0], steps[-1]], ml_framework), timeout_s=120)[0]
    assert first != last
    assert mixed == first
