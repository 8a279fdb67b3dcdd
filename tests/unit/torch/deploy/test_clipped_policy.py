"""A policy whose run clips observations clips those that it is given later, too."""

import json
from dataclasses import replace

import numpy as np
import pytest
import torch

from lockstep.envs.make import env_spec
from lockstep.envs.spec import EnvSpec
from lockstep.run import EnvConfig, NetworkConfig, Run
from lockstep.session.policy_file import POLICY_FILE
from lockstep.torch.deploy.acting_export import export_acting
from lockstep.torch.export import load_player, load_policy, save_policy
from lockstep.torch.networks import Policy

FAR = np.array([0.9, -0.8, 7.0], np.float32)
CLIPPED = np.array([0.5, -0.5, 0.5], np.float32)
RUN = Run(task="Pendulum-v1", env=EnvConfig(clip_observation=0.5), network=NetworkConfig(hidden=(8,)))


@pytest.fixture
def wide(tmp_path):
    """The run directory of a policy that clips; returns it and what the policy does without it."""
    spec = env_spec(RUN.task, RUN.env)
    policy = Policy(spec, RUN.network, 1)
    with torch.no_grad():
        for parameter in policy.parameters():
            parameter.mul_(5)
    save_policy(tmp_path / POLICY_FILE, policy, None, RUN)
    with torch.no_grad():
        far, clipped = policy(torch.from_numpy(np.stack([FAR, CLIPPED])))[0][:, :1].numpy().clip(-2, 2)
    assert not np.allclose(far, clipped)
    return tmp_path, clipped


def test_the_player_clips(wide):
    run_dir, clipped = wide
    spec, player = load_player(run_dir)
    assert spec.clip_observation == 0.5
    for observation in (FAR, CLIPPED):
        np.testing.assert_allclose(player.act(observation), clipped, rtol=1e-5)


def test_the_exported_file_clips(wide):
    pytest.importorskip("onnxruntime")
    pytest.importorskip("onnxscript")
    from lockstep.torch.deploy.onnx_model import run_onnx

    run_dir, clipped = wide
    policy, moments = load_policy(run_dir)
    done = export_acting(policy, moments, run_dir / "policy.onnx", "onnx")
    np.testing.assert_allclose(run_onnx(done.path, {"observation": FAR[None]})["action"][0], clipped, rtol=1e-4)


@pytest.mark.parametrize("limit", [None, np.inf])
def test_specs_without_a_limit_are_written_as_before(limit):
    spec = env_spec(RUN.task, replace(RUN.env, clip_observation=limit))
    assert "clip_observation" not in spec.to_dict()
    assert EnvSpec.from_dict(json.loads(json.dumps(spec.to_dict()))) == spec
