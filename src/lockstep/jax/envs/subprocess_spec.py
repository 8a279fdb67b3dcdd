"""The spec of an environment written in JAX, determined without using JAX in this process.

Making an environment of another library initializes JAX, after which a run could no longer set threads and devices. A
subprocess makes it instead; of a user's class, which may have arrays of JAX, a copy of this process.
"""

import functools
import json
import os
import subprocess
import sys
from dataclasses import asdict

from lockstep.config.env import EnvConfig
from lockstep.envs.spec import EnvSpec
from lockstep.errors import ConfigError, RunError
from lockstep.jax.envs.make import make_device_env
from lockstep.jax.hardware import compute_on_cpu, is_in_use
from lockstep.system.forked import in_fork

_REFUSED = 2


def device_env_spec(task: str, config: EnvConfig) -> EnvSpec:
    """The spec of a task written in JAX. Raises `ConfigError` if it cannot be made."""
    if task.startswith("jax/") or is_in_use():  # making ours computes nothing
        return make_device_env(task, config).spec
    if ":" in task:  # the class may be defined in the running script, which a fork knows
        return in_fork(lambda: _made_on_cpu(task, config), f"task={task}")
    return _run_subprocess(task, json.dumps(asdict(config)))


@functools.cache
def _run_subprocess(task: str, config: str) -> EnvSpec:
    command = [sys.executable, "-m", "lockstep.jax.envs.subprocess_spec", task, config]
    result = subprocess.run(
        command, env=os.environ | {"JAX_PLATFORMS": "cpu"}, capture_output=True, text=True, check=False
    )
    lines = result.stdout.strip().splitlines() or result.stderr.strip().splitlines() or ["no output"]
    if result.returncode == _REFUSED:
        raise ConfigError(lines[-1])
    if result.returncode:
        last = (result.stderr.strip().splitlines() or ["no output"])[-1]
        raise RunError(f"making task={task} to read its spec failed: {last}")
    return EnvSpec.from_dict(json.loads(lines[-1]))


def _made_on_cpu(task: str, config: EnvConfig) -> EnvSpec:
    compute_on_cpu()
    return make_device_env(task, config).spec


def main(task: str, config: str) -> int:
    """Print the spec, or the error, as the last line; returns the exit code."""
    settings = json.loads(config)
    settings |= {name: tuple(settings[name]) for name in ("wrappers", "policy_keys", "critic_keys")}
    try:
        spec = make_device_env(task, EnvConfig(**settings)).spec
    except ConfigError as error:
        print(error)
        return _REFUSED
    print(json.dumps(spec.to_dict()))
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
