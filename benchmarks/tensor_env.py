"""Steps per second with learning of `lockstep/Cartpole-v0` on tensors, one core, next to the trainers of Isaac Lab.

    python benchmarks/tensor_env.py [--python INTERPRETER] [--num-envs 4096] [--updates 20] [--rounds 3]

Every library trains PPO with the settings that Isaac Lab publishes for its cart-pole (16 steps, 8 epochs, 8
minibatches, a body of 2 x 32 ELU) on the same object, `lockstep.torch.envs.cartpole.Cartpole`. skrl, rl_games and
rsl_rl are taken from INTERPRETER, an environment that has them (default: LOCKSTEP_ISAAC_PYTHON). Each is a process of
its own; rounds alternate between libraries, and the fastest round counts. A rate per second of the processor depends
less on other work on the machine than one per second of the wall.
"""

import argparse
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch

ROOT = Path(__file__).parents[1]
OURS = ("tensors", "numpy")
PEERS = ("skrl", "rl_games", "rsl_rl")
STEPS, EPOCHS, MINIBATCHES = 16, 8, 8


def make_env(num_envs: int) -> Any:
    """The environments that every library is given."""
    from lockstep.torch.envs.cartpole import Cartpole

    env = Cartpole(num_envs, device=torch.device("cpu"))
    env.reset([0])
    return env


def ours(num_envs: int, *, tensors: bool) -> Callable[[int], None]:
    """A function that makes updates of Lockstep's PPO."""
    from lockstep.distributed.timers import Timers
    from lockstep.envs.cartpole import Cartpole
    from lockstep.experience.rollout import Collector
    from lockstep.recipes.cartpole_isaac import recipe
    from lockstep.run import override
    from lockstep.torch.comm import Comm
    from lockstep.torch.device_rollout import TensorCollector
    from lockstep.torch.networks import Policy, actor_of
    from lockstep.torch.ppo import PPO
    from lockstep.world import World

    run = override(recipe(), {"num_envs": num_envs})
    env = make_env(num_envs)
    comm = Comm(World(), device="cpu")
    ppo = PPO(run, Policy(env.spec, run.network), comm)
    common: dict[str, Any] = {"num_steps": STEPS, "seed": 0, "timers": Timers()}
    collector: Any
    if tensors:
        collector = TensorCollector(comm, [env], ppo.policy, ppo.normalizers, gamma=run.algorithm.gamma, **common)
    else:
        actor = actor_of(ppo.policy, comm.device)
        collector = Collector(
            comm.world, [Cartpole(num_envs)], actor, ppo.policy.distribution, report_non_finite=True, **common
        )

    def train(updates: int) -> None:
        for _ in range(updates):
            ppo.update(collector.collect(), np.zeros((1, 1)))

    return train


def with_skrl(num_envs: int) -> Callable[[int], None]:
    """A function that makes updates of skrl's PPO."""
    import gymnasium
    from skrl.envs.wrappers.torch import Wrapper
    from skrl.utils.runner.torch import Runner

    class Env(Wrapper):
        """The environments, as skrl takes them."""

        observation_space = gymnasium.spaces.Box(-np.inf, np.inf, (4,))
        action_space = gymnasium.spaces.Box(-np.inf, np.inf, (1,))
        state_space = None
        num_agents = 1

        def __init__(self) -> None:
            super().__init__(make_env(num_envs))

        def reset(self) -> Any:
            return self._env.reset([0]).policy.clone(), {}

        def step(self, actions: Any) -> Any:
            step = self._env.step(actions)
            flags = (step.reward, step.terminated, step.truncated)
            return step.observation.policy, *(flag.unsqueeze(1) for flag in flags), {}

        def state(self) -> None:
            return None

        def render(self, *args: Any, **kwargs: Any) -> None:
            pass

        def close(self) -> None:
            pass

    layers = [{"name": "net", "input": "OBSERVATIONS", "layers": [32, 32], "activations": "elu"}]
    policy = {
        "class": "GaussianMixin", "clip_actions": False, "clip_log_std": True, "min_log_std": -20.0,
        "max_log_std": 2.0, "initial_log_std": 0.0, "network": layers, "output": "ACTIONS",
    }  # fmt: skip
    value = {"class": "DeterministicMixin", "clip_actions": False, "network": layers, "output": "ONE"}
    agent = {
        "class": "PPO", "rollouts": STEPS, "learning_epochs": EPOCHS, "mini_batches": MINIBATCHES,
        "discount_factor": 0.99, "gae_lambda": 0.95, "learning_rate": 3e-4, "learning_rate_scheduler": "KLAdaptiveLR",
        "learning_rate_scheduler_kwargs": {"kl_threshold": 0.008}, "grad_norm_clip": 1.0, "ratio_clip": 0.2,
        "value_clip": 0.2, "entropy_loss_scale": 0.0, "value_loss_scale": 2.0,
        "experiment": {"write_interval": 0, "checkpoint_interval": 0},
    }  # fmt: skip
    config = {
        "seed": 42, "models": {"separate": False, "policy": policy, "value": value},
        "memory": {"class": "RandomMemory", "memory_size": -1}, "agent": agent,
        "trainer": {
            "class": "SequentialTrainer", "timesteps": STEPS, "environment_info": "log",
            "close_environment_at_exit": False, "disable_progressbar": True,
        },
    }  # fmt: skip
    runner = Runner(Env(), config)

    def train(updates: int) -> None:
        runner.trainer.cfg.timesteps = STEPS * updates
        runner.trainer.timesteps = STEPS * updates
        runner.run("train")

    return train


