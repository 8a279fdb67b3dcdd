"""Where a run steps its environments: on the device of the policy, or on the host."""

from lockstep.algorithms.sac import SACConfig
from lockstep.algorithms.td3 import TD3Config
from lockstep.config.settings import as_text
from lockstep.envs.make import PIXELS_OF_BOTH, is_tensor_task, stays_on_device
from lockstep.errors import ConfigError
from lockstep.run import Run
from lockstep.system.nvidia import jax_finds_gpu

TORCH_ON_DEVICE = ("ppo",)
"""The algorithms that learn from environments on torch tensors where these are."""
JAX_DEVICE_LOOPS = {"ppo": "ppo_on_device", "sac": "actor_critic_on_device", "td3": "actor_critic_on_device"}
"""The algorithms that step environments written in JAX inside their compiled updates, and the modules of `lockstep.jax`
with that loop."""
MOVE_TO_HOST = ("prioritized", "replay_path", "replay_device")
"""Settings of the replay buffer that may need the transitions to be collected on the host, in JAX."""


def check_placement(run: Run) -> None:
    """Raise `ConfigError` if environments would be on a device that this algorithm, task or frame stacking lacks."""
    on_device = TORCH_ON_DEVICE if run.ml_framework == "torch" else JAX_DEVICE_LOOPS
    if run.env.placement == "device" and run.algo not in on_device:
        raise ConfigError(
            f"env.placement=device: algo={run.algo} with ml_framework={run.ml_framework} steps environments on the "
            "host; use auto or host"
        )
    if run.env.placement == "device" and run.ml_framework == "jax" and run.algo != "ppo" and is_tensor_task(run.task):
        raise ConfigError(
            f"env.placement=device: algo={run.algo} in JAX steps task={run.task}, which is on torch tensors, through "
            "the host; use auto or host"
        )
    if run.algo in on_device and (run.env.placement == "device" or run.env.frame_stack > 1):
        stays_on_device(run.task, run.env, run.ml_framework, preferred=True)  # refuses what the host alone can do


def learns_on_device(run: Run) -> bool:
    """Whether a run in JAX steps environments that are written in JAX inside its compiled updates.

    Raises:
        ConfigError: `env.placement=device`, and a setting of the replay buffer needs the host.
    """
    config = run.algorithm
    # On CPUs convolutions are many times slower within compiled loops.
    on_gpu = run.device != "cpu" and jax_finds_gpu()
    preferred = run.task != PIXELS_OF_BOTH or on_gpu
    if run.algo not in JAX_DEVICE_LOOPS or not stays_on_device(run.task, run.env, "jax", preferred=preferred):
        return False
    if isinstance(config, SACConfig | TD3Config):
        not_the_device = config.replay_device == ("cpu" if on_gpu else "cuda")
        need = (config.prioritized, config.replay_path is not None, not_the_device)
        for name, needs_host in zip(MOVE_TO_HOST, need, strict=True):
            if needs_host and run.env.placement == "device":
                raise ConfigError(
                    f"{name}={as_text(getattr(config, name))} is for transitions that the host collects; use "
                    f"env.placement=host, or leave {name} out"
                )
            if needs_host:
                return False
    return True
