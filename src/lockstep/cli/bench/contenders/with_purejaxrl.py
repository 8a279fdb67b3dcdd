"""PureJaxRL: PPO and CartPole-v1 of gymnax in one compiled function. Its clock starts when that is compiled."""

import argparse
import sys
import time
import types
from typing import Any

from clock import arguments, report

STEPS = 128


def with_five_results(gymnax: Any) -> None:
    """A step of gymnax 1.0 returns six values and brax is not needed; PureJaxRL was written for five and brax."""
    make = gymnax.make

    class Five:
        def __init__(self, env: Any) -> None:
            self._env = env

        def __getattr__(self, name: str) -> Any:
            return getattr(self._env, name)

        def step(self, key: Any, state: Any, action: Any, params: Any = None) -> Any:
            observation, state, reward, terminated, truncated, _ = self._env.step(key, state, action, params)
            return observation, state, reward, terminated | truncated, {}

    def made(name: str) -> Any:
        env, params = make(name)
        return Five(env), params

    gymnax.make = made
    brax = types.ModuleType("brax")
    envs: Any = types.ModuleType("brax.envs")
    vars(brax)["envs"] = envs
    sys.modules.setdefault("brax", brax)
    sys.modules.setdefault("brax.envs", envs)


def main(args: argparse.Namespace) -> None:
    """Train, and print the steps per second."""
    sys.path.insert(0, args.folder)
    import gymnax
    import jax

    with_five_results(gymnax)
    from purejaxrl.ppo import make_train

    num_envs = int(args.num_envs)
    rollout = num_envs * STEPS
    updates = args.measured // rollout
    config = {
        "LR": 2.5e-4, "NUM_ENVS": num_envs, "NUM_STEPS": STEPS, "TOTAL_TIMESTEPS": updates * rollout,
        "UPDATE_EPOCHS": 4, "NUM_MINIBATCHES": 4, "GAMMA": 0.99, "GAE_LAMBDA": 0.95, "CLIP_EPS": 0.2, "ENT_COEF": 0.01,
        "VF_COEF": 0.5, "MAX_GRAD_NORM": 0.5, "ACTIVATION": "tanh", "ENV_NAME": "CartPole-v1", "ANNEAL_LR": True,
        "DEBUG": False,
    }  # fmt: skip
    key = jax.random.PRNGKey(0)
    compiled = jax.jit(make_train(config)).lower(key).compile()
    start = time.perf_counter()
    jax.block_until_ready(compiled(key))
    report(updates * rollout / (time.perf_counter() - start), ["jax", "flax", "gymnax"])


if __name__ == "__main__":
    main(arguments("num_envs", "folder"))
