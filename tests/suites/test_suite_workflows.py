"""`lockstep.workflows.{rsl_rl,skrl,rl_games}` train on mjlab with the real libraries, on two CPU ranks."""

import json
import os
import subprocess
import sys
from importlib.util import find_spec

import pytest

pytestmark = [
    pytest.mark.suites,
    pytest.mark.skipif(find_spec("mjlab") is None, reason="needs mjlab"),
]
AGENTS = {
    "rsl_rl": """
seed: 42
num_steps_per_env: 8
max_iterations: 2
save_interval: 50
obs_groups: {actor: [policy], critic: [critic]}
actor:
  class_name: MLPModel
  hidden_dims: [8]
  activation: elu
  obs_normalization: true
  distribution_cfg: {class_name: GaussianDistribution, init_std: 1.0}
critic: {class_name: MLPModel, hidden_dims: [8], activation: elu, obs_normalization: true}
algorithm: {class_name: PPO, num_learning_epochs: 1, num_mini_batches: 2, schedule: adaptive, desired_kl: 0.01}
""",
    "skrl": """
seed: 7
models:
  separate: True
  policy:
    class: GaussianMixin
    network: [{name: net, input: OBSERVATIONS, layers: [8], activations: elu}]
    output: ACTIONS
  value:
    class: DeterministicMixin
    network: [{name: net, input: OBSERVATIONS, layers: [8], activations: elu}]
    output: ONE
memory: {class: RandomMemory, memory_size: -1}
agent:
  class: PPO
  rollouts: 8
  learning_epochs: 1
  mini_batches: 2
  experiment: {write_interval: 0, checkpoint_interval: 0}
trainer: {class: SequentialTrainer, timesteps: 16, close_environment_at_exit: False}
""",
    "rl_games": """
params:
  seed: 3
  algo: {name: a2c_continuous}
  model: {name: continuous_a2c_logstd}
  network:
    name: actor_critic
    separate: False
    space:
      continuous:
        mu_activation: None
        sigma_activation: None
        mu_init: {name: default}
        sigma_init: {name: const_initializer, val: 0}
        fixed_sigma: True
    mlp: {units: [8], activation: elu, initializer: {name: default}, regularizer: {name: None}}
  config:
    name: cartpole
    env_name: rlgpu
    ppo: True
    mixed_precision: False
    normalize_input: True
    normalize_value: True
    normalize_advantage: True
    reward_shaper: {scale_value: 1.0}
    gamma: 0.99
    tau: 0.95
    learning_rate: 1.0e-3
    lr_schedule: adaptive
    kl_threshold: 0.008
    score_to_win: 20000
    max_epochs: 2
    save_best_after: 50
    save_frequency: 0
    grad_norm: 1.0
    entropy_coef: 0.0
    truncate_grads: True
    e_clip: 0.2
    horizon_length: 8
    minibatch_size: 16
    mini_epochs: 1
    critic_coef: 4
    clip_value: True
    bounds_loss_coef: 0.0001
""",
}


@pytest.mark.parametrize("library", AGENTS)
def test_a_library_trains_on_mjlab_with_two_ranks(tmp_path, library):
    pytest.importorskip(library)
    (tmp_path / "agent.yaml").write_text(AGENTS[library])
    clean = {name: value for name, value in os.environ.items() if name not in ("RANK", "WORLD_SIZE")}
    words = ["--task=Mjlab-Cartpole-Balance", "--agent=agent.yaml", "--num_envs=4", "--ranks=2", "--run_dir=run"]
    done = subprocess.run(
        [sys.executable, "-m", f"lockstep.workflows.{library}", *words, "--device=cpu"],
        cwd=tmp_path, env=clean | {"OMP_NUM_THREADS": "1"}, capture_output=True, text=True, check=False, timeout=540,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    summary = json.loads((tmp_path / "run" / "summary.json").read_text())
    assert (summary["status"], summary["world_size"], summary["env_steps"]) == ("finished", 2, 2 * 2 * 4 * 8)
    assert len({rank["params_fingerprint"] for rank in summary["ranks"]}) == 1
    assert len({rank["first_rollout_fingerprint"] for rank in summary["ranks"]}) == 2
    assert any(f"left by {library}: advantages" in note for note in summary["notes"])
