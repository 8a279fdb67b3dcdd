"""Policy files: whole, without pickle, and refused when they do not fit."""

import dataclasses
import json

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from lockstep.envs.spec import ActionSpec, EnvSpec, ImagePart
from lockstep.errors import ConfigError
from lockstep.experience.normalize import RunningMoments
from lockstep.run import NetworkConfig, Run
from lockstep.torch.export import load_policy, save_policy, start_from
from lockstep.torch.flat import FlatParameters
from lockstep.torch.networks import Policy

SPEC = EnvSpec(4, ActionSpec("continuous", (2,), (-1.0, -np.inf), (1.0, np.inf)), "next_step", True, 100.0, 50)
RUN = Run(task="some-task", network=NetworkConfig(hidden=(8, 4), activation="elu", initial_log_std=-0.5))


def moments():
    made = RunningMoments(4)
    made.update(made.sums(np.random.default_rng(0).random((20, 4)), np.ones(20)))
    return made


def test_a_policy_comes_back_whole(tmp_path):
    policy, normalizer = Policy(SPEC, RUN.network, seed=3), moments()
    FlatParameters(policy)  # views of one buffer must be written as tensors of their own
    save_policy(tmp_path / "policy.safetensors", policy, normalizer, RUN)
    for path in (tmp_path, tmp_path / "policy.safetensors"):
        loaded, observations = load_policy(path)
        spec = loaded.spec
        assert spec == SPEC
        assert all(torch.equal(a, b) for a, b in zip(policy.parameters(), loaded.parameters(), strict=True))
        assert {k: v.tolist() for k, v in observations.state().items()} == {
            k: v.tolist() for k, v in normalizer.state().items()
        }
    assert [path.name for path in tmp_path.iterdir()] == ["policy.safetensors"]


def test_images_among_numbers_are_not_normalized_after_loading_either(tmp_path):
    spec = dataclasses.replace(SPEC, observation_size=37, image_parts=(ImagePart(0, (1, 6, 6)),))
    normalizer = RunningMoments(37, fixed=[slice(36)])
    depth = (100 * np.random.default_rng(0).random((20, 37))).astype(np.float32)  # of a camera, in float32
    normalizer.update(normalizer.sums(depth, np.ones(20)))
    policy = Policy(spec, RUN.network)
    save_policy(tmp_path / "p.safetensors", policy, normalizer, RUN)
    _, loaded = load_policy(tmp_path / "p.safetensors")
    np.testing.assert_array_equal(loaded.normalize(depth), normalizer.normalize(depth))
    np.testing.assert_array_equal(loaded.normalize(depth)[:, :36], depth[:, :36])


def test_without_a_normalizer_there_is_none(tmp_path):
    save_policy(tmp_path / "p.safetensors", Policy(SPEC, RUN.network), None, RUN)
    assert load_policy(tmp_path / "p.safetensors")[1] is None


def test_starting_from_a_policy(tmp_path):
    source, normalizer = Policy(SPEC, RUN.network, seed=3), moments()
    save_policy(tmp_path / "policy.safetensors", source, normalizer, RUN)
    mine, observations = Policy(SPEC, RUN.network, seed=4), RunningMoments(4)
    start_from(tmp_path, mine, observations)
    assert all(torch.equal(a, b) for a, b in zip(source.parameters(), mine.parameters(), strict=True))
    assert observations.count == 20
    with pytest.raises(ConfigError, match="normalize_observation"):
        start_from(tmp_path, mine, None)
    other = Policy(SPEC, dataclasses.replace(RUN.network, hidden=(8, 5)))
    with pytest.raises(ConfigError, match=r"network differs .* in network\.actor\.layers\.1"):
        start_from(tmp_path, other, RunningMoments(4))


def test_what_is_no_policy_file_is_refused(tmp_path):
    with pytest.raises(ConfigError, match=r"has no policy\.safetensors and no checkpoint"):
        load_policy(tmp_path)
    path = tmp_path / "policy.safetensors"
    path.write_bytes(b"\x80\x04 not safetensors")
    with pytest.raises(ConfigError, match="not a Lockstep policy file"):
        load_policy(path)
    save_file({"a": torch.zeros(1)}, path)
    with pytest.raises(ConfigError, match="not a Lockstep policy file"):
        load_policy(path)


def test_a_damaged_file_is_refused_not_half_loaded(tmp_path):
    path = tmp_path / "policy.safetensors"
    save_policy(path, Policy(SPEC, RUN.network), None, RUN)
    path.write_bytes(path.read_bytes()[:-10])
    with pytest.raises(ConfigError, match="damaged"):
        load_policy(path)


def test_a_policy_file_with_other_tensors_is_refused(tmp_path):
    path = tmp_path / "policy.safetensors"
    about = {"format": 1, "task": "t", "network": dataclasses.asdict(RUN.network), "spec": SPEC.to_dict()}
    save_file({"a": torch.zeros(1)}, path, metadata={"lockstep": json.dumps(about)})
    with pytest.raises(ConfigError, match=r"not a Lockstep policy file|damaged"):
        load_policy(path)
