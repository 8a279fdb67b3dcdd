"""A walking Go1 on EnvPool: PPO on an easier reward first, then on more of it, then on the task's own.

    python benchmarks/go1_envpool.py runs/go1                # trains what is not there yet, and measures each stage

The task's reward is cut at 0. With random actions of deviation 0.3 it is 0 in nine of ten steps, so that nothing is
learned from it; with 0.1 standing is learned, which pays as long as walking costs more than it earns. The first stage
therefore rewards the commanded velocity almost alone, from further away; the second adds a part of the costs of
energy, slipping and low feet. Each stage begins with the policy of the one before (--init-from).

Needs the environment of `make test-suites`: .venv-suites/bin/python benchmarks/go1_envpool.py DIR
"""

import argparse
import json
from pathlib import Path
from typing import Any

import measure
import numpy as np

TASK = "envpool/Go1JoystickFlatTerrain-v1"
PPO = (
    "ml_framework=jax", "num_envs=256", "num_steps=24", "num_epochs=5", "num_minibatches=4", "gamma=0.97",
    "learning_rate_schedule=adaptive", "adapt_every=minibatch", "normalize_observation=true", "normalize_return=true",
    "network.hidden=[256,128,128]", "network.activation=elu", "network.shared=false", "evaluate_every=1000000",
    "evaluate_episodes=16", "log_every=250000", "checkpoint_every=1000000", "env.kwargs.num_threads=1",
)  # fmt: skip
STAGES = {
    "velocity": (
        "total_steps=2000000", "learning_rate=1e-3", "desired_kl=0.01", "entropy_coef=0.003",
        "network.initial_log_std=-0.7", "env.kwargs.tracking_sigma=1.0", "env.kwargs.pose_scale=0.1",
        "env.kwargs.feet_clearance_scale=0.0", "env.kwargs.orientation_scale=-0.3", "env.kwargs.ang_vel_xy_scale=0.0",
        "env.kwargs.feet_slip_scale=0.0", "env.kwargs.energy_scale=0.0", "env.kwargs.lin_vel_z_scale=-0.1",
        "env.kwargs.feet_height_scale=0.0", "env.kwargs.action_rate_scale=-0.001",
        "env.kwargs.dof_pos_limits_scale=-0.2", "env.kwargs.torques_scale=0.0",
    ),
    "costs": (
        "total_steps=3000000", "learning_rate=5e-4", "desired_kl=0.015", "entropy_coef=0",
        "env.kwargs.tracking_sigma=0.5", "env.kwargs.pose_scale=0.3", "env.kwargs.feet_clearance_scale=-0.5",
        "env.kwargs.orientation_scale=-1.5", "env.kwargs.ang_vel_xy_scale=-0.015",
        "env.kwargs.feet_slip_scale=-0.025", "env.kwargs.energy_scale=-0.0003", "env.kwargs.feet_height_scale=-0.1",
        "env.kwargs.action_rate_scale=-0.003",
    ),
    "task": ("total_steps=5000000", "learning_rate=5e-4", "desired_kl=0.015", "entropy_coef=0"),
}  # fmt: skip
ROBOTS, STEPS, BEGIN = 32, 500, 50
"""Robots and steps of a measurement; velocities count after the first steps."""


def train(folder: Path) -> None:
    """Train all stages that are not finished."""
    before: Path | None = None
    for name, settings in STAGES.items():
        run_dir = folder / name
        if not (run_dir / "policy.safetensors").exists():
            begin = [] if before is None else ["--init-from", str(before)]
            changes = [word for setting in (*PPO, *settings) for word in ("--set", setting)]
            measure.call([*measure.LOCKSTEP, "train", TASK, "--run-dir", str(run_dir), *begin, *changes])
        before = run_dir


def walk(run_dir: Path) -> dict[str, float]:
    """How the policy follows commands on the task itself, by its most likely actions."""
    import envpool

    from lockstep.jax import load_player

    _, player = load_player(run_dir)
    actor = player.actor_of(ROBOTS)
    env: Any = envpool.make(TASK.partition("/")[2], "gymnasium", num_envs=ROBOTS, num_threads=1, seed=7)
    observation, _ = env.reset()
    total, falls, commands, velocities = 0.0, 0, list[np.ndarray](), list[np.ndarray]()
    for step in range(STEPS):
        action = player.choose(observation["state"].astype(np.float32), None, actor)
        observation, reward, terminated, _, info = env.step(np.clip(action, -1, 1).astype(np.float64))
        total, falls = total + float(reward.mean()), falls + int(terminated.sum())
        if step >= BEGIN:
            commands.append(info["command"][:, :2].copy())
            velocities.append(observation["state"][:, :2].copy())
    command, velocity = np.concatenate(commands), np.concatenate(velocities)
    ahead = command[:, 0] > 0.5
    return {
        "reward of 500 steps": total,
        "falls": falls,
        "forward: commanded": float(command[ahead, 0].mean()),
        "forward: walked": float(velocity[ahead, 0].mean()),
        "correlation forward": float(np.corrcoef(command[:, 0], velocity[:, 0])[0, 1]),
        "correlation sideways": float(np.corrcoef(command[:, 1], velocity[:, 1])[0, 1]),
    }


def main() -> None:
    """Train and measure; prints a markdown table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, help="of the runs")
    folder = parser.parse_args().folder
    train(folder)
    rows: list[tuple[Any, ...]] = []
    for name in STAGES:
        summary = json.loads((folder / name / "summary.json").read_text())
        found = walk(folder / name)
        if not rows:
            rows.append(("stage", "steps", "seconds", "return of its own reward", *found))
        numbers = (f"{value:.3g}" for value in found.values())
        own = f"{summary['eval_return_mean']:.1f}"
        rows.append((name, f"{summary['env_steps']:,}", f"{summary['wall_time_s']:.0f}", own, *numbers))
    for i, row in enumerate(rows):
        print(f"| {' | '.join(row)} |" + ("\n" + "|---" * len(row) + "|" if i == 0 else ""))


if __name__ == "__main__":
    main()
