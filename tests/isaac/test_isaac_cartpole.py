"""`lockstep/Cartpole-v0` against Isaac Lab's own `Isaac-Cartpole`, run by this interpreter or LOCKSTEP_ISAAC_PYTHON."""

import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest

from lockstep.envs.cartpole_dynamics import CartpoleDynamics, CartpoleState, reward_and_terminated

pytestmark = pytest.mark.isaac


@pytest.fixture(scope="module")
def recorded(tmp_path_factory):
    python = os.environ.get("LOCKSTEP_ISAAC_PYTHON") or (sys.executable if find_spec("isaaclab") else None)
    if python is None:
        pytest.skip("Isaac Lab is not installed here, and LOCKSTEP_ISAAC_PYTHON names no interpreter that has it")
    path = tmp_path_factory.mktemp("isaac") / "steps.npz"
    script = Path(__file__).parent / "record_cartpole.py"
    assets = os.environ.get("ISAACSIM_ASSET_ROOT", str(Path(sys.prefix) / "assets"))
    environment = os.environ | {"OMP_NUM_THREADS": "1", "ISAACSIM_ASSET_ROOT": assets}
    done = subprocess.run(
        [python, script, path], env=environment, capture_output=True, text=True, check=False, timeout=600
    )
    assert done.returncode == 0, done.stderr[-2000:]
    return np.load(path)


def test_states_and_rewards_equal_those_of_isaac_lab_over_20_steps(recorded):
    observation, action = recorded["observation"], recorded["action"]
    dynamics, state = CartpoleDynamics(), CartpoleState(*observation[0].T)
    running = np.ones(observation.shape[1], bool)
    for t in range(20):
        state = dynamics.advance(np, state, action[t, :, 0])
        reward, terminated = reward_and_terminated(np, state)
        np.testing.assert_allclose(reward[running], recorded["reward"][t][running], atol=1e-5)
        np.testing.assert_array_equal(terminated[running], recorded["ended"][t][running])
        running &= ~recorded["ended"][t]
        error = np.abs(np.stack(state, 1) - observation[t + 1])[running].max(1)
        assert (error / (1 + np.abs(observation[t + 1])[running].max(1))).max() < 1e-5
    assert running.sum() > 32