def with_rl_games(num_envs: int) -> Callable[[int], None]:
    """A function that makes updates of rl_games' PPO."""
    import gym
    from rl_games.common import env_configurations, vecenv
    from rl_games.torch_runner import Runner

    class Env(vecenv.IVecEnv):
        """The environments, as rl_games takes them."""

        def __init__(self, *args: Any, **kwargs: Any) -> None:
            self._env = make_env(num_envs)

        def reset(self) -> Any:
            return self._env.reset([0]).policy.clone()

        def step(self, actions: Any) -> Any:
            step = self._env.step(actions)
            ended = step.terminated | step.truncated
            return step.observation.policy, step.reward, ended.long(), {"time_outs": step.truncated}

        def get_number_of_agents(self) -> int:
            return 1

        def get_env_info(self) -> Any:
            box = gym.spaces.Box
            return {"observation_space": box(-np.inf, np.inf, (4,)), "action_space": box(-1.0, 1.0, (1,))}

    vecenv.register("lockstep", lambda name, actors, **kwargs: Env())
    env_configurations.register("lockstep", {"vecenv_type": "lockstep", "env_creator": lambda **kwargs: Env()})
    network = {
        "name": "actor_critic", "separate": False,
        "space": {"continuous": {
            "mu_activation": "None", "sigma_activation": "None", "mu_init": {"name": "default"},
            "sigma_init": {"name": "const_initializer", "val": 0}, "fixed_sigma": True,
        }},
        "mlp": {
            "units": [32, 32], "activation": "elu", "d2rl": False, "initializer": {"name": "default"},
            "regularizer": {"name": "None"},
        },
    }  # fmt: skip
    config = {
        "name": "cartpole", "full_experiment_name": "cartpole", "train_dir": "/tmp/lockstep_rl_games",
        "env_name": "lockstep", "device": "cpu", "device_name": "cpu", "multi_gpu": False, "ppo": True,
        "mixed_precision": False, "normalize_input": False, "normalize_value": False, "num_actors": num_envs,
        "reward_shaper": {"scale_value": 1.0}, "normalize_advantage": False, "gamma": 0.99, "tau": 0.95,
        "learning_rate": 3e-4, "lr_schedule": "adaptive", "kl_threshold": 0.008, "score_to_win": 20000,
        "max_epochs": 10**6, "save_best_after": 10**6, "save_frequency": 0, "grad_norm": 1.0, "entropy_coef": 0.0,
        "truncate_grads": True, "e_clip": 0.2, "horizon_length": STEPS,
        "minibatch_size": num_envs * STEPS // MINIBATCHES, "mini_epochs": EPOCHS, "critic_coef": 4,
        "clip_value": True, "seq_length": 4, "bounds_loss_coef": 0.0001,
    }  # fmt: skip
    params = {
        "seed": 42, "algo": {"name": "a2c_continuous"}, "model": {"name": "continuous_a2c_logstd"},
        "network": network, "load_checkpoint": False, "load_path": "", "config": config,
    }  # fmt: skip
    runner = Runner()
    runner.load({"params": params})
    agent = runner.algo_factory.create(runner.algo_name, base_name="run", params=runner.params)
    agent.init_tensors()
    agent.obs = agent.env_reset()

    def train(updates: int) -> None:
        for _ in range(updates):
            agent.update_epoch()
            agent.train_epoch()

    return train


