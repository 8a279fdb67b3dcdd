"""What an environment on the device looks like, found out without JAX being used in this process.

Making an environment of another library computes with JAX, which then runs with the threads and devices it finds: a
run could not choose any more. So another process makes it.
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

_REFUSED = 2


def look(task: str, config: EnvConfig) -> EnvSpec:
    """The spec of a task on the device; `ConfigError` where it cannot be made."""
    if task.startswith("jax/") or ":" in task:  # these compute nothing when they are made
        return make_device_env(task, config).spec
    return _ask(task, json.dumps(asdict(config)))


@functools.cache
def _ask(task: str, config: str) -> EnvSpec:
    command = [sys.executable, "-m", "lockstep.jax.envs.look", task, config]
    asked = subprocess.run(
        command, env=os.environ | {"JAX_PLATFORMS": "cpu"}, capture_output=True, text=True, check=False
    )
    words = asked.stdout.strip().splitlines() or asked.stderr.strip().splitlines() or ["nothing was said"]
    if asked.returncode == _REFUSED:
        raise ConfigError(words[-1])
    if asked.returncode:
        raise RunError(f"looking at task={task} failed: {asked.stderr.strip().splitlines()[-1:]}")
    return EnvSpec.from_dict(json.loads(words[-1]))


def main(task: str, config: str) -> int:
    """Print a spec, or why there is none, as the last line; returns the exit code."""
    settings = json.loads(config)
    settings["wrappers"] = tuple(settings["wrappers"])
    try:
        spec = make_device_env(task, EnvConfig(**settings)).spec
    except ConfigError as error:
        print(error)
        return _REFUSED
    print(json.dumps(spec.to_dict()))
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
