"""mjlab, EnvPool, gymnax, Brax and MuJoCo Playground themselves, on 1, 2 and 4 CPU ranks, and their recipes."""

import json
import os
import subprocess
import sys
from importlib.util import find_spec

import pytest
import torch

from lockstep import recipes
from lockstep.config.agents.settings import agent_settings
from lockstep.config.env import EnvConfig
from lockstep.envs.make import env_spec, make_vector_env
from lockstep.run import override, to_dict
from lockstep.torch.envs.make import make_tensor_env

pytestmark = [pytest.mark.suites, pytest.mark.filterwarnings("default")]  # mjlab uses what is deprecated
CPU = torch.device("cpu")
SHORT = (
    "num_envs=8", "num_steps=8", "num_minibatches=2", "num_epochs=2", "total_steps=256", "network.hidden=[16]",
    "env.max_episode_steps=6", "evaluate_every=null", "evaluate_episodes=4", "num_shards=4",
)  # fmt: skip
PACKAGES = {
    "Mjlab-Cartpole-Balance": "mjlab",
    "Mjlab-Lift-Cube-Yam-Rgb": "mjlab",  # joints and a camera, for both networks
    "envpool/Go1JoystickFlatTerrain-v1": "envpool",
    "envpool/CartpoleBalance-v1": "envpool",
    "gymnax/CartPole-v1": "gymnax",
    "brax/inverted_pendulum": "brax",
    "playground/CartpoleBalance": "mujoco_playground",
}
OF_TASK = {"brax/inverted_pendulum": ("env.kwargs.backend=positional",)}
"""Settings of a task: this simulation compiles in less time than the others of Brax."""
TASKS = [
    pytest.param(task, marks=pytest.mark.skipif(find_spec(package) is None, reason=f"needs {package}"))
    for task, package in PACKAGES.items()
]


