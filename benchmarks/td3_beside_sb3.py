"""TD3 of Lockstep and of Stable-Baselines3: the same gradient steps, from the same parameters, transitions and noise?

    python benchmarks/td3_beside_sb3.py

Prints, after some numbers of steps, the largest difference between the two libraries' values, actions and target values
on 500 transitions of HalfCheetah-v5. `order=ours` takes the gradient of the actor before the critics' step, as Lockstep
does; `order=theirs` calls Stable-Baselines3's own `train`, which takes it after. It runs in the environment of
`lockstep bench` for Stable-Baselines3, which is installed if it is missing, with the packages of this one beside it.
"""

import os
import subprocess
import sys
import sysconfig
from pathlib import Path
from typing import Any

import numpy as np

TASK = "HalfCheetah-v5"
ROWS, BATCH, SHOWN = 5000, 256, 500
HIDDEN, RATE = (400, 300), 1e-3
STEPS = (1, 2, 4, 10, 50, 200, 1000)


def collected(environment: Any) -> list[Any]:
    """Observations, actions, rewards and next observations of random steps."""
    import torch

    environment.action_space.seed(0)
    observation, _ = environment.reset(seed=0)
    rows: list[Any] = []
    while len(rows) < ROWS:
        action = environment.action_space.sample()
        following, reward, terminated, truncated, _ = environment.step(action)
        rows.append((observation, action, reward, following))
        observation = environment.reset()[0] if terminated or truncated else following
    return [torch.tensor(np.array(column), dtype=torch.float32) for column in zip(*rows, strict=True)]


def lockstep_learner() -> Any:
    """TD3 of Lockstep in a world of one rank."""
    from lockstep import World
    from lockstep.algorithms.td3 import TD3Config
    from lockstep.envs.make import env_spec
    from lockstep.run import NetworkConfig, Run
    from lockstep.torch.comm import Comm
    from lockstep.torch.continuous_policy import ContinuousPolicy
    from lockstep.torch.td3 import TD3

    network = NetworkConfig(hidden=HIDDEN, activation="relu")
    run = Run(task=TASK, algo="td3", num_envs=1, network=network, algorithm=TD3Config(learning_rate=RATE))
    policy = ContinuousPolicy(env_spec(run.task, run.env), network, run.algorithm)
    learner = TD3(run, policy, Comm(World(), device="cpu"))
    learner.copy_to_target()
    return learner


def sb3_learner(environment: Any, policy: Any) -> Any:
    """TD3 of Stable-Baselines3 with the parameters of a policy of Lockstep."""
    import torch
    from stable_baselines3 import TD3
    from stable_baselines3.common.logger import configure

    model: Any = TD3(
        "MlpPolicy", environment, learning_rate=RATE, buffer_size=1, device="cpu", policy_kwargs={"net_arch": [*HIDDEN]}
    )
    model.set_logger(configure(None, []))

    def copy(theirs: Any, ours: Any) -> None:
        linear = [layer for layer in theirs if isinstance(layer, torch.nn.Linear)]
        for layer, (weight, bias) in zip(linear, ours, strict=True):
            layer.weight.copy_(weight)
            layer.bias.copy_(bias)

    with torch.no_grad():
        for actor in (model.actor, model.actor_target):
            copy(actor.mu, [(layer.weight, layer.bias) for layer in policy.actor.layers])
        for critic in (model.critic, model.critic_target):
            for i, network in enumerate(critic.q_networks):
                copy(network, [(layer.weight[i], layer.bias[i]) for layer in policy.critics.layers])
    return model


def step_in_our_order(model: Any, drawn: Any, number: int) -> None:
    """A gradient step of Stable-Baselines3's networks, with the actor's gradient before the critics' step."""
    import torch
    from stable_baselines3.common.utils import polyak_update

    with torch.no_grad():
        noise = drawn.actions.clone().normal_(0, 0.2).clamp(-0.5, 0.5)
        action = (model.actor_target(drawn.next_observations) + noise).clamp(-1, 1)
        following = torch.cat(model.critic_target(drawn.next_observations, action), 1).amin(1, keepdim=True)
        target = drawn.rewards + 0.99 * following
    updates_actor = number % 2 == 0
    if updates_actor:
        model.actor.optimizer.zero_grad()
        (-model.critic.q1_forward(drawn.observations, model.actor(drawn.observations)).mean()).backward()
    loss = sum(torch.nn.functional.mse_loss(q, target) for q in model.critic(drawn.observations, drawn.actions))
    model.critic.optimizer.zero_grad()
    loss.backward()
    model.critic.optimizer.step()
    if updates_actor:
        model.actor.optimizer.step()
        polyak_update(model.critic.parameters(), model.critic_target.parameters(), 0.005)
        polyak_update(model.actor.parameters(), model.actor_target.parameters(), 0.005)


def compare(order: str) -> None:
    """Take the same steps with both, and print their differences."""
    import gymnasium
    import torch
    from stable_baselines3.common.type_aliases import ReplayBufferSamples

    from lockstep.torch.transitions import TransitionBatch

    environment, random = gymnasium.make(TASK), np.random.default_rng(0)
    observation, action, reward, following = collected(environment)
    td3 = lockstep_learner()
    model = sb3_learner(environment, td3.policy)
    zeros, ones = torch.zeros(BATCH, 1), torch.ones(BATCH)
    for number in range(1, STEPS[-1] + 1):
        i = torch.from_numpy(random.integers(ROWS, size=BATCH))
        drawn = ReplayBufferSamples(observation[i], action[i], following[i], zeros, reward[i][:, None])
        torch.manual_seed(number)
        noise = torch.empty_like(action[i]).normal_(0, 0.2) / 0.2
        torch.manual_seed(number)
        if order == "ours":
            step_in_our_order(model, drawn, number)
        else:
            model.replay_buffer.sample = lambda *_, drawn=drawn, **__: drawn
            model.train(1, BATCH)
        batch = (observation[i], action[i], reward[i], following[i], 0.99 * ones, ones, noise[:, None])
        td3._step([TransitionBatch(*batch)], [])
        if number % 2 == 0:
            td3._target_params.lerp_(td3.params, 0.005)
        if number in STEPS:
            with torch.no_grad():
                rows = observation[:SHOWN], action[:SHOWN]
                q, target_q = (torch.cat(c(*rows), 1).T for c in (model.critic, model.critic_target))
                acts = model.actor(rows[0]) - td3.policy.actor(rows[0]).tanh()
                errors = q - td3.policy.critics(*rows), acts, target_q - td3.target.critics(*rows)
            print(order, number, *(f"{float(error.abs().max()):.2g}" for error in errors), sep="\t", flush=True)


def main() -> None:
    """Run in the environment of Stable-Baselines3."""
    if len(sys.argv) > 1:
        compare(sys.argv[1])
        return
    from lockstep.cli.bench.environments import python_of

    root = Path(__file__).parent.parent
    path = os.pathsep.join([str(root / "src"), sysconfig.get_path("purelib")])
    print("order", "steps", "values", "actions", "target values", sep="\t", flush=True)
    for order in ("ours", "theirs"):
        command = [str(python_of("sb3", root / ".bench")), __file__, order]
        subprocess.run(command, env=os.environ | {"PYTHONPATH": path, "OMP_NUM_THREADS": "1"}, check=True)


if __name__ == "__main__":
    main()
