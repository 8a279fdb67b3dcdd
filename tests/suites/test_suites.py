"""mjlab, EnvPool and gymnax themselves, on 1, 2 and 4 CPU ranks.

`tests/unit/jax/test_jax_env_adapters.py` has Brax and MuJoCo Playground, whose compilation takes minutes.
"""

import json
import os
import subprocess
import sys
from importlib.util import find_spec

import pytest
import torch

from lockstep.config.env import EnvConfig
from lockstep.torch.envs.make import make_tensor_env

pytestmark = [pytest.mark.suites, pytest.mark.filterwarnings("default")]  # mjlab uses what is deprecated
CPU = torch.device("cpu")
SHORT = (
    "num_envs=8", "num_steps=8", "num_minibatches=2", "num_epochs=2", "total_steps=256", "network.hidden=[16]",
    "env.max_episode_steps=6", "evaluate_every=null", "evaluate_episodes=4", "num_shards=4",
)  # fmt: skip
PACKAGES = {
    "Mjlab-Cartpole-Balance": "mjlab",
    "envpool/Go1JoystickFlatTerrain-v1": "envpool",
    "envpool/CartpoleBalance-v1": "envpool",
    "gymnax/CartPole-v1": "gymnax",
}
TASKS = [
    pytest.param(task, marks=pytest.mark.skipif(find_spec(package) is None, reason=f"needs {package}"))
    for task, package in PACKAGES.items()
]


def train(folder, task, ranks):
    """The summary of a short run."""
    clean = {name: value for name, value in os.environ.items() if name not in ("RANK", "WORLD_SIZE")}
    on_jax = task.partition("/")[0] == "gymnax"
    flags = [word for setting in SHORT for word in ("--set", setting)]
    run_dir = f"{ranks}-ranks"
    done = subprocess.run(
        [sys.executable, "-m", "lockstep", "train", task, "--ranks", str(ranks), "--run-dir", run_dir, *flags]
        + ["--ml-framework", "jax"] * on_jax,
        cwd=folder, env=clean | {"OMP_NUM_THREADS": "1"}, capture_output=True, text=True, check=False, timeout=540,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    return json.loads((folder / run_dir / "summary.json").read_text())


@pytest.mark.parametrize("task", TASKS)
def test_pinned_shards_give_the_same_bits_on_any_number_of_ranks(tmp_path, task):
    runs = {ranks: train(tmp_path, task, ranks) for ranks in (1, 2, 4)}
    assert {(run["status"], run["env_steps"]) for run in runs.values()} == {("finished", 256)}
    assert len({run["params_fingerprint"] for run in runs.values()}) == 1
    assert len({run["eval_return_mean"] for run in runs.values()}) == 1
    for ranks, run in runs.items():
        assert len({rank["first_rollout_fingerprint"] for rank in run["ranks"]}) == ranks


def test_final_observations_of_mjlab_are_those_before_the_reset():
    """Until the limit, episodes with a limit are those without."""
    pytest.importorskip("mjlab")
    found = []
    for limit in (3, 50):
        env = make_tensor_env("Mjlab-Cartpole-Balance", EnvConfig(max_episode_steps=limit), 2, CPU)
        env.reset([7])
        for _ in range(3):
            step = env.step(torch.full((2, 1), 0.5))
        found.append(step)
        env.close()
    limited, unlimited = found
    assert limited.truncated.all() and not unlimited.truncated.any()
    assert unlimited.final is None
    assert torch.equal(limited.final.policy, unlimited.observation.policy)
    assert torch.equal(limited.final.critic, unlimited.observation.critic)
    assert not torch.equal(limited.observation.policy, limited.final.policy)


def test_environments_of_envpool_have_the_numbers_of_their_own_seeds():
    pytest.importorskip("envpool")
    found = []
    for seeds in ([5, 6, 7, 8], [7, 8]):
        env = make_tensor_env("envpool/Go1JoystickFlatTerrain-v1", EnvConfig(), len(seeds), CPU)
        assert (env.spec.observation_size, env.spec.critic_size) == (48, 123)
        env.reset(seeds)
        for _ in range(4):
            step = env.step(torch.full((len(seeds), 12), 0.1))
        found.append(step)
        env.close()
    together, apart = found
    assert torch.equal(together.observation.policy[2:], apart.observation.policy)
    assert torch.equal(together.observation.critic[2:], apart.observation.critic)
    assert torch.equal(together.reward[2:], apart.reward)
    assert not torch.equal(together.observation.policy[0], together.observation.policy[1])