def with_rsl_rl(num_envs: int) -> Callable[[int], None]:
    """A function that makes updates of rsl_rl's PPO."""
    from rsl_rl.env import VecEnv
    from rsl_rl.runners import OnPolicyRunner
    from tensordict import TensorDict

    class Env(VecEnv):
        """The environments, as rsl_rl takes them."""

        def __init__(self) -> None:
            self.num_envs, self.num_actions, self.max_episode_length = num_envs, 1, 300
            self.device, self.cfg = "cpu", {}
            self.episode_length_buf = torch.zeros(num_envs, dtype=torch.long)
            self._env = make_env(num_envs)
            self._seen = self._env.reset([0]).policy.clone()

        def get_observations(self) -> Any:
            return TensorDict({"policy": self._seen}, batch_size=[self.num_envs])

        def step(self, actions: Any) -> Any:
            step = self._env.step(actions)
            self._seen = step.observation.policy
            ended = (step.terminated | step.truncated).long()
            return self.get_observations(), step.reward, ended, {"time_outs": step.truncated}

    model = {"class_name": "MLPModel", "hidden_dims": [32, 32], "activation": "elu", "obs_normalization": False}
    gaussian = {"class_name": "GaussianDistribution", "init_std": 1.0, "std_type": "scalar"}
    config = {
        "num_steps_per_env": STEPS, "save_interval": 10**6, "check_for_nan": False, "logger": "tensorboard",
        "obs_groups": {"actor": ["policy"], "critic": ["policy"]},
        "actor": model | {"distribution_cfg": gaussian}, "critic": dict(model),
        "algorithm": {
            "class_name": "PPO", "num_learning_epochs": EPOCHS, "num_mini_batches": MINIBATCHES, "learning_rate": 3e-4,
            "schedule": "adaptive", "gamma": 0.99, "lam": 0.95, "entropy_coef": 0.0, "desired_kl": 0.008,
            "max_grad_norm": 1.0, "value_loss_coef": 2.0, "use_clipped_value_loss": True, "clip_param": 0.2,
            "rnd_cfg": None, "symmetry_cfg": None,
        },
    }  # fmt: skip
    runner = OnPolicyRunner(Env(), config, log_dir=None, device="cpu")
    return runner.learn


def measure(library: str, num_envs: int, updates: int) -> dict[str, float]:
    """Steps per second of the wall and of the processor, after two updates."""
    torch.set_num_threads(1)
    makers: dict[str, Callable[[int], Callable[[int], None]]] = {
        "tensors": lambda size: ours(size, tensors=True),
        "numpy": lambda size: ours(size, tensors=False),
        "skrl": with_skrl,
        "rl_games": with_rl_games,
        "rsl_rl": with_rsl_rl,
    }
    train = makers[library](num_envs)
    torch.set_num_threads(1)  # rl_games sets them too
    train(2)
    wall, cpu = time.perf_counter(), time.process_time()
    train(updates)
    steps = num_envs * STEPS * updates
    return {"wall": steps / (time.perf_counter() - wall), "cpu": steps / (time.process_time() - cpu)}


def main() -> None:
    """Measure all libraries, and print their rates and ours over the best of the others."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--python", default=os.environ.get("LOCKSTEP_ISAAC_PYTHON"))
    parser.add_argument("--num-envs", type=int, default=4096)
    parser.add_argument("--updates", type=int, default=20)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--library", choices=[*OURS, *PEERS])
    args = parser.parse_args()
    if args.library:
        print(json.dumps(measure(args.library, args.num_envs, args.updates)))
        return
    best: dict[str, dict[str, float]] = {}
    for _ in range(args.rounds):
        for library in (*OURS, *(PEERS if args.python else ())):
            python = sys.executable if library in OURS else args.python
            command = [python, __file__, "--library", library, "--num-envs", args.num_envs, "--updates", args.updates]
            environment = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT / "src")}
            done = subprocess.run(
                [str(part) for part in command], env=environment, capture_output=True, text=True, check=False
            )
            if done.returncode:
                print(f"{library}: {(done.stderr.strip().splitlines() or ['failed'])[-1]}")
                continue
            rates = json.loads(done.stdout.strip().splitlines()[-1])
            known = best.setdefault(library, rates)
            best[library] = {name: max(rate, known[name]) for name, rate in rates.items()}
    for library, rates in best.items():
        print(f"{library:10} {rates['wall']:9.0f} steps/s   {rates['cpu']:9.0f} per second of the processor")
    peers = [best[name]["cpu"] for name in PEERS if name in best]
    if peers:
        print(f"tensors / best of the others: {best['tensors']['cpu'] / max(peers):.2f} (processor)")
    print(f"tensors / numpy: {best['tensors']['cpu'] / best['numpy']['cpu']:.2f} (processor)")
    print(f"load of the machine: {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores")


if __name__ == "__main__":
    main()
