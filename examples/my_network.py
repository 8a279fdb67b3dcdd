"""A network of your own instead of `network.hidden`.

    lockstep train cartpole --ranks 2 --set network.module=examples/my_network.py:MyNetwork

Lockstep creates it on every rank with the same seed and keeps its parameters equal. Nothing here depends on ranks.
Avoid layers that mix the rows of a batch (batch normalization), because each rank has different rows.
"""

import torch
from torch import Tensor, nn


class MyNetwork(nn.Module):
    """Residual blocks shared by two heads.

    Args:
        observation_size: O, length of the flat observation.
        num_outputs: P, outputs that describe the action distribution: logits, or the means of continuous actions
            (their deviations are parameters of the policy around this network).
    """

    def __init__(self, observation_size: int, num_outputs: int) -> None:
        super().__init__()
        width = 64
        self.embed = nn.Linear(observation_size, width)
        self.blocks = nn.ModuleList(
            nn.Sequential(nn.LayerNorm(width), nn.Linear(width, width), nn.ELU(), nn.Linear(width, width))
            for _ in range(2)
        )
        self.actor, self.critic = nn.Linear(width, num_outputs), nn.Linear(width, 1)
        with torch.no_grad():
            self.actor.weight.mul_(0.01)  # begin with all actions about equally likely

    def forward(self, observation: Tensor) -> tuple[Tensor, Tensor]:
        """[N, O] to distribution parameters [N, P] and value [N]."""
        x = self.embed(observation)
        for block in self.blocks:
            x = x + block(x)
        return self.actor(x), self.critic(x).squeeze(-1)
