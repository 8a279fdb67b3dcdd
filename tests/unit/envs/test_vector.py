"""From a task's name to an environment, or to one clear line."""

import json
import math
import re
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

from lockstep.envs.make import env_spec, make_vector_env
from lockstep.envs.spec import ActionSpec, EnvSpec
from lockstep.envs.vector import BUILT_IN
from lockstep.errors import ConfigError
from lockstep.run import EnvConfig

HERE = Path(__file__).parent


@pytest.mark.parametrize(
    ("task", "config", "message"),
    [
        ("Cartpol-v1", {}, "Cartpol-v1 is unknown; did you mean CartPole-v1"),
        ("CartPole", {}, "did you mean CartPole-v1"),
        ("Ant", {}, r"did you mean Ant-v5\?"),
        ("Mine-v0", {}, r"task=Mine-v0 is unknown \(.* and module:Id-v0 for an id that your module registers\)$"),
        ("lockstep/Coridor-v0", {}, "did you mean lockstep/Corridor-v0"),
        ("Pendulum-v1", {"kwargs": {"gg": 1}}, r"gg=1 is unknown to Pendulum-v1; did you mean g\?"),
        ("CartPole-v1", {"kwargs": {"wind": 1}}, "wind=1 is unknown to CartPole-v1"),
        ("lockstep/Reach-v0", {"kwargs": {"dim": 1}}, "did you mean dims"),
        ("lockstep/Reach-v0", {"kwargs": {"dims": 0}}, "dims=0 must be at least 1"),
        ("lockstep/Reach-v0", {"max_episode_steps": 0}, "max_episode_steps=0"),
        ("lockstep/Reach-v0", {"wrappers": ("own_envs:Doubled",)}, "env.wrappers"),
        ("lockstep/Reach-v0", {"vectorization": "async"}, "vectorization=async"),
        ("CartPole-v1", {"wrappers": ("own_envs:Dubled",)}, "did you mean Doubled"),
        ("nowhere_at_all:Env", {}, "no module 'nowhere_at_all' .*go to the folder that has it, name that"),
        ("nowhere.py:Env", {}, "no file .*nowhere.py"),
        ("own_envs:Countr", {}, "did you mean Counter"),
        ("own_envs:Half", {}, r"lacks reset, step, close, spec \(an EnvSpec\), num_envs == 1"),
        ("own_envs:function", {}, "is not a class"),
        ("own_envs:Counter", {"kwargs": {"lenght": 1}}, "did you mean length"),
        ("own_envs:Vector", {"max_episode_steps": 3}, r"steps=3 is unknown.*; let the class take it, and truncate"),
        ("phys2d/CartPole-v1", {}, "pip install jax"),
    ],
)
def test_bad_input_is_one_clear_line(task, config, message):
    if "jax" in message and find_spec("jax"):
        pytest.skip("jax is installed here")
    with pytest.raises(ConfigError, match=message) as caught:
        env_spec(task, EnvConfig(**config))
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("task", "first"),
    [
        (
            "Isaac-Cartpole-v0",
            r"missing: isaaclab, isaaclab_tasks\); the same .* as --task=lockstep/Cartpole-v0; or install it$",
        ),
        ("Isaac-Ant-v0", r"missing: isaaclab, isaaclab_tasks\)"),
    ],
)
def test_a_missing_isaac_lab_has_one_install_command_per_line(task, first):
    with pytest.raises(ConfigError) as caught:
        env_spec(task, EnvConfig())
    line, *commands = str(caught.value).splitlines()
    assert re.search(first, line)
    assert [command.count(": pip install ") for command in commands] == [1, 1]
    assert "isaaclab==3.0.0" in commands[1]


def test_numbers_and_drawings_that_cannot_be():
    for num_envs, config, render, message in (
        (0, EnvConfig(), False, "num_envs=0"),
        (1, EnvConfig(), True, "cannot be rendered"),
    ):
        with pytest.raises(ConfigError, match=message):
            make_vector_env("lockstep/Reach-v0", config, num_envs, render=render)


