"""With both frameworks installed, a run of one never imports the other; so each is installed without the other."""

import subprocess
import sys
from importlib.util import find_spec

import pytest

from quick import others_slow

OTHERS = {"torch": ("jax", "jaxlib", "optax"), "jax": ("torch",)}


@pytest.mark.parametrize("framework", OTHERS)
@pytest.mark.parametrize("algo", others_slow(["ppo", "dqn"], "ppo"))
def test_a_run_imports_its_own_framework_only(tmp_path, framework, algo):
    if find_spec("torch") is None or find_spec("jax") is None:
        pytest.skip("needs both frameworks")
    settings = ["num_envs=8", "log_every=64", "evaluate_every=null", "evaluate_episodes=2", "network.hidden=[16,16]"]
    settings += ["total_steps=256", "algorithm.num_steps=8", "device=cpu"]
    settings += ["algorithm.learning_starts=64", "algorithm.capacity=1024"] if algo == "dqn" else []
    words = ["train", "CartPole-v1", "--algo", algo, "--ml-framework", framework, "--run-dir", "run"]
    words += [word for setting in settings for word in ("--set", setting)]
    program = "import sys\nfrom lockstep.cli import main as cli\n"
    program += f"assert cli.main({words!r}) == 0\n"
    program += "assert cli.main(['evaluate', 'run', '--episodes', '2']) == 0\n"
    program += f"found = set({OTHERS[framework]!r}) & set(sys.modules)\nassert not found, found\n"
    program += f"assert {framework!r} in sys.modules"
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=tmp_path, capture_output=True, text=True, timeout=180, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
