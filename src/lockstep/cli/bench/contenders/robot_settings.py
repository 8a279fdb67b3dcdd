"""Isaac Lab's settings of the cart-pole, as skrl, rl_games and rsl_rl take them; without their packages."""

from typing import Any

STEPS, EPOCHS, MINIBATCHES = 16, 8, 8


def skrl() -> dict[str, Any]:
    """Of skrl's runner."""
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
    return {
        "seed": 42, "models": {"separate": False, "policy": policy, "value": value},
        "memory": {"class": "RandomMemory", "memory_size": -1}, "agent": agent,
        "trainer": {
            "class": "SequentialTrainer", "timesteps": STEPS, "environment_info": "log",
            "close_environment_at_exit": False, "disable_progressbar": True,
        },
    }  # fmt: skip


def rl_games(num_envs: int) -> dict[str, Any]:
    """Of rl_games' runner, which wants to know the number of environments of a rank."""
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
        "name": "cartpole", "full_experiment_name": "cartpole", "train_dir": "runs",
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
    return {"params": params}


def rsl_rl() -> dict[str, Any]:
    """Of rsl_rl's runner."""
    model = {"class_name": "MLPModel", "hidden_dims": [32, 32], "activation": "elu", "obs_normalization": False}
    gaussian = {"class_name": "GaussianDistribution", "init_std": 1.0, "std_type": "scalar"}
    return {
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