def test_a_missing_simulator_names_the_command():
    from lockstep.envs.adapters import config_errors

    gymnasium = pytest.importorskip("gymnasium")
    with pytest.raises(ConfigError, match=r"needs more than is installed: .*pip install x"), config_errors("A-v0"):
        raise gymnasium.error.DependencyNotInstalled("X is missing,\n run pip install x")


def test_a_user_file_whose_import_fails(tmp_path):
    file = tmp_path / "broken.py"
    file.write_text("1 / 0\n")
    with pytest.raises(ConfigError, match="ZeroDivisionError"):
        env_spec(f"{file}:Env", EnvConfig())
    file.write_text("import not_there_at_all\n")
    with pytest.raises(ConfigError, match="needs the module 'not_there_at_all'"):
        env_spec(f"{file}:Env", EnvConfig())


def test_own_environments_by_module_and_file():
    assert env_spec("own_envs:Counter", EnvConfig(max_episode_steps=2)).max_episode_steps == 2
    assert env_spec(f"{HERE / 'own_envs.py'}:Counter", EnvConfig()).observation_size == 2
    assert make_vector_env("own_envs:Vector", EnvConfig(kwargs={"size": 1}), 3).num_envs == 3


def test_gymnasium_module_ids(tmp_path, monkeypatch):
    (tmp_path / "registers_counter.py").write_text(
        "import gymnasium\ngymnasium.register('Registered-v3', 'own_envs:Counter', reward_threshold=2)\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    spec = env_spec("registers_counter:Registered-v3", EnvConfig())
    assert spec.reward_threshold == 2.0 and spec.observation_size == 2
    with pytest.raises(ConfigError, match="did you mean Registered-v3"):
        env_spec("registers_counter:Registered-v4", EnvConfig())


def test_specs_of_known_tasks():
    spec = env_spec("CartPole-v1", EnvConfig())
    assert (spec.observation_size, spec.reward_threshold, spec.max_episode_steps) == (4, 475.0, 500)
    assert spec.action == ActionSpec("discrete", (2,))
    pendulum = env_spec("Pendulum-v1", EnvConfig(vectorization="async"))
    assert pendulum.action == ActionSpec("continuous", (1,), (-2.0,), (2.0,)) and pendulum.separately_seedable


@pytest.mark.parametrize("task", sorted(BUILT_IN))
def test_specs_go_through_json(task):
    spec = env_spec(task, EnvConfig())
    text = json.dumps(spec.to_dict(), allow_nan=False)
    assert EnvSpec.from_dict(json.loads(text)) == spec


def test_action_sizes():
    multi = ActionSpec("multi_discrete", (2, 3))
    real = ActionSpec("continuous", (3,), (-math.inf,) * 3, (math.inf,) * 3)
    assert (multi.num_parameters, multi.width) == (5, 2)
    assert (real.num_parameters, real.width) == (3, 3)
    assert (ActionSpec("discrete", (4,)).num_parameters, ActionSpec("discrete", (4,)).width) == (4, 1)


@pytest.mark.parametrize(
    ("low", "high", "said"),
    [
        ((), (), "sizes=(2,) has low=[]; give one bound for each of its numbers, -math.inf where there is none"),
        ((-1.0,), (1.0,), "sizes=(2,) has low=[-1.0]; give one bound for each"),
        ((0.0, 0.0), (1.0, 1.0, 1.0), "sizes=(2,) has high=[1.0, 1.0, 1.0]; give one bound for each"),
        ((1.0, -1.0), (-1.0, 1.0), "actions from [1.0, -1.0] to [-1.0, 1.0]: each low must be at most its high"),
        ((-1.0, math.nan), (1.0, 1.0), "each low must be at most its high"),
    ],
)
def test_bounds_that_are_not_those_of_each_number_are_refused(low, high, said):
    with pytest.raises(ConfigError, match=re.escape(said)):
        ActionSpec("continuous", (2,), low, high)


def test_built_in_tasks_do_without_gymnasium():
    code = (
        "import sys\nfrom lockstep.envs.make import env_spec\nfrom lockstep.run import EnvConfig\n"
        "env_spec('lockstep/Cartpole-v0', EnvConfig())\nassert not {'gymnasium', 'torch', 'jax'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
