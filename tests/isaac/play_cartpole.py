"""Print the mean return of a policy of `lockstep/Cartpole-v0` on 256 environments of the real `Isaac-Cartpole`.

python play_cartpole.py RUN
"""

import sys

import torch

from lockstep.torch.envs.isaac_lab import IsaacLabEnv
from lockstep.torch.export import load_player

_ENVS = 256
_EPISODE = 300


def main(run: str) -> None:
    """Play the first episode of each environment with the most likely actions."""
    _, player = load_player(run)
    actor = player.actor_of(_ENVS)
    env = IsaacLabEnv("Isaac-Cartpole", num_envs=_ENVS, device=torch.device("cpu"))
    observation = env.reset([7]).policy
    total, running = torch.zeros(_ENVS), torch.ones(_ENVS)
    for _ in range(_EPISODE):
        step = env.step(torch.from_numpy(player.choose(observation.numpy(), None, actor)))
        total += running * step.reward
        running *= ~(step.terminated | step.truncated)
        observation = step.observation.policy
    print(f"{float(total.mean()):.3f}")


if __name__ == "__main__":
    main(sys.argv[1])
