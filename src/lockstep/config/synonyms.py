"""What settings are called in other libraries: Stable-Baselines3, CleanRL, skrl, rl_games, rsl_rl, RLlib and Tianshou.

One table, for flags, `--set`, YAML and Python; `renamed.py` answers with it. No word is taken silently, since some mean
something slightly different there.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

Known = Mapping[str, Any]
"""The settings of a run by their last names, with their values."""


@dataclass(frozen=True, slots=True)
class Word:
    """One meaning that words of other libraries have here."""

    names: str
    """The words, separated by spaces."""
    here: str
    """A setting; or a flag of `lockstep train`, which starts with two hyphens."""
    note: str = ""
    """In what it differs."""
    value: Callable[[str, Known], str] | None = None
    """Their value as ours; `ValueError` where it cannot be told. None: the same."""
    switch: bool = False
    """Whether it stands for true without a value."""


def _number(text: str) -> float:
    number = float(text.replace("_", ""))
    if not math.isfinite(number):
        raise ValueError(text)
    return number


def _whole(number: float) -> str:
    if number < 1 or abs(number - round(number)) > 1e-6:
        raise ValueError(number)
    return str(round(number))


def _is_on(text: str) -> bool:
    if text.lower() not in ("true", "false", "1", "0", "yes", "no"):
        raise ValueError(text)
    return text.lower() in ("true", "1", "yes")


def _either(yes: str, no: str) -> Callable[[str, Known], str]:
    return lambda text, known: yes if _is_on(text) else no


def _cannot_tell(text: str, known: Known) -> str:
    raise ValueError(text)


def _minibatches(text: str, known: Known) -> str:
    return _whole(known["num_envs"] * known["num_steps"] / _number(text))


def _rollout_steps(text: str, known: Known) -> str:
    return _whole(_number(text) / known["num_envs"])


def _updates_per_step(text: str, known: Known) -> str:
    return f"{1 / _number(text):g}"


def _gradient_steps(text: str, known: Known) -> str:
    return _whole(_number(text) * known["updates_per_step"])


def _part_of_all_steps(text: str, known: Known) -> str:
    return _whole(_number(text) * known["total_steps"])


def _logarithm(text: str, known: Known) -> str:
    return f"{math.log(_number(text)):.4g}"


def _clipped_value(text: str, known: Known) -> str:
    return str(known["clip_range"]) if _is_on(text) else "null"


_PERIOD = "in environment steps of all ranks"
_MINIBATCH = "a minibatch is num_envs * num_steps / num_minibatches transitions"

# The first meaning whose setting the run has is the one that counts: `tau` is another thing in DQN and in PPO.
WORDS = (
    Word("lr step_size initial_lr start_lr", "learning_rate"),
    Word(
        "lr_schedule schedule learning_rate_scheduler lr_scheduler lr_policy",
        "learning_rate_schedule",
        "constant, linear, or in PPO adaptive",
    ),
    Word("anneal_lr lr_decay linear_lr", "learning_rate_schedule", "", _either("linear", "constant"), switch=True),
    Word(
        "total_timesteps timesteps n_timesteps num_timesteps max_timesteps max_steps num_env_steps max_env_steps "
        "train_steps timesteps_total steps",
        "total_steps",
        "environment steps of all ranks together",
    ),
    Word("num_episodes max_episodes n_episodes", "total_steps", "steps, not episodes", _cannot_tell),
    Word("n_epochs num_epochs", "epochs"),
    Word("max_epochs epoch max_epoch", "epochs"),
    Word("epochs", "num_epochs", "passes over each rollout"),
    Word(
        "max_epochs epoch max_epoch max_iterations num_iterations n_iterations iterations training_iterations",
        "--max-iterations",
        "rollouts",
    ),
    Word(
        "n_envs num_actors num_environments env_num training_num num_training_envs n_training_envs envs",
        "num_envs",
        "all ranks together",
    ),
    Word("num_envs_per_worker num_envs_per_env_runner", "num_envs", "all ranks together", _cannot_tell),
    Word("n_steps nstep multi_step estimation_step", "n_step", "rewards that are summed in a target"),
    Word(
        "n_steps rollouts rollout_length rollout_steps horizon_length horizon num_steps_per_env nsteps "
        "rollout_fragment_length unroll_length",
        "num_steps",
        "steps of each environment in one rollout",
    ),
    Word("train_batch_size train_batch_size_per_learner minibatch_size", "batch_size", "all ranks together"),
    Word("step_per_collect train_batch_size", "num_steps", "steps of each environment in one rollout", _rollout_steps),
    Word(
        "batch_size minibatch_size mini_batch_size sgd_minibatch_size train_batch_size_per_learner",
        "num_minibatches",
        _MINIBATCH,
        _minibatches,
    ),
    Word("num_mini_batches mini_batches n_minibatches num_minibatch nminibatches", "num_minibatches", _MINIBATCH),
    Word(
        "n_epochs update_epochs ppo_epochs mini_epochs learning_epochs num_learning_epochs num_sgd_iter "
        "repeat_per_collect noptepochs k_epochs",
        "num_epochs",
    ),
    Word("discount discount_factor", "gamma"),
    Word("tau polyak soft_update_tau target_update_tau target_tau target_update_rate", "target_rate"),
    Word("gae lam lambda lambda_ tau gae_lam gae_tau td_lambda", "gae_lambda"),
    Word(
        "clip clip_coef clip_param clip_ratio clip_eps clip_epsilon eps_clip e_clip ppo_clip ratio_clip", "clip_range"
    ),
    Word("clip_range_vf vf_clip_param vf_clip value_clip cliprange_vf", "value_clip_range", "null does not clip"),
    Word(
        "clip_vloss use_clipped_value_loss clip_value clip_value_loss",
        "value_clip_range",
        "null does not clip",
        _clipped_value,
        switch=True,
    ),
    Word("ent_coef entropy_coeff ent_coeff entropy_loss_scale entropy_weight entropy_cost", "entropy_coef"),
    Word(
        "vf_coef vf_loss_coeff vf_coeff value_loss_coef value_coeff critic_coef value_loss_scale value_weight "
        "baseline_cost",
        "value_coef",
        "it weighs (V - target)^2 / 2",
    ),
    Word("grad_norm grad_clip gradient_clip grad_norm_clip clip_grad clip_grad_norm", "max_grad_norm"),
    Word(
        "kl_threshold kl_target",
        "target_kl",
        "ends the epochs of an update beyond this KL; an adaptive learning rate has desired_kl",
    ),
    Word(
        "norm_adv advantage_norm normalize_advantages", "normalize_advantage", "", _either("true", "false"), switch=True
    ),
    Word(
        "norm_obs obs_norm normalize_obs normalize_input normalize_observations empirical_normalization",
        "normalize_observation",
        "",
        _either("true", "false"),
        switch=True,
    ),
    Word(
        "norm_reward rew_norm reward_norm normalize_reward normalize_rewards return_scaling",
        "normalize_return",
        "rewards are divided by the deviation of the return",
        _either("true", "false"),
        switch=True,
    ),
    Word("adam_epsilon optimizer_eps optim_eps opt_eps", "adam_eps"),
    Word("weight_decay l2_reg l2", "l2_decay"),
    Word("buffer_size memory_size replay_size replay_buffer_size buffer_capacity replay_capacity", "capacity"),
    Word(
        "learn_start start_steps warmup_steps warmup random_steps random_timesteps min_replay_size "
        "num_steps_sampled_before_learning_starts",
        "learning_starts",
    ),
    Word(
        "train_freq train_frequency train_interval update_interval update_freq",
        "updates_per_step",
        "gradient steps per environment step",
        _updates_per_step,
    ),
    Word("update_per_step utd utd_ratio", "updates_per_step", "gradient steps per environment step"),
    Word("gradient_steps", "updates_per_step", "gradient_steps / train_freq", _cannot_tell),
    Word(
        "target_network_frequency target_update_interval target_update_freq target_network_update_freq target_update",
        "target_update_every",
        "counted in gradient steps",
        _gradient_steps,
    ),
    Word("exploration_fraction", "epsilon_steps", "environment steps of all ranks", _part_of_all_steps),
    Word(
        "epsilon_timesteps epsilon_decay_steps eps_decay_steps exploration_steps exploration_timesteps anneal_steps",
        "epsilon_steps",
        "environment steps of all ranks",
    ),
    Word("start_e eps_start initial_epsilon exploration_initial_eps eps_train", "epsilon_start"),
    Word("end_e eps_end final_epsilon min_epsilon eps_min exploration_final_eps", "epsilon_end"),
    Word("double_q double_dqn is_double use_double", "double", "", _either("true", "false"), switch=True),
    Word("dueling_dqn use_dueling is_dueling", "dueling", "", _either("true", "false"), switch=True),
    Word("noisy_net noisy_nets use_noisy is_noisy noisy_dqn", "noisy", "", _either("true", "false"), switch=True),
    Word("sigma0 sigma_zero noisy_sigma noise_std sigma_init", "noisy_std"),
    Word("n_atoms atoms atom_size", "num_atoms"),
    Word("n_quantiles quantiles", "num_quantiles"),
    Word("vmin", "v_min"),
    Word("vmax", "v_max"),
    Word("per use_per prioritized_replay", "prioritized", "", _either("true", "false"), switch=True),
    Word("prioritized_replay_alpha per_alpha priority_alpha", "priority_exponent"),
    Word("prioritized_replay_beta per_beta priority_beta", "importance_exponent"),
    Word("prioritized_replay_eps per_eps prioritized_replay_epsilon", "priority_eps"),
    Word("cql_weight conservative_weight min_q_weight", "cql_alpha"),
    Word("unlikely_action_threshold imitation_threshold action_flexibility", "bcq_threshold"),
    Word(
        "hidden_sizes net_arch hidden_layers hidden_dims actor_hidden_dims critic_hidden_dims "
        "fcnet_hiddens mlp_units units layers",
        "hidden",
    ),
    Word("hidden_size hidden_dim", "hidden", "one number for each layer", lambda text, known: f"[{text}, {text}]"),
    Word(
        "activation_fn fcnet_activation nonlinearity",
        "activation",
        "tanh, relu or elu",
        lambda text, known: text.lower(),
    ),
    Word("log_std_init init_log_std", "initial_log_std"),
    Word("init_noise_std init_std action_std_init", "initial_log_std", "the logarithm of the deviation", _logarithm),
    Word("env env_id gym_id env_name envname environment task_id", "task"),
    Word("algorithm algorithm_name agent alg algo_name", "algo"),
    Word("framework dl_framework", "--ml-framework"),
    Word("random_seed manual_seed torch_seed", "seed"),
    Word("cuda use_cuda use_gpu gpu", "device", "", _either("cuda", "cpu"), switch=True),
    Word("mixed_precision amp use_amp bf16", "precision", "", _either("bfloat16", "float32"), switch=True),
    Word("torch_compile use_compile", "compile", "", _either("true", "false"), switch=True),
    Word("world_size num_ranks nproc num_processes n_proc num_gpus gpus num_learners", "--ranks"),
    Word(
        "num_workers n_workers num_env_runners num_rollout_workers ranks",
        "--ranks",
        "each steps environments and learns",
    ),
    Word("max_ep_len max_episode_length episode_length time_limit", "max_episode_steps"),
    Word("eval_freq eval_interval evaluation_interval eval_every test_interval", "evaluate_every", _PERIOD),
    Word(
        "n_eval_episodes eval_episodes num_eval_episodes evaluation_duration test_num test_episodes episode_per_test",
        "evaluate_episodes",
    ),
    Word("save_freq save_interval save_every checkpoint_freq checkpoint_interval", "checkpoint_every", _PERIOD),
    Word("log_interval log_freq print_freq logger_interval write_interval", "log_every", _PERIOD),
    Word("capture_video record_video save_video video", "--video", switch=True),
    Word(
        "exp_name experiment_name experiment log_dir logdir output_dir out_dir save_dir save_path tensorboard_log "
        "run_dir run_name checkpoint_dir",
        "--run-dir",
    ),
    Word("load_run load_path load_checkpoint restore continue resume resume_path", "--resume"),
    Word("load_model pretrained init_checkpoint init_from", "--init-from"),
    Word("reward_threshold stop_reward target_reward", "stop_return"),
)
