"""A printed recipe is a script of the user's own: any launcher starts it, and it ends with the same parameters."""

import json
import os
import subprocess
import sys

import pytest

from lockstep import recipes
from lockstep.launch.rank_environment import free_port

SHORT = [
    *("--set", "total_steps=512", "--set", "learning_starts=256", "--set", "evaluate_every=null"),
    *("--set", "evaluate_episodes=4", "--set", "num_shards=2", "--set", "prioritized=true"),
]


@pytest.fixture(scope="module")
def ended(tmp_path_factory):
    """Starts `my_dqn.py` by a launcher's words; returns its `summary.json`."""
    folder = tmp_path_factory.mktemp("recipe")
    (folder / "my_dqn.py").write_text(recipes.source("cartpole_dqn"))

    def start(name, *words):
        clean = {k: v for k, v in os.environ.items() if not k.startswith(("LOCKSTEP_", "TORCHELASTIC"))}
        done = subprocess.run(
            [sys.executable, *words, *SHORT, "--run-dir", name],
            cwd=folder, env=clean | {"OMP_NUM_THREADS": "1"}, capture_output=True, text=True, timeout=180,
        )  # fmt: skip
        assert done.returncode == 0, done.stdout + done.stderr
        return json.loads((folder / name / "summary.json").read_text())

    return start


@pytest.mark.slow
def test_a_recipe_of_dqn_runs_under_every_launcher(ended):
    port = free_port()
    alone = ended("alone", "my_dqn.py")
    for name, words in {
        "ours": ["my_dqn.py", "--ranks", "2"],
        "older": ["-m", "torch.distributed.launch", "--nproc_per_node=2", f"--master_port={port}", "my_dqn.py"],
        "torchrun": ["-m", "torch.distributed.run", "--nproc-per-node=2", "--standalone", "my_dqn.py"],
    }.items():
        # The older one ends the command line of each rank with a flag of its own, --local-rank.
        summary = ended(name, *(["-W", "ignore"] if name == "older" else []), *words)
        assert (summary["algo"], summary["world_size"], summary["status"]) == ("dqn", 2, "finished"), name
        ranks = {rank["params_fingerprint"] for rank in summary["ranks"]}
        assert ranks == {alone["params_fingerprint"]}, name
