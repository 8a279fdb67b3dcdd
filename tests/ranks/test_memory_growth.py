"""A run that learns from a replay takes its memory at the start and no more of it later."""

import sys
from pathlib import Path
from statistics import median

import pytest
from running import small_dqn

from lockstep.run import dump

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))
import memory

ENVS = Path(__file__).with_name("image_envs.py")


@pytest.mark.slow
@pytest.mark.parametrize("ranks", [1, 2])
def test_memory_does_not_grow_over_a_minute(tmp_path, ranks):
    often = {"log_every": 96, "checkpoint_every": 288, "evaluate_every": 288, "capacity": 304, "features": 64}
    run = small_dqn(f"{ENVS}:Dot", encoder="small", num_envs=8, total_steps=10**8, **often)
    (tmp_path / "run.yaml").write_text(dump(run))
    command = [*memory.measure.LOCKSTEP, "train", str(tmp_path / "run.yaml"), "--ranks", str(ranks)]
    samples = memory.watch([*command, "--run-dir", str(tmp_path / "run")], tmp_path / "run", 75.0, every_s=0.5)
    assert samples[-1][2] > 4 * 304, f"the replay did not go round; nothing is proved: {samples[-1]}"
    first = [size for seconds, size, _ in samples if 10 <= seconds < 20]
    last = [size for seconds, size, _ in samples if seconds >= 65]
    assert len(first) > 5 and len(last) > 5
    assert median(last) < 1.02 * median(first), f"from {median(first) / 2**20:.1f} to {median(last) / 2**20:.1f} MiB"