def train(folder, task, ranks, settings=SHORT, algo="ppo"):
    """The summary of a short run."""
    clean = {name: value for name, value in os.environ.items() if name not in ("RANK", "WORLD_SIZE")}
    on_jax = task.startswith(("gymnax/", "brax/", "playground/"))
    flags = [word for setting in (*settings, *OF_TASK.get(task, ())) for word in ("--set", setting)]
    flags += ["--algo", algo, *["--ml-framework", "jax"] * on_jax]
    run_dir = f"{ranks}-ranks"
    done = subprocess.run(
        [sys.executable, "-m", "lockstep", "train", task, "--ranks", str(ranks), "--run-dir", run_dir, *flags],
        cwd=folder, env=clean | {"OMP_NUM_THREADS": "1"}, capture_output=True, text=True, check=False, timeout=1200,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    return json.loads((folder / run_dir / "summary.json").read_text())


@pytest.mark.parametrize("task", TASKS)
def test_pinned_shards_give_the_same_bits_on_any_number_of_ranks(tmp_path, task):
    runs = {ranks: train(tmp_path, task, ranks) for ranks in (1, 2, 4)}
    assert {(run["status"], run["env_steps"]) for run in runs.values()} == {("finished", 256)}
    assert len({run["params_fingerprint"] for run in runs.values()}) == 1
    assert len({run["eval_return_mean"] for run in runs.values()}) == 1
    for ranks, run in runs.items():
        assert len({rank["first_rollout_fingerprint"] for rank in run["ranks"]}) == ranks


@pytest.mark.parametrize(
    ("algo", "task", "package"),
    [("sac", "brax/inverted_pendulum", "brax"), ("td3", "gymnax/Pendulum-v1", "gymnax")],
)
def test_off_policy_on_the_device_gives_the_same_bits_on_any_number_of_ranks(tmp_path, algo, task, package):
    pytest.importorskip(package)
    settings = (
        "num_envs=16", "total_steps=512", "learning_starts=128", "batch_size=32", "network.hidden=[16]",
        "env.max_episode_steps=20", "evaluate_every=null", "evaluate_episodes=4", "num_shards=2",
    )  # fmt: skip
    runs = [train(tmp_path, task, ranks, settings, algo) for ranks in (1, 2)]
    assert [run["env_steps"] for run in runs] == [512, 512]
    assert len({run["params_fingerprint"] for run in runs}) == len({run["eval_return_mean"] for run in runs}) == 1


def test_final_observations_of_mjlab_are_those_before_the_reset():
    """Until the limit, episodes with a limit are those without."""
    pytest.importorskip("mjlab")
    found = []
    for limit in (3, 50):
        env = make_tensor_env("Mjlab-Cartpole-Balance", EnvConfig(max_episode_steps=limit), 2, CPU)
        env.reset([7])
        for _ in range(3):
            step = env.step(torch.full((2, 1), 0.5))
        found.append(step)
        env.close()
    limited, unlimited = found
    assert limited.truncated.all() and not unlimited.truncated.any()
    assert unlimited.final is None
    assert torch.equal(limited.final.policy, unlimited.observation.policy)
    assert torch.equal(limited.final.critic, unlimited.observation.critic)
    assert not torch.equal(limited.observation.policy, limited.final.policy)


def test_a_reset_in_mjlab_changes_no_observation_of_other_environments():
    pytest.importorskip("mjlab")
    env = make_tensor_env("Mjlab-Velocity-Flat-Unitree-Go1", EnvConfig(), 3, CPU)
    env.reset([7])
    env.step(torch.zeros(3, 12))
    env._env.episode_length_buf[1] = env.spec.max_episode_steps
    step = env.step(torch.zeros(3, 12))
    env.close()
    assert step.truncated.tolist() == [False, True, False]
    for after, before in zip(step.observation, step.final, strict=True):
        assert (after != before).any(1).tolist() == [False, True, False]


def test_shards_of_mjlab_differ_in_what_a_task_draws_once_at_its_start():
    pytest.importorskip("mjlab")
    found = []
    for seed in (1, 2, 1):
        env = make_tensor_env("Mjlab-Velocity-Flat-Unitree-Go1", EnvConfig(), 2, CPU)
        env.reset([seed])
        found.append((env._env.scene["robot"].data.encoder_bias.clone(), env._env.sim.model.geom_friction[:].clone()))
        env.close()
    assert [torch.equal(*pair) for pair in zip(found[0], found[1], strict=True)] == [False, False]
    assert [torch.equal(*pair) for pair in zip(found[0], found[2], strict=True)] == [True, True]


def test_a_discrete_observation_of_gymnax_is_one_hot():
    pytest.importorskip("gymnax")
    env = make_vector_env("gymnax/FrozenLake-misc", EnvConfig(), 2)
    first = env.reset([1, 2])
    assert first.tolist() == [[1.0, *[0.0] * 15]] * 2


def test_environments_of_envpool_have_the_numbers_of_their_own_seeds():
    pytest.importorskip("envpool")
    found = []
    for seeds in ([5, 6, 7, 8], [7, 8]):
        env = make_tensor_env("envpool/Go1JoystickFlatTerrain-v1", EnvConfig(), len(seeds), CPU)
        assert (env.spec.observation_size, env.spec.critic_size) == (48, 123)
        env.reset(seeds)
        for _ in range(4):
            step = env.step(torch.full((len(seeds), 12), 0.1))
        found.append(step)
        env.close()
    together, apart = found
    assert torch.equal(together.observation.policy[2:], apart.observation.policy)
    assert torch.equal(together.observation.critic[2:], apart.observation.critic)
    assert torch.equal(together.reward[2:], apart.reward)
    assert not torch.equal(together.observation.policy[0], together.observation.policy[1])


RECIPES = {
    "ant_brax": ("brax", 27, None),
    "cartpole_gymnax": ("gymnax", 4, None),
    "go1_mjlab": ("mjlab", 48, 72),
    "go1_playground": ("mujoco_playground", 48, 123),
    "pong_envpool": ("envpool", 4 * 84 * 84, None),
}
"""Of each suite's recipe its package, and how many numbers policy and critic observe."""


@pytest.mark.parametrize("name", RECIPES)
def test_a_recipe_makes_its_environment(name):
    package, size, critic_size = RECIPES[name]
    pytest.importorskip(package)
    run = recipes.load(name)
    spec = env_spec(run.task, run.env)
    assert (spec.observation_size, spec.critic_size) == (size, critic_size)


def test_the_recipe_of_mjlab_has_the_settings_that_mjlab_publishes():
    pytest.importorskip("mjlab")
    from lockstep.torch.envs.published_agents import published_agents

    run = recipes.load("go1_mjlab")
    config = published_agents(run.task).configs["rsl_rl"]
    published = agent_settings("rsl_rl", config, run.num_envs).settings
    groups = {name: value for name, value in published.items() if name.endswith("_keys")}
    assert groups == {"env.policy_keys": ("actor",), "env.critic_keys": ("critic",)}, "as without these settings"
    assert override(run, {name: value for name, value in published.items() if name not in groups}) == override(
        run, {"network.critic_hidden": run.network.hidden}
    )


def test_the_recipe_of_the_playground_has_the_settings_that_it_publishes():
    pytest.importorskip("mujoco_playground")
    from mujoco_playground.config import locomotion_params

    run = recipes.load("go1_playground")
    theirs = locomotion_params.brax_ppo_config(run.task.removeprefix("playground/"))
    ours = to_dict(run)["algorithm"]
    assert (run.num_envs, run.total_steps) == (theirs.num_envs, theirs.num_timesteps)
    assert ours["num_steps"] * run.num_envs == theirs.unroll_length * theirs.batch_size * theirs.num_minibatches
    assert ours["num_steps"] == theirs.unroll_length
    for name, of_theirs in (
        ("num_minibatches", "num_minibatches"), ("num_epochs", "num_updates_per_batch"), ("gamma", "discounting"),
        ("learning_rate", "learning_rate"), ("entropy_coef", "entropy_cost"), ("max_grad_norm", "max_grad_norm"),
        ("reward_scale", "reward_scaling"), ("normalize_observation", "normalize_observations"),
    ):  # fmt: skip
        assert ours[name] == theirs[of_theirs], name
    assert run.network.hidden == tuple(theirs.network_factory.policy_hidden_layer_sizes)
    assert run.network.value_hidden == tuple(theirs.network_factory.value_hidden_layer_sizes)
    assert (theirs.network_factory.policy_obs_key, theirs.network_factory.value_obs_key) == (
        "state",
        "privileged_state",
    )
