"""Looking at environments in JAX before a run, which must not start JAX: the run sets its threads and devices."""

import subprocess
import sys

import pytest

pytest.importorskip("jax")

from lockstep.errors import RunError
from lockstep.jax.envs import subprocess_spec

_ENV = """
import jax
import jax.numpy as jnp

from lockstep.envs.spec import ActionSpec, EnvSpec


class Reach:
    on_device = True

    def __init__(self, scale=1.0):
        if scale < 0:
            import os
            os._exit(5)
        self.goal = jnp.array([0.5, 1.0]) * scale
        self.spec = EnvSpec(
            observation_size=2, action=ActionSpec("discrete", (2,)), autoreset="same_step", separately_seedable=True,
            max_episode_steps=20,
        )

    def reset(self, key):
        return jax.random.normal(key, (2,)), jnp.zeros((), jnp.int32)

    def observe(self, state):
        return state[0] - self.goal

    def step(self, state, action, key):
        state = state[0] * 0.9 + action, state[1] + 1
        return state, self.observe(state), jnp.float32(1.0), jnp.zeros((), bool), state[1] >= 20
"""
_LOOK = """
import sys
from lockstep.envs.make import env_spec
from lockstep.errors import ConfigError
from lockstep.jax.hardware import is_in_use
from lockstep.run import EnvConfig, Run
from lockstep.session.env_checks.before_run import check_before_run

run = Run(task="reach.py:Reach", ml_framework="jax", env=EnvConfig(kwargs={"scale": float(sys.argv[1])}))
try:
    print(env_spec(run.task, run.env).observation_size)
    check_before_run(run)
except ConfigError as error:
    print(error)
print(is_in_use())
"""


@pytest.mark.parametrize(
    ("scale", "said"), [("2", ["2"]), ("-1", ["task=reach.py:Reach ended its process with code 5"])]
)
def test_a_class_with_arrays_of_jax_is_looked_at_elsewhere(tmp_path, scale, said):
    (tmp_path / "reach.py").write_text(_ENV)
    done = subprocess.run(
        [sys.executable, "-c", _LOOK, scale], cwd=tmp_path, capture_output=True, text=True, check=False, timeout=100
    )
    assert done.stdout.splitlines() == [*said, "False"], done.stderr


@pytest.mark.parametrize(
    ("stderr", "last"), [("Traceback\nMemoryError: no room\n", "MemoryError: no room"), ("", "no output")]
)
def test_a_subprocess_that_fails_is_told_by_its_last_line(monkeypatch, stderr, last):
    done = subprocess.CompletedProcess([], 1, "", stderr)
    monkeypatch.setattr(subprocess_spec.subprocess, "run", lambda *_, **__: done)
    with pytest.raises(RunError, match=f"^making task=gymnax/X to read its spec failed: {last}$"):
        subprocess_spec._run_subprocess("gymnax/X", last)


def test_where_jax_is_in_use_the_class_is_made_here(tmp_path):
    (tmp_path / "reach.py").write_text(_ENV)
    code = "import jax; jax.devices()" + _LOOK
    done = subprocess.run(
        [sys.executable, "-c", code, "1"], cwd=tmp_path, capture_output=True, text=True, check=False, timeout=100
    )
    assert done.stdout.splitlines() == ["2", "True"], done.stderr
