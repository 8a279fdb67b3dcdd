"""The settings of a task alone: those of an agent configuration, else the defaults of its kind of task."""

import copy
from importlib.metadata import PackageNotFoundError

import pytest
import yaml
from tests.unit.config.test_agent_settings import RL_GAMES, RSL_RL, SKRL
from tests.unit.torch.envs import tensor_envs

from lockstep.algorithms.task_defaults import PPO
from lockstep.cli import agent as module
from lockstep.cli.agent import with_agent
from lockstep.envs.make import env_spec as spec_of
from lockstep.errors import ConfigError
from lockstep.run import Run
from lockstep.session import task_defaults
from lockstep.torch.envs import published_agents, spec_cache
from lockstep.torch.envs.published_agents import PublishedAgents

RUN = Run(task="Mjlab-Mine")


@pytest.fixture
def published(monkeypatch):
    """What the task publishes: a skrl configuration that is refused, and one of rl_games and rsl_rl."""
    refused = copy.deepcopy(SKRL)
    refused["agent"]["class"] = "AMP"
    found = PublishedAgents(256, {"skrl": refused, "rl_games": RL_GAMES, "rsl_rl": RSL_RL})
    monkeypatch.setattr(published_agents, "published_agents", lambda task: found)
    return found


@pytest.mark.usefixtures("published")
def test_the_first_configuration_that_can_be_read_is_the_default(capsys):
    run = with_agent(RUN, None, {})
    assert (run.num_envs, run.algorithm.num_steps, run.network.critic_hidden) == (256, 16, (128,))
    assert run.total_steps == 100 * 16 * 256
    printed = capsys.readouterr().err
    assert "settings from the rsl_rl configuration of Mjlab-Mine (others: skrl, rl_games)" in printed
    assert "without effect here: " in printed and "class_name" in printed


@pytest.mark.parametrize(("task", "package"), [("Mjlab-Mine", "mjlab"), ("envpool/Mine-v1", "envpool")])
def test_a_suite_that_is_not_installed_is_named_with_its_extra(task, package, monkeypatch):
    def version(name):
        raise PackageNotFoundError(name)

    monkeypatch.setattr(spec_cache, "version", version)
    with pytest.raises(
        ConfigError, match=rf"needs the Python package {package}: pip install 'lockstep-rl\[{package}\]'"
    ):
        with_agent(Run(task=task), None, {})


@pytest.mark.usefixtures("published")
def test_a_name_chooses_and_the_number_of_environments_scales_the_run():
    run = with_agent(RUN, "rsl_rl", {"num_envs": "128"})
    assert (run.num_envs, run.network.critic_hidden) == (128, (128,))
    assert run.total_steps == 100 * 16 * 128


@pytest.mark.usefixtures("published")
def test_a_configuration_that_cannot_be_followed_is_refused_only_if_it_was_chosen():
    with pytest.raises(ConfigError, match=r"agent.class='AMP'"):
        with_agent(RUN, "skrl", {})
    with pytest.raises(ConfigError, match=r"--agent sb3: Mjlab-Mine publishes skrl, rsl_rl, rl_games"):
        with_agent(RUN, "sb3", {})


def test_without_a_configuration_that_can_be_read_the_defaults_stay(monkeypatch, capsys):
    monkeypatch.setattr(published_agents, "published_agents", lambda task: PublishedAgents(256, {}))
    monkeypatch.setattr(task_defaults, "env_spec", lambda task, env: spec_of("lockstep/Cartpole-v0", env))
    monkeypatch.setattr(task_defaults, "is_tensor_task", lambda task: True)
    run = with_agent(RUN, None, {})
    assert (run.task, run.num_envs, run.algorithm.num_steps) == (RUN.task, 256, PPO["device"]["num_steps"])
    assert "Lockstep's own defaults" in capsys.readouterr().err


@pytest.mark.parametrize(("config", "library"), [(RL_GAMES, "rl_games"), (SKRL, "skrl"), (RSL_RL, "rsl_rl")])
def test_a_file_is_recognized_by_its_keys(tmp_path, capsys, config, library):
    path = tmp_path / "agent.yaml"
    path.write_text(yaml.safe_dump(config))
    run = with_agent(Run(task="CartPole-v1", num_envs=128), str(path), {})
    assert (run.num_envs, run.algorithm.num_epochs) == (128, 5)
    assert (run.env.policy_keys, run.env.critic_keys) == ((), ()), "groups are of the suites' tasks"
    printed = capsys.readouterr().err
    assert f"settings from the {library} file" in printed
    assert ("obs_groups of" in printed) == (library == "rsl_rl"), "what is left out is named"


