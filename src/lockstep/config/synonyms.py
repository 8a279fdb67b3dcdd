"""Names of settings in Stable-Baselines3, CleanRL, skrl, rl_games, rsl_rl, RLlib, Tianshou and d3rlpy.

`renamed.py` suggests ours. No name is accepted as an alias, since some differ slightly in meaning.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

Known = Mapping[str, Any]
"""The settings of a run by the last part of their names, with their values."""


@dataclass(frozen=True, slots=True)
class Synonym:
    """Names of other libraries for one setting of ours."""

    names: str
    """The names, separated by spaces."""
    setting: str
    """A setting; or a flag of `lockstep train`, which starts with two hyphens."""
    note: str = ""
    """The difference in meaning, if any."""
    value: Callable[[str, Known], str] | None = None
    """Converts their value to ours; raises `ValueError` if it cannot. None: the same value."""
    switch: bool = False
    """Whether the flag alone means true."""
    beside: str = ""
    """A setting that an algorithm also has where `setting` means this; empty: it means this everywhere."""


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


def _not_convertible(text: str, known: Known) -> str:
    raise ValueError(text)


def _minibatches(text: str, known: Known) -> str:
    return _whole(known["num_envs"] * known["num_steps"] / _number(text))


def _rollout_steps(text: str, known: Known) -> str:
    return _whole(_number(text) / known["num_envs"])


def _updates_per_step(text: str, known: Known) -> str:
    return f"{1 / _number(text):g}"


def _steps_of_all_envs(text: str, known: Known) -> str:
    return _whole(_number(text) * known["num_envs"])


def _target_rate(text: str, known: Known) -> str:
    """Of Spinning Up's `polyak`, which is the part that stays, if it is more than half."""
    number = _number(text)
    return text if number <= 0.5 else f"{1 - number:.6g}"


def _layers(text: str, known: Known) -> str:
    if text.startswith("{"):
        raise ValueError(text)
    return text


def _coefficient(text: str, known: Known) -> str:
    _number(text)
    return text


def _twice(text: str, known: Known) -> str:
    return f"{2 * _number(text):g}"


def _gradient_steps(text: str, known: Known) -> str:
    return _whole(_number(text) * known["updates_per_step"])


def _fraction_of_total_steps(text: str, known: Known) -> str:
    return _whole(_number(text) * known["total_steps"])


def _logarithm(text: str, known: Known) -> str:
    return f"{math.log(_number(text)):.4g}"


def _clipped_value(text: str, known: Known) -> str:
    return str(known["clip_range"]) if _is_on(text) else "null"


def _temperature(text: str, known: Known) -> str:
    return "null" if text.startswith("auto") else text


def _exponential(text: str, known: Known) -> str:
    return f"{math.exp(float(text)):g}"


def _tracker(text: str, known: Known) -> str:
    return "[]" if text.lower() == "tensorboard" else f"[{text.lower()}]"


def _switch(names: str, setting: str, yes: str = "true", no: str = "false", note: str = "") -> Synonym:
    return Synonym(names, setting, note, lambda text, known: yes if _is_on(text) else no, switch=True)


_PERIOD = "in environment steps of all ranks"
_VALUE_LOSS = "it weighs half of the squared error"
_CRITIC_LAYERS = "of all networks; critic_hidden is that of critics alone"
_MINIBATCH = "a minibatch is num_envs * num_steps / num_minibatches transitions"

