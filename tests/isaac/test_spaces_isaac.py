"""Isaac Lab's tasks with other spaces than vectors: the cart-pole showcase, and the cart-pole with a camera."""

import json
from importlib.util import find_spec

import pytest
from isaac_process import run_python

pytestmark = pytest.mark.isaac
if find_spec("isaaclab_tasks") is None:
    pytest.skip("needs Isaac Lab: make test-isaac", allow_module_level=True)

# The cart is pushed to the right until an episode ends.
SHOWCASE = """
import json
import torch
from lockstep.torch.envs.isaac_lab import maker

make = maker("IsaacContrib-Cartpole-Showcase-Direct")
env = make(num_envs=4, device=torch.device("cpu"), presets="dict_multidiscrete")
env.reset([1])
ended = torch.zeros(4, dtype=torch.bool)
while not ended.any():
    step = env.step(torch.tensor([[2, 1]] * 4))
    ended = step.terminated | step.truncated
action, width = env.spec.action, env.spec.observation_size
cart = {"final": step.final.policy[ended, 0].tolist(), "next": step.observation.policy[ended, 0].tolist()}
env.close()
print(json.dumps(cart | {"action": [action.kind, action.sizes], "width": width}))
"""


def test_final_observations_of_the_showcase_are_those_before_the_reset(tmp_path):
    """Its Dict consists of live buffers of the simulator; the cart is out of bounds at 3 m and starts within 1 m."""
    found = json.loads(run_python(tmp_path, "-c", SHOWCASE).splitlines()[-1])
    assert (found["width"], found["action"]) == (4, ["multi_discrete", [3, 2]])
    assert all(position > 3 for position in found["final"])
    assert all(abs(position) <= 1 for position in found["next"])


@pytest.mark.parametrize("framework", ["torch", "jax"])
def test_a_policy_learns_from_images_of_the_camera_with_a_critic_group(tmp_path, framework):
    changes = {
        "num_envs": 4, "num_steps": 8, "num_minibatches": 1, "num_epochs": 1, "total_steps": 64,
        "network.hidden": "[16]", "env.kwargs.image_range": "[-1,1]", "env.max_episode_steps": 8,
        "evaluate_every": "null", "evaluate_episodes": 1,
    }  # fmt: skip
    flags = [word for name, value in changes.items() for word in ("--set", f"{name}={value}")]
    run_python(
        tmp_path,
        "-m",
        "lockstep.train",
        "Isaac-Cartpole-Camera-Direct",
        "--run-dir",
        "run",
        "--ml-framework",
        framework,
        *flags,
    )
    summary = json.loads((tmp_path / "run" / "summary.json").read_text())
    assert (summary["status"], summary["env_steps"]) == ("finished", 64)