@pytest.mark.parametrize(
    ("task", "keys"),
    [("envpool/Mine-v1", ()), ("Mjlab-Mine", ("actor",)), ("Isaac-Cartpole", ("policy",))],
)
@pytest.mark.parametrize("config", [RL_GAMES, SKRL], ids=["rl_games", "skrl"])
def test_one_observation_for_both_networks_has_the_tasks_own_name(tmp_path, monkeypatch, config, task, keys):
    monkeypatch.setattr(module, "is_tensor_task", lambda task: True)
    config = copy.deepcopy(config)
    config.get("params", {}).get("config", {}).pop("central_value_config", None)
    path = tmp_path / "agent.yaml"
    path.write_text(yaml.safe_dump(config))
    assert with_agent(Run(task=task, num_envs=128), str(path), {}).env.critic_keys == keys


@pytest.mark.parametrize(
    ("task", "keys"),
    [("Walk", ((), ())), ("Choosing", (("policy",), ("policy", "privileged"))), ("envpool/Mine-v1", ((), ()))],
)
def test_groups_of_rsl_rl_are_left_out_with_a_note_where_a_task_on_tensors_takes_none(tmp_path, capsys, task, keys):
    path = tmp_path / "agent.yaml"
    path.write_text(yaml.safe_dump(RSL_RL))
    task = task if "/" in task else f"{tensor_envs.__file__}:{task}"
    env = with_agent(Run(task=task, num_envs=128), str(path), {}).env
    assert (env.policy_keys, env.critic_keys) == keys
    said = f"obs_groups of the file are left out; {task} takes no policy_keys and critic_keys: the policy receives"
    assert (said in capsys.readouterr().err) == (keys == ((), ()))


@pytest.mark.parametrize("framework", ["torch", "jax"])
@pytest.mark.parametrize(("gpus", "precision"), [(0, "float32"), (1, "bfloat16")])
def test_mixed_precision_is_for_gpus_as_in_the_libraries(tmp_path, monkeypatch, gpus, precision, framework):
    monkeypatch.setattr(module, "visible_gpus", lambda asked: gpus if asked == framework else 1 - gpus)
    path = tmp_path / "agent.yaml"
    path.write_text(yaml.safe_dump(RL_GAMES))
    run = Run(task="CartPole-v1", num_envs=128, ml_framework=framework)
    assert with_agent(run, str(path), {}).precision == precision


def test_files_that_are_none_are_refused(tmp_path):
    run = Run(task="CartPole-v1")
    path = tmp_path / "agent.yaml"
    with pytest.raises(ConfigError, match="No such file"):
        with_agent(run, str(path), {})
    path.write_text("a: 1")
    with pytest.raises(ConfigError, match="none of the keys params, models, num_steps_per_env, n_steps"):
        with_agent(run, str(path), {})
    path.write_text("- 1")
    with pytest.raises(ConfigError, match="must be a mapping"):
        with_agent(run, str(path), {})
    with pytest.raises(ConfigError, match="only tasks of Isaac Lab and mjlab publish"):
        with_agent(run, "skrl", {})


def test_other_tasks_have_the_defaults_of_their_kind():
    assert with_agent(Run(task="CartPole-v1"), None, {}) == task_defaults.task_defaults("CartPole-v1", {})


def test_only_rank_0_prints(published, monkeypatch, capsys):
    monkeypatch.setattr(module.World, "from_environment", lambda: module.World(rank=1, size=2))
    with_agent(RUN, None, {})
    assert capsys.readouterr().err == ""


def test_a_file_counts_minibatches_of_the_environments_asked_for(tmp_path):
    path = tmp_path / "agent.yaml"
    path.write_text(yaml.safe_dump(RL_GAMES))
    run = with_agent(Run(task="CartPole-v1", num_envs=128), str(path), {"num_envs": "256"})
    assert (run.num_envs, run.algorithm.num_minibatches) == (256, 8)


def test_jax_follows_the_kl_from_the_rollout_and_says_so(tmp_path, capsys):
    path = tmp_path / "agent.yaml"
    path.write_text(yaml.safe_dump(RL_GAMES))
    run = with_agent(Run(task="CartPole-v1", num_envs=128), str(path), {"ml_framework": "jax"})
    assert run.algorithm.kl_reference == "rollout"
    assert "JAX has no other kl_reference" in capsys.readouterr().err
