"""Pendulum-v1 with SAC: solved (a mean return of -160 over 100 episodes) within 12 000 steps."""

from lockstep.algorithms.sac import SACConfig
from lockstep.run import NetworkConfig, Run


def recipe() -> Run:
    """SAC with smaller networks, a higher learning rate and fewer random steps at the start than its defaults.

    8 environments allow 2 shards of 4.
    """
    return Run(
        task="Pendulum-v1",
        algo="sac",
        device="cpu",  # so that two ranks need no two GPUs, for a network this small
        num_envs=8,
        total_steps=12_000,
        evaluate_every=4_000,
        log_every=2_000,
        check_every=100,
        stop_return=-160.0,
        network=NetworkConfig(hidden=(64, 64), activation="relu"),
        algorithm=SACConfig(
            learning_starts=1_000,
            capacity=12_000,
            learning_rate=1e-3,
        ),
    )
