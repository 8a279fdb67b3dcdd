"""Record 20 steps of Isaac Lab's `Isaac-Cartpole` with random actions; runs under LOCKSTEP_ISAAC_PYTHON.

python record_cartpole.py OUT.npz
"""

import argparse
import sys

import numpy as np

_ENVS, _STEPS = 64, 20


def main(path: str) -> None:
    """Write observations [T + 1, B, 4], actions [T, B, 1], rewards and ended flags [T, B]."""
    from isaaclab.app import add_launcher_args, launch_simulation

    parser = argparse.ArgumentParser()
    add_launcher_args(parser)
    args = parser.parse_args(["--device", "cpu"])
    sys.argv = sys.argv[:1]
    import gymnasium
    import isaaclab_tasks  # noqa: F401  # registers the tasks
    import torch
    from isaaclab_tasks.utils import resolve_task_config

    config, _ = resolve_task_config("Isaac-Cartpole", "skrl_cfg_entry_point")
    config.scene.num_envs, config.sim.device, config.seed = _ENVS, "cpu", 7
    with launch_simulation(config, args):
        env = gymnasium.make("Isaac-Cartpole", cfg=config)
        drawn = np.random.default_rng(0).uniform(
            -3.9, 3.9, (_STEPS, _ENVS, 1)
        )  # Newton does not apply the effort limit
        actions = torch.from_numpy(drawn.astype(np.float32))
        observations = [env.reset()[0]["policy"].numpy().copy()]
        rewards, ended = [], []
        for action in actions:
            observation, reward, terminated, truncated, _ = env.step(action)
            observations.append(observation["policy"].numpy().copy())
            rewards.append(reward.numpy().copy())
            ended.append((terminated | truncated).numpy().copy())
        np.savez(path, observation=observations, action=actions.numpy(), reward=rewards, ended=ended)
        env.close()


if __name__ == "__main__":
    main(sys.argv[1])