# The first entry whose setting the run has applies: `tau` differs between DQN and PPO.
SYNONYMS = (
    Synonym("lr step_size initial_lr start_lr actor_lr policy_lr pi_lr actor_learning_rate", "learning_rate"),
    Synonym("critic_lr q_lr qf_lr qf_learning_rate q_learning_rate value_lr", "critic_learning_rate"),
    Synonym(
        "lr_schedule schedule learning_rate_scheduler lr_scheduler lr_policy",
        "learning_rate_schedule",
        "constant, linear, or in PPO adaptive",
    ),
    _switch("anneal_lr lr_decay linear_lr", "learning_rate_schedule", "linear", "constant"),
    Synonym(
        "total_timesteps n_timesteps num_timesteps max_timesteps max_steps num_env_steps max_env_steps train_steps "
        "timesteps_total steps",
        "total_steps",
        "environment steps of all ranks together",
    ),
    Synonym(
        "timesteps", "total_steps", "steps of all environments together; skrl counts those of each", _steps_of_all_envs
    ),
    Synonym("num_episodes max_episodes n_episodes", "total_steps", "steps, not episodes", _not_convertible),
    Synonym("n_epochs num_epochs", "epochs"),
    Synonym("max_epochs epoch max_epoch", "epochs"),
    Synonym("epochs", "num_epochs", "passes over each rollout"),
    Synonym(
        "max_epochs epoch max_epoch max_iterations num_iterations n_iterations iterations training_iterations",
        "--max-iterations",
        "rollouts",
    ),
    Synonym(
        "n_envs num_actors num_environments env_num training_num num_training_envs n_training_envs envs",
        "num_envs",
        "all ranks together",
    ),
    Synonym("num_envs_per_worker num_envs_per_env_runner", "num_envs", "all ranks together", _not_convertible),
    Synonym("n_steps nstep multi_step estimation_step", "n_step", "rewards that are summed in a target"),
    Synonym(
        "n_steps rollouts rollout_length rollout_steps horizon_length horizon num_steps_per_env nsteps "
        "rollout_fragment_length unroll_length",
        "num_steps",
        "steps of each environment in one rollout",
    ),
    Synonym("train_batch_size train_batch_size_per_learner minibatch_size", "batch_size", "all ranks together"),
    Synonym(
        "step_per_collect train_batch_size update_every",
        "num_steps",
        "steps of each environment in one rollout",
        _rollout_steps,
    ),
    Synonym(
        "batch_size minibatch_size mini_batch_size sgd_minibatch_size train_batch_size_per_learner",
        "num_minibatches",
        _MINIBATCH,
        _minibatches,
    ),
    Synonym("num_mini_batches mini_batches n_minibatches num_minibatch nminibatches", "num_minibatches", _MINIBATCH),
    Synonym(
        "n_epochs update_epochs ppo_epochs mini_epochs learning_epochs num_learning_epochs num_sgd_iter "
        "repeat_per_collect noptepochs k_epochs",
        "num_epochs",
    ),
    Synonym("discount discount_factor", "gamma"),
    Synonym("tau soft_update_tau target_update_tau target_tau target_update_rate", "target_rate"),
    Synonym(
        "polyak", "target_rate", "the part by which targets move; Spinning Up's polyak is 1 minus it", _target_rate
    ),
    Synonym("gae lam lambda lambda_ tau gae_lam gae_tau td_lambda", "gae_lambda"),
    Synonym(
        "clip clip_coef clip_param clip_ratio clip_eps clip_epsilon eps_clip e_clip ppo_clip ratio_clip", "clip_range"
    ),
    Synonym("clip_range_vf vf_clip_param vf_clip value_clip cliprange_vf", "value_clip_range", "null does not clip"),
    Synonym(
        "clip_vloss use_clipped_value_loss clip_value clip_value_loss",
        "value_clip_range",
        "null does not clip",
        _clipped_value,
        switch=True,
    ),
    Synonym(
        "ent_coef ent entropy entropy_bonus entropy_coeff ent_coeff entropy_loss_scale entropy_weight entropy_cost",
        "entropy_coef",
        value=_coefficient,  # a learned one, `auto`, is of SAC
    ),
    Synonym(
        "ent_coef entropy_coeff ent_coeff temperature entropy_temperature",
        "alpha",
        "a number fixes the temperature; null learns it, from initial_alpha on",
        _temperature,
        beside="initial_alpha",  # alpha of TD3+BC is the weight of Q
    ),
    Synonym(
        "autotune automatic_entropy_tuning auto_entropy_tuning autotune_alpha learn_alpha auto_alpha",
        "alpha",
        "null learns the temperature, a number fixes it",
        lambda text, known: "null" if _is_on(text) else "",
        switch=True,
        beside="initial_alpha",
    ),
    Synonym("init_alpha init_temperature initial_temperature", "initial_alpha"),
    Synonym("log_alpha_init initial_log_alpha init_log_alpha", "initial_alpha", "not its logarithm", _exponential),
    Synonym("target_ent", "target_entropy"),
    Synonym(
        "policy_frequency",
        "policy_delay",
        "CleanRL's SAC makes up for its delay by as many steps of the policy, one for each of the critics",
        lambda text, known: "1",
        beside="initial_alpha",
    ),
    Synonym("policy_frequency policy_freq policy_update_freq policy_update_delay actor_delay", "policy_delay"),
    Synonym("target_policy_noise policy_noise smoothing_noise smooth_regularization_std", "target_noise"),
    Synonym("target_noise_clip policy_noise_clip smoothing_clip smooth_regularization_clip", "noise_clip"),
    Synonym("action_noise act_noise expl_noise exploration_std", "exploration_noise"),
    Synonym("n_critics num_q n_q num_qs ensemble_size num_q_networks", "num_critics"),
    Synonym("num_min_qs num_q_target target_ensemble_size", "target_critics"),
    Synonym("dropout_rate dropout_p critic_dropout", "dropout"),
    _switch("use_layer_norm critic_layer_norm layernorm", "layer_norm"),
    Synonym("critic_coef value_weight baseline_cost", "value_coef", _VALUE_LOSS),
    Synonym("value_loss_scale value_loss_coef vf_loss_coeff", "value_coef", f"{_VALUE_LOSS}, theirs all of it", _twice),
    Synonym(
        "vf_coef vf_coeff value_coeff",
        "value_coef",
        f"{_VALUE_LOSS}: the value that CleanRL has, twice that of Stable-Baselines3 and Tianshou",
        _not_convertible,
    ),
    Synonym(
        "grad_norm max_norm clip_norm grad_clip gradient_clip grad_norm_clip clip_grad clip_grad_norm", "max_grad_norm"
    ),
    Synonym(
        "kl_threshold kl_target",
        "target_kl",
        "ends the epochs of an update beyond this KL; an adaptive learning rate has desired_kl",
    ),
    _switch("norm_adv advantage_norm normalize_advantages", "normalize_advantage"),
    _switch(
        "norm_obs obs_norm normalize_obs normalize_input normalize_observations empirical_normalization",
        "normalize_observation",
    ),
    _switch(
        "norm_reward rew_norm reward_norm normalize_reward normalize_rewards return_scaling",
        "normalize_return",
        note="rewards are divided by the deviation of the return",
    ),
    Synonym("rewards_shaper_scale reward_shaper_scale", "reward_scale"),
    Synonym("bound_loss_coef bounds_loss_scale", "bounds_loss_coef"),
    Synonym("data_augmentation_func", "symmetry", "your function of observation and action"),
    Synonym("clip_actions", "clip_action", "a limit; null does not clip"),
    Synonym("clip_observations", "clip_observation", "before they are normalized; afterwards: observation_limit"),
    Synonym("adam_epsilon optimizer_eps optim_eps opt_eps", "adam_eps"),
    Synonym("weight_decay l2_reg l2", "l2_decay"),
    Synonym("buffer_size memory_size replay_size replay_buffer_size buffer_capacity replay_capacity", "capacity"),
    Synonym(
        "learn_start start_steps update_after warmup_steps warmup random_steps random_timesteps min_replay_size "
        "num_steps_sampled_before_learning_starts",
        "learning_starts",
    ),
    Synonym(
        "train_freq train_frequency train_interval update_interval update_freq",
        "updates_per_step",
        "gradient steps per environment step; Stable-Baselines3 counts a step of all environments as one",
        _updates_per_step,
    ),
    Synonym("update_per_step utd utd_ratio", "updates_per_step", "gradient steps per environment step"),
    Synonym("gradient_steps", "updates_per_step", "gradient_steps / (train_freq * num_envs)", _not_convertible),
    Synonym(
        "target_network_frequency target_update_interval target_network_update_freq target_update",
        "target_update_every",
        "counted in gradient steps",
        _gradient_steps,
    ),
    Synonym("target_update_freq", "target_update_every", "counted in gradient steps, as in Tianshou and DI-engine"),
    Synonym("exploration_fraction", "epsilon_steps", "environment steps of all ranks", _fraction_of_total_steps),
    Synonym(
        "epsilon_timesteps epsilon_decay_steps eps_decay_steps exploration_steps exploration_timesteps anneal_steps",
        "epsilon_steps",
        "environment steps of all ranks",
    ),
    Synonym("start_e eps_start initial_epsilon exploration_initial_eps eps_train", "epsilon_start"),
    Synonym("end_e eps_end final_epsilon min_epsilon eps_min exploration_final_eps", "epsilon_end"),
    _switch("double_q double_dqn is_double use_double", "double"),
    _switch("dueling_dqn use_dueling is_dueling", "dueling"),
    _switch("noisy_net noisy_nets use_noisy is_noisy noisy_dqn", "noisy"),
    Synonym("sigma0 sigma_zero noisy_sigma noise_std sigma_init", "noisy_std"),
    Synonym("n_atoms atoms atom_size", "num_atoms"),
    Synonym("n_quantiles quantiles", "num_quantiles"),
    Synonym("vmin", "v_min"),
    Synonym("vmax", "v_max"),
    _switch("per use_per prioritized_replay", "prioritized"),
    Synonym("prioritized_replay_alpha per_alpha priority_alpha", "priority_exponent"),
    Synonym("prioritized_replay_beta per_beta priority_beta", "importance_exponent"),
    Synonym("prioritized_replay_eps per_eps prioritized_replay_epsilon", "priority_eps"),
    Synonym(
        "cql_weight conservative_weight min_q_weight",
        "cql_alpha",
        "half the number of d3rlpy and of the authors' code, which weigh it beside the whole squared error",
    ),
    Synonym("unlikely_action_threshold imitation_threshold action_flexibility", "bcq_threshold"),
    Synonym(
        "hidden_sizes net_arch hidden_layers hidden_dims actor_hidden_dims fcnet_hiddens mlp_units units layers",
        "hidden",
        _CRITIC_LAYERS,
        _layers,
    ),
    Synonym("policy_kwargs", "hidden", f"{_CRITIC_LAYERS}; and activation", _not_convertible),
    Synonym("verbose", "log_every", _PERIOD, _not_convertible),
    Synonym("critic_hidden_dims", "critic_hidden"),
    Synonym("hidden_size hidden_dim", "hidden", "one number for each layer", lambda text, known: f"[{text}, {text}]"),
    Synonym(
        "activation_fn fcnet_activation nonlinearity",
        "activation",
        "tanh, relu, elu or silu",
        lambda text, known: text.lower(),
    ),
    Synonym("log_std_init init_log_std", "initial_log_std"),
    _switch("ortho_init orthogonal_init", "initialization", "orthogonal", "uniform"),
    _switch("use_lstm lstm", "recurrent", "lstm", "none"),
    _switch("use_rnn use_gru gru", "recurrent", "gru", "none"),
    Synonym("rnn rnn_type rnn_name cell_type", "recurrent", "none, gru or lstm", lambda text, known: text.lower()),
    Synonym(
        "lstm_hidden_size rnn_hidden_size lstm_cell_size gru_hidden_size rnn_units rnn_hidden_dim", "recurrent_size"
    ),
    Synonym("n_lstm_layers rnn_num_layers num_rnn_layers rnn_layers", "recurrent_layers"),
    Synonym("seq_len seq_length max_seq_len bptt bptt_len rnn_seq_len", "sequence_length"),
    Synonym("stack_num n_stack num_stack framestack frames_stack", "frame_stack"),
    Synonym("init_noise_std init_std action_std_init", "initial_log_std", "the logarithm of the deviation", _logarithm),
    Synonym("env env_id gym_id env_name envname environment task_id", "task"),
    Synonym("algorithm algorithm_name alg algo_name", "algo", value=lambda text, known: text.lower()),
    Synonym("framework dl_framework", "--ml-framework"),
    Synonym("random_seed manual_seed torch_seed", "seed"),
    _switch("cuda use_cuda use_gpu gpu", "device", "cuda", "cpu"),
    _switch("mixed_precision amp use_amp bf16", "precision", "bfloat16", "float32"),
    _switch("torch_compile use_compile", "compile"),
    _switch("cudagraphs cuda_graphs use_cuda_graph", "capture"),
    Synonym("world_size num_ranks nproc num_processes n_proc num_gpus gpus num_learners", "--ranks"),
    Synonym(
        "num_workers n_workers workers num_env_runners num_rollout_workers ranks",
        "--ranks",
        "each steps environments and learns",
    ),
    Synonym("max_ep_len max_episode_length episode_length time_limit", "max_episode_steps"),
    Synonym("eval_freq eval_interval evaluation_interval eval_every test_interval", "evaluate_every", _PERIOD),
    Synonym(
        "n_eval_episodes eval_episodes num_eval_episodes evaluation_duration test_num test_episodes episode_per_test",
        "evaluate_episodes",
    ),
    Synonym("save_freq save_interval save_every checkpoint_freq checkpoint_interval", "checkpoint_every", _PERIOD),
    Synonym("log_interval log_freq print_freq logger_interval write_interval", "log_every", _PERIOD),
    Synonym("capture_video record_video save_video video", "--video", switch=True),
    Synonym(
        "exp_name experiment_name experiment log_dir logdir output_dir out_dir save_dir save_path tensorboard_log "
        "run_dir run_name checkpoint_dir output out",
        "--run-dir",
    ),
    _switch("track wandb use_wandb", "trackers", "[wandb]", "[]"),
    Synonym("logger", "trackers", "files of TensorBoard are always written", _tracker),
    Synonym("config config_file config_path cfg", "--task", "it takes a config file, too"),
    Synonym("load_run load_path load_checkpoint restore continue resume resume_path", "--resume"),
    Synonym("load_model pretrained init_checkpoint init_from", "--init-from"),
    Synonym("reward_threshold stop_reward target_reward", "stop_return"),
)
