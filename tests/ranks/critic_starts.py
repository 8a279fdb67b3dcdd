"""What holds of `--init-from` with a value network whose unit is that of running statistics, in both frameworks."""

import json

import numpy as np
import pytest
from running import job, small
from safetensors.numpy import save_file

from lockstep.errors import ConfigError
from lockstep.record import checkpoint
from lockstep.run import override
from lockstep.session import policy_file
from lockstep.session.policy_file import POLICY_FILE
from lockstep.session.start_policy import check_start_policy
from lockstep.train import train

OF_CRITIC = ("critic_observations", "returns", "values")
NORMALIZED = {"normalize_observation": True, "normalize_value": True, "normalize_return": True}
GROUPS = {"env.policy_keys": ("position",), "env.critic_keys": ("speed", "position")}


def run_of(task, framework, **changes):
    """Of five updates, on four pinned shards, whose critic has observations of its own."""
    counts = {"num_shards": 4, "total_steps": 5 * 128, "checkpoint_every": 128}
    return small(task, ml_framework=framework, **counts, **NORMALIZED, **changes)


def moments_at(run_dir, step):
    """The state of the normalizers in a checkpoint, by name."""
    path = run_dir / "checkpoints" / f"step_{step}"
    files = checkpoint.read_manifest(path)["files"]
    tensors = checkpoint.read_state(path / checkpoint.LEARNER, files[checkpoint.LEARNER])["tensors"]
    return {name: tensors[name] for name in tensors if name.partition(".")[0] in ("observations", *OF_CRITIC)}


def check_equal(found, expected):
    assert found.keys() == expected.keys()
    for name, array in expected.items():
        np.testing.assert_array_equal(found[name], array, err_msg=name)


def without_critic(source, path):
    """The policy file of a run as an older version wrote it."""
    metadata, arrays = policy_file.read(source / policy_file.POLICY_FILE)
    arrays = {
        name: arrays[name] for name in arrays if not name.startswith(tuple(f"normalizer.{n}." for n in OF_CRITIC))
    }
    save_file(arrays, path, {"lockstep": json.dumps(metadata | {"format": 2})})
    return path


def check_a_run_begins_with_the_normalizers_of_its_policy(run, trained, path, capfd):
    """`trained` is the directory of a run that ended; it and its checkpoint of the last step are started from."""
    last = moments_at(trained, run.total_steps)
    assert {name.partition(".")[0] for name in last} == {"observations", *OF_CRITIC}
    assert all(array.all() for name, array in last.items() if name.endswith("count"))
    told, arrays = policy_file.read(trained / policy_file.POLICY_FILE)
    assert {f"normalizer.{name}.{key}" for name in OF_CRITIC for key in ("count", "mean", "variance")} <= arrays.keys()
    about, found = policy_file.read(trained / "checkpoints" / f"step_{run.total_steps}")
    assert about == told
    check_equal(found, arrays)
    capfd.readouterr()
    sources = {"run": trained, "checkpoint": trained / "checkpoints" / f"step_{run.total_steps}"}
    for name, source in sources.items():
        train(override(run, {"seed": 1, "total_steps": 128}), run_dir=path / name, init_from=source)
        check_equal(moments_at(path / name, 0), last)
        counts = {n: a for n, a in moments_at(path / name, 128).items() if n.endswith("count")}
        for counted, array in counts.items():
            assert array == last[counted] + 128, counted
    assert "warning: --init-from" not in "".join(capfd.readouterr())


def check_the_same_bits_on_any_number_of_ranks(run, trained, path, train_all, worlds):
    """`train_all` is that of a framework, from `running` or `jax_running`."""
    begun, found = override(run, {"seed": 1}), set()
    for ranks in worlds:
        one = job(begun, path, f"{ranks}", init_from=(str(trained),) * ranks)
        outcomes = train_all(ranks, {"run": one})["run"]
        assert [outcome.error for outcome in outcomes] == [""] * ranks
        found |= {rank["params_fingerprint"] for outcome in outcomes for rank in outcome.summary["ranks"]}
        check_equal(moments_at(path / f"{ranks}", run.total_steps), moments_at(path / "1", run.total_steps))
    assert len(found) == 1, "parameters depend on the number of ranks"


def check_a_file_of_an_older_version_is_told(run, trained, path, capfd):
    old = without_critic(trained, path / POLICY_FILE)
    capfd.readouterr()
    train(override(run, {"total_steps": 128}), run_dir=path / "run", init_from=old)
    lines = "".join(capfd.readouterr()).splitlines()
    said = [line.partition("warning: ")[2] for line in lines if "warning: --init-from" in line]
    assert said == [
        f"--init-from {old} is of an older version and has no running statistics of the critic's own "
        "observations, the discounted return (normalize_return), the targets of values (normalize_value): they begin "
        "anew, and the values of its value network are wrong until it has learned their new unit; a checkpoint of its "
        "run has them: RUN/checkpoints/step_N"
    ]
    begun, last = moments_at(path / "run", 0), moments_at(trained, run.total_steps)
    assert all((begun[f"{name}.count"] == 0).all() for name in OF_CRITIC)
    np.testing.assert_array_equal(begun["observations.count"], last["observations.count"])


def check_another_unit_of_values_is_refused(run, trained, path):
    for setting in ("normalize_value", "normalize_return"):
        changed = override(run, {setting: False})
        words = (
            rf"--init-from .*: its value network learned with {setting}=true, and this run has false, another unit of "
            rf"values; add --set {setting}=true, or start without it"
        )
        with pytest.raises(ConfigError, match=words):
            check_start_policy(trained, changed)
        with pytest.raises(ConfigError, match=words):
            train(changed, run_dir=path / "refused", init_from=trained)
    assert not (path / "refused").exists()
    check_start_policy(trained, run)
    old = without_critic(trained, path / POLICY_FILE)
    check_start_policy(old, override(run, {"normalize_value": False, "normalize_return": False}))
