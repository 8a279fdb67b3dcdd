"""The spec of an environment written in JAX, determined without using JAX in this process.

Making an environment of another library initializes JAX, after which a run could no longer set threads and devices. A
subprocess makes it instead; of a user's class, which may have arrays of JAX, a copy of this process.
"""

import functools
import json
import multiprocessing
import os
import subprocess
import sys
import warnings
from dataclasses import asdict

from lockstep.config.env import EnvConfig
from lockstep.envs.spec import EnvSpec
from lockstep.errors import ConfigError, RunError
from lockstep.jax.envs.make import make_device_env
from lockstep.jax.hardware import compute_on_cpu, is_in_use

_REFUSED = 2


def device_env_spec(task: str, config: EnvConfig) -> EnvSpec:
    """The spec of a task written in JAX. Raises `ConfigError` if it cannot be made."""
    if task.startswith("jax/") or is_in_use():  # making ours computes nothing
        return make_device_env(task, config).spec
    if ":" in task:
        return _made_in_fork(task, config)
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
        raise RunError(f"looking at task={task} failed: {result.stderr.strip().splitlines()[-1:]}")
    return EnvSpec.from_dict(json.loads(lines[-1]))


def _made_in_fork(task: str, config: EnvConfig) -> EnvSpec:
    """The spec of a class that may be defined in the running script: a fork knows it, and a fresh process may not."""
    context = multiprocessing.get_context("fork")
    receiver, sender = context.Pipe(duplex=False)

    def make() -> None:
        compute_on_cpu()
        try:
            sender.send(make_device_env(task, config).spec)
        except ConfigError as error:
            sender.send(error)
        sys.stdout.flush()
        os._exit(0)  # threads of the environment would keep a fork alive

    process = context.Process(target=make, daemon=True)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # JAX warns about forks, which are harmless before it is in use
        process.start()
    sender.close()
    try:
        found: EnvSpec | ConfigError = receiver.recv()
    except EOFError:
        process.join()
        raise ConfigError(f"task={task} ended its process with code {process.exitcode}") from None
    process.join()
    if isinstance(found, ConfigError):
        raise found
    return found


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
