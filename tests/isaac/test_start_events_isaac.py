"""What a task draws once at its start, in Isaac Lab's event mode `startup`: of each shard from its own seed."""

import json
from importlib.util import find_spec

import pytest
from isaac_process import run_python

pytestmark = pytest.mark.isaac
if find_spec("isaaclab_tasks") is None:
    pytest.skip("needs Isaac Lab: make test-isaac", allow_module_level=True)

# The cart-pole has no such event; the term that Isaac Lab's legged robots use is added to it.
MASSES = """
import json
import torch
from isaaclab.envs import mdp
from isaaclab.managers import EventTermCfg, SceneEntityCfg
from lockstep.torch.envs.isaac_lab import maker

env = maker("Isaac-Cartpole")(num_envs=4, device=torch.device("cpu"))
simulator = env._env
cart = SceneEntityCfg("robot", body_names="cart")
cart.resolve(simulator.scene)
params = {"asset_cfg": cart, "mass_distribution_params": (0.5, 2.0), "operation": "add"}
term = EventTermCfg(func=mdp.randomize_rigid_body_mass, mode="startup", params=params)
simulator.event_manager._mode_term_names["startup"] = ["mass"]
simulator.event_manager._mode_term_cfgs["startup"] = [term]

def mass():
    return simulator.scene["robot"].data.body_mass.torch[:, cart.body_ids].flatten().tolist()

found = [mass()]
for seed in (4, 5, 4):
    env.reset([seed])
    found.append(mass())
env.close()
print(json.dumps(found))
"""


def test_masses_are_drawn_from_the_seed_of_the_shard(tmp_path):
    own, *drawn = json.loads(run_python(tmp_path, "-c", MASSES).splitlines()[-1])
    assert drawn[0] == drawn[2] and drawn[0] != drawn[1]
    assert len(set(drawn[0])) == 4
    for masses in drawn:
        assert all(0.5 <= mass - before <= 2.0 for mass, before in zip(masses, own, strict=True))
