"""A run to and from YAML, and changed by name."""

import datetime
from pathlib import Path

import numpy as np
import pytest

from lockstep.algorithms.dqn import DQNConfig
from lockstep.algorithms.ppo import PPOConfig
from lockstep.config.settings import converted
from lockstep.errors import ConfigError
from lockstep.run import (
    EnvConfig,
    NetworkConfig,
    OfflineRun,
    Run,
    ScoreNetworkConfig,
    dump,
    from_dict,
    load,
    override,
    to_dict,
)
from lockstep.world import World

BASE = Run(task="CartPole-v1")


def refusal(changes):
    with pytest.raises(ConfigError) as caught:
        override(BASE, changes)
    assert "\n" not in str(caught.value)
    return str(caught.value)


@pytest.mark.parametrize(
    "run",
    [
        BASE,
        Run(task="1e3", num_shards=4, stop_return=-200.0, log_every=None, compile=True),
        Run(task="on", network=NetworkConfig(hidden=(), module="my:Net")),
        Run(task="a", network=NetworkConfig(hidden=(3,)), env=EnvConfig(wrappers=("a:B", "c:D"), max_episode_steps=7)),
        Run(task="a", env=EnvConfig(kwargs={"rate": 1e-7, "text": "1e-7", "deep": {"list": [1, 2.0, None, True]}})),
        Run(task="a", algorithm=PPOConfig(learning_rate=1e-20, max_grad_norm=None, target_kl=0.1 + 0.2)),
        Run(task="a", algo="dqn"),
        Run(task="a", algo="dqn", algorithm=DQNConfig(target_rate=0.005, replay_path="/a/b", max_grad_norm=None)),
    ],
)
def test_a_run_survives_yaml_exactly(run, tmp_path):
    path = tmp_path / "run.yaml"
    path.write_text(dump(run))
    assert load(path) == run
    assert from_dict(to_dict(run)) == run


def test_yaml_is_complete_and_in_the_order_of_the_fields():
    tree = to_dict(BASE)
    assert list(tree)[:4] == ["task", "algo", "num_envs", "total_steps"]
    assert tree["algorithm"]["gae_lambda"] == 0.95
    assert tree["network"]["hidden"] == [64, 64]


def test_bare_and_dotted_names_reach_every_leaf():
    def leaves(tree, prefix=""):
        for key, value in tree.items():
            if isinstance(value, dict) and key != "kwargs":
                yield from leaves(value, f"{prefix}{key}.")
            else:
                yield f"{prefix}{key}", value

    names = dict(leaves(to_dict(BASE)))
    assert len(names) > 40
    for name, value in names.items():
        assert override(BASE, {name: value}) == BASE
        assert override(BASE, {name.rpartition(".")[2]: value}) == BASE


@pytest.mark.parametrize(
    ("name", "text", "read"),
    [
        ("learning_rate", "1e-3", 1e-3),
        ("learning_rate", "1E-3", 1e-3),
        ("learning_rate", ".5e-3", 5e-4),
        ("algorithm.learning_rate", "1", 1.0),
        ("algorithm.max_grad_norm", "null", None),
        ("algorithm.target_kl", "0.02", 0.02),
        ("num_envs", "64", 64),
        ("total_steps", "3e6", 3_000_000),
        ("total_steps", "1_000", 1000),
        ("network.hidden", "[32, 32, 16]", (32, 32, 16)),
        ("network.hidden", "[]", ()),
        ("compile", "true", True),
        ("task", "123", "123"),
        ("task", "on", "on"),
        ("network.module", "null", None),
        ("env.kwargs", "{a: 1}", {"a": 1}),
        ("env.kwargs.gravity.x", "1e-2", {"gravity": {"x": 0.01}}),
    ],
)
def test_values_are_yaml_read_by_the_type_of_the_field(name, text, read):
    run = override(BASE, {name.rpartition("algorithm.")[2]: text})
    value = run
    for key in name.split(".")[: 2 if "kwargs" in name else None]:
        value = getattr(value, key) if hasattr(value, key) else getattr(run.algorithm, key)
    assert value == read
    assert type(value) is type(read)


def test_names_below_a_mapping_may_have_dots():
    base = OfflineRun(data="d", algo="dqn")
    run = override(base, {"reward_boost.menu.buy": "0.5", "algorithm.reward_boost.2.0": "1", "reward_boost.a": "2"})
    assert run.algorithm.reward_boost == {"menu.buy": 0.5, "2.0": 1, "a": 2}
    with pytest.raises(ConfigError, match=r"unknown setting rewards_boost\.menu\.buy; did you mean"):
        override(base, {"rewards_boost.menu.buy": "0.5"})


def test_python_values_are_taken_as_they_are():
    run = override(BASE, {"seed": 3, "hidden": (8,), "algorithm": PPOConfig(gamma=0.5), "kwargs": {"a": "1e3"}})
    assert (run.seed, run.network.hidden, run.algorithm.gamma) == (3, (8,), 0.5)
    assert run.env.kwargs == {"a": "1e3"}


def test_changes_are_checked_together_and_kwargs_add_up():
    both = Run(task="a", device="cuda", backend="nccl")
    run = override(both, {"device": "cpu", "backend": "gloo"})  # device=cpu alone is refused
    assert (run.device, run.backend) == ("cpu", "gloo")
    run = override(Run(task="a", env=EnvConfig(kwargs={"a": 1})), {"kwargs.b": "2", "env.kwargs.c": "3"})
    assert run.env.kwargs == {"a": 1, "b": 2, "c": 3}


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"gamma": "0.9", "algorithm.gamma": "0.8"}, "gamma and algorithm.gamma give algorithm.gamma two values"),
        ({"algorithm": {"gamma": 0.9}, "gamma": 0.8}, "algorithm and gamma give algorithm.gamma two values"),
        ({"env.kwargs.b": 2, "kwargs": {"a": 1}}, "env.kwargs.b and kwargs give env.kwargs two values"),
        ({"kwargs.a": "1", "env.kwargs.a": "2"}, "kwargs.a and env.kwargs.a give env.kwargs.a two values"),
    ],
)
def test_two_values_of_one_setting_are_refused(changes, words):
    assert words in refusal(changes)


def test_one_value_under_two_names_is_no_contradiction():
    assert override(BASE, {"gamma": "0.9", "algorithm.gamma": 0.9}).algorithm.gamma == 0.9
    assert override(BASE, {"kwargs": {"a": 1}, "env.kwargs.b": 2}).env.kwargs == {"a": 1, "b": 2}


def test_the_algorithm_decides_what_algorithm_holds():
    assert BASE.algorithm == PPOConfig()
    assert Run(task="a", algo="dqn").algorithm == DQNConfig()
    run = override(BASE, {"double": "false", "algo": "dqn", "algorithm.gamma": "0.9", "batch_size": "64"})
    assert (run.algo, run.algorithm) == ("dqn", DQNConfig(double=False, gamma=0.9, batch_size=64))
    assert from_dict({"task": "a", "algorithm": {"double": False}, "algo": "dqn"}).algorithm == DQNConfig(double=False)
    with pytest.raises(ConfigError, match="algo=ppo does not go with a DQNConfig; set algo=dqn"):
        Run(task="a", algorithm=DQNConfig())


def test_another_algorithm_is_not_taken_where_settings_would_be_lost():
    tuned = Run(task="CartPole-v1", algorithm=PPOConfig(gae_lambda=0.9))
    with pytest.raises(ConfigError) as caught:
        override(tuned, {"algo": "dqn"})
    for word in ("algo=dqn", "gae_lambda=0.9", "would be lost", "lockstep train CartPole-v1 --algo dqn"):
        assert word in str(caught.value)
    assert override(tuned, {"algo": "ppo"}) == tuned


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"num_epochs": 3}, ["num_epochs is a setting of ppo", "algo=dqn", "leave it out, or choose algo=ppo"]),
        ({"algorithm.clip_range": 0.1}, ["algorithm.clip_range is a setting of ppo"]),
    ],
)
def test_a_setting_of_another_algorithm_is_refused_by_its_name(given, words, tmp_path):
    with pytest.raises(ConfigError) as caught:
        override(Run(task="a", algo="dqn"), given)
    assert all(word in str(caught.value) for word in words), caught.value
    with pytest.raises(
        ConfigError, match=r"cql_alpha is a setting of dqn, parametric_dqn and cql, .*, or choose algo=cql"
    ):
        override(OfflineRun(data="d", algo="iql"), {"cql_alpha": 1})  # which learns from the same data
    with pytest.raises(
        ConfigError, match=r"learning_starts is a setting of dqn, sac and td3, .*, or choose one of them$"
    ):
        override(Run(task="a"), {"learning_starts": 1})
    path = tmp_path / "mine.yaml"
    path.write_text("task: a\nalgorithm: {epsilon_end: 0.1}\n")
    with pytest.raises(ConfigError, match=r"epsilon_end is a setting of dqn, .* choose algo=dqn"):
        load(path)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"num_env": "3"}, ["unknown setting num_env", "num_envs"]),
        ({"learningrate": "3"}, ["unknown setting learningrate", "algorithm.learning_rate"]),
        ({"network.gamma": "3"}, ["network.gamma", "algorithm.gamma"]),
        ({"algorithm": "{gama: 1}"}, ["algorithm.gama", "algorithm.gamma"]),
        ({"": "3"}, ["unknown setting"]),
        ({"zzz": "3"}, ["unknown setting zzz", "lockstep recipe", "an argument of the environment is env.kwargs.zzz"]),
        ({"learning_rate": "fast"}, ["learning_rate='fast'", "a number"]),
        ({"learning_rate": "-1"}, ["learning_rate=-1", "greater than 0"]),
        ({"gamma": ".nan"}, ["gamma=nan", "a number"]),
        ({"gamma": "true"}, ["gamma=true", "a number"]),
        ({"num_envs": "1.5"}, ["num_envs=1.5", "a whole number"]),
        ({"num_envs": "null"}, ["num_envs=null", "a whole number"]),
        ({"num_shards": "x"}, ["num_shards='x'", "a whole number or null"]),
        ({"compile": "1"}, ["compile=1", "true or false"]),
        ({"device": "tpu"}, ["device='tpu'", "one of auto, cpu, cuda"]),
        ({"hidden": "64"}, ["hidden=64", "a list", "a whole number"]),
        ({"task": "null"}, ["task=null", "text"]),
        ({"network": "3"}, ["network=3", "mapping"]),
        ({"hidden": "[1"}, ["hidden=[1", "not YAML"]),
        ({"seed.x": "3"}, ["unknown setting seed.x"]),
    ],
)
def test_bad_changes_are_one_line_that_names_the_setting(changes, words):
    message = refusal(changes)
    assert all(word in message for word in words), message


def test_an_unknown_setting_of_a_run_on_logged_data_names_its_page():
    with pytest.raises(ConfigError, match=r"unknown setting data\.train; docs/logged-data\.md shows every setting$"):
        override(OfflineRun(data="data"), {"data.train": "3"})


def test_a_name_with_two_meanings_asks_for_the_full_one(monkeypatch):
    from dataclasses import dataclass, field

    from lockstep.config import settings

    @dataclass(frozen=True)
    class Part:
        rate: float = 1.0

    @dataclass(frozen=True)
    class Whole:
        one: Part = field(default_factory=Part)
        two: Part = field(default_factory=Part)

    monkeypatch.setitem(globals(), "Part", Part)
    assert settings.override(Whole(), {"two.rate": "2"}) == Whole(two=Part(2.0))
    with pytest.raises(ConfigError, match=r"rate could be one\.rate or two\.rate"):
        settings.override(Whole(), {"rate": "2"})


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("num_envs: 3\n", ["task is missing"]),
        ("", ["task is missing"]),
        ("- 1\n", ["task is missing"]),
        (
            "task: a\nlearning_rate: 1\n",
            ["unknown setting learning_rate; write it below", "`algorithm: {learning_rate: 1}`"],
        ),
        (
            "task: a\nalgorithm.gamma: 1\n",
            ["unknown setting algorithm.gamma; write it below", "`algorithm: {gamma: 1}`"],
        ),
        ("task: a\ncapacity: 5\n", ["capacity is a setting of dqn, sac and td3", "algo=ppo"]),
        ("task: a\nalgorithm:\n  gama: 1\n", ["algorithm.gama", "algorithm.gamma"]),
        ("task: a\nnetwork:\n", ["network=null", "mapping"]),
        ("task: 3\n", ["task=3", "text"]),
        ("task: a\nnum_envs: 0\n", ["num_envs=0"]),
        ("task: a\n  b: [\n", ["line 2", "not YAML"]),
        ("task: a\nnum_envs: 4\nnum_envs: 8\n", ["line 3", "num_envs is there twice"]),
        ("task: a\nalgorithm: {gamma: 1, gamma: 0.5}\n", ["line 2", "gamma is there twice"]),
        ("task: a\nnum_envs: 1:4\n", ["num_envs='1:4'", "a whole number"]),
        (
            "task: !!python/object/apply:os.system [ls]\n",
            ["has the Python tag !!python/object/apply:os.system"],
        ),
    ],
)
def test_a_bad_file_is_named_with_its_fault(text, words, tmp_path):
    path = tmp_path / "mine.yaml"
    path.write_text(text)
    with pytest.raises(ConfigError) as caught:
        load(path)
    assert all(word in str(caught.value) for word in ["mine.yaml", *words]), caught.value
    assert "\n" not in str(caught.value)


def test_a_merged_mapping_may_be_overridden():
    from lockstep.config import settings

    text = "base: &base {gamma: 0.9, num_steps: 8}\nmine: {<<: *base, gamma: 0.5}\n"
    assert settings.parse(text, "mine.yaml")["mine"] == {"gamma": 0.5, "num_steps": 8}


def test_a_missing_file_is_one_line(tmp_path):
    with pytest.raises(ConfigError, match=r"cannot read .*nothing\.yaml"):
        load(Path(tmp_path / "nothing.yaml"))


def test_json_is_read_too(tmp_path):
    (tmp_path / "a.json").write_text('{"task": "a", "algorithm": {"gamma": 0.5}}')
    assert load(tmp_path / "a.json") == Run(task="a", algorithm=PPOConfig(gamma=0.5))


@pytest.mark.parametrize(
    "value", [object(), datetime.date(2020, 1, 1), b"bytes", {1, 2}], ids=lambda one: type(one).__name__
)
def test_a_run_that_yaml_or_a_checkpoint_cannot_hold_is_refused(value):
    with pytest.raises(ConfigError, match="plain values"):
        dump(Run(task="a", env=EnvConfig(kwargs={"f": value})))


@pytest.mark.parametrize(
    ("changes", "named"), [({"stop_return": "5"}, "stop_return=5"), ({"frame_stack": "3"}, "env.frame_stack=3")]
)
def test_logged_run_without_a_task_has_no_settings_of_a_simulator(changes, named):
    with pytest.raises(ConfigError, match=f"{named}.* is for episodes in a simulator"):
        override(OfflineRun(data="data"), changes)
    assert override(OfflineRun(data="data", task="CartPole-v1"), changes)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"ml_framework": "jax", "compile": "true"}, ["compile=true", "ml_framework=jax"]),
        ({"ml_framework": "jax", "shard_threads": "2"}, ["shard_threads=2", "ml_framework=jax"]),
        ({"devices_per_process": "2"}, ["devices_per_process=2", "--ranks 2", "--ml-framework jax"]),
        ({"ml_framework": "jax", "devices_per_process": "0"}, ["devices_per_process=0", "at least 1"]),
    ],
)
def test_what_a_backend_does_not_do_is_refused_by_name(changes, words):
    said = refusal(changes)
    assert [word for word in words if word not in said] == []


@pytest.mark.parametrize(
    ("changes", "saved", "cut"),
    [
        ({}, None, (3, False)),
        ({}, 6, (6, False)),
        ({"num_shards": 12}, None, (12, True)),
        ({"num_shards": 12}, 12, (12, True)),
        ({"ml_framework": "jax", "devices_per_process": 4}, None, (12, False)),
        ({"ml_framework": "jax", "devices_per_process": 4}, 24, (24, False)),
    ],
)
def test_each_rank_has_a_shard_unless_told_otherwise(changes, saved, cut):
    world = override(BASE, changes).with_shards(World(rank=1, size=3), saved)
    assert (world.num_shards, world.pinned) == cut


@pytest.mark.parametrize(
    ("changes", "saved", "words"),
    [
        ({"num_shards": 2}, None, "num_shards=2 is fewer than the 3 ranks"),
        ({}, 2, "num_shards=2 is fewer than the 3 ranks"),
        ({"ml_framework": "jax", "devices_per_process": 2, "num_shards": 4}, None, "num_shards=4 is fewer than the 6"),
        ({"ml_framework": "jax", "devices_per_process": 2}, 3, "devices_per_process=2"),
    ],
)
def test_a_rank_without_a_shard_is_refused(changes, saved, words):
    with pytest.raises(ConfigError, match=words):
        override(BASE, changes).with_shards(World(size=3), saved)


@pytest.mark.parametrize("algo", ["parametric_dqn", "bc", "td3_bc", "cql"])
def test_jax_refuses_other_algorithms_on_logged_data(algo):
    with pytest.raises(ConfigError, match=f"algo={algo} does not learn .* ml_framework=jax, which has dqn and iql"):
        OfflineRun(data="prepared", ml_framework="jax", algo=algo)


def test_jax_refuses_to_export_at_the_end_of_a_run():
    with pytest.raises(ConfigError, match=r"model_path=out: ml_framework=jax writes no .*lockstep export RUN"):
        OfflineRun(data="prepared", ml_framework="jax", model_path="out")


@pytest.mark.parametrize(
    ("network", "said"),
    [
        ({"hidden": (-5,)}, r"network\.hidden=\[-5\]: each layer needs at least 1 unit"),
        ({"critic_hidden": (8, 0)}, r"network\.critic_hidden=\[8, 0\]: each layer"),
        ({"features": 0}, r"network\.features=0 must be at least 1"),
    ],
)
def test_layers_without_units_are_refused(network, said):
    with pytest.raises(ConfigError, match=said):
        NetworkConfig(**network)
    with pytest.raises(ConfigError, match=r"hidden=\[0\]: each layer"):
        ScoreNetworkConfig(hidden=(0,))
    assert NetworkConfig(hidden=()).hidden == ()


def test_numbers_of_numpy_and_whole_floats_are_numbers():
    run = Run(task="a", num_envs=np.int64(16), total_steps=1e6, algorithm=PPOConfig(num_steps=8.0), seed=np.int32(3))
    assert run == Run(task="a", num_envs=16, total_steps=1_000_000, algorithm=PPOConfig(num_steps=8), seed=3)
    assert {type(one) for one in (run.num_envs, run.total_steps, run.seed, run.algorithm.num_steps)} == {int}
    changes = {"learning_rate": np.float64(1e-3), "gamma": np.float32(0.5), "hidden": np.array([3, 4])}
    changed = override(run, changes)
    assert (changed.algorithm.learning_rate, changed.algorithm.gamma, changed.network.hidden) == (1e-3, 0.5, (3, 4))
    assert from_dict(to_dict(changed)) == changed and "learning_rate: 0.001" in dump(changed)


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: Run(task="a", num_envs="8"), "num_envs='8' must be a whole number"),
        (lambda: Run(task="a", num_envs=8.5), "num_envs=8.5 must be a whole number"),
        (lambda: Run(task="a", total_steps=None), "total_steps=null must be a whole number"),
        (lambda: Run(task="a", seed="1"), "seed='1' must be a whole number"),
        (
            lambda: Run(task="a", network={"hidden": [3]}),
            "network=.* must be an instance of NetworkConfig, or left out",
        ),
        (lambda: Run(task="a", algorithm="ppo"), "algorithm='ppo' must be an instance of PPOConfig, or left out"),
        (lambda: Run(task="a", env={}), "env={} must be an instance of EnvConfig, or left out"),
        (lambda: Run(task="a", algo=["ppo"]), r"algo=\['ppo'\] must be one of ppo, dqn"),
        (lambda: Run(task=None), "task=None must be text: a Gymnasium id"),
        (lambda: OfflineRun(data=5), "data=5 must be text"),
        (lambda: PPOConfig(num_steps="8"), "num_steps='8' must be a number"),
        (lambda: PPOConfig(gamma=True), "gamma=True must be a number"),
        (lambda: NetworkConfig(features="8"), "network.features='8' must be a whole number"),
        (lambda: EnvConfig(frame_stack="4"), "env.frame_stack='4' must be a whole number"),
        (lambda: override(BASE, {"env.kwargs": "{1: 1}"}), "env.kwargs={1: 1} must be a mapping with text as keys"),
    ],
)
def test_values_of_other_types_are_refused_by_name_in_python(make, said):
    with pytest.raises(ConfigError, match=said):
        make()


def test_a_list_that_may_be_null_does_not_read_as_a_list_of_nulls():
    with pytest.raises(ConfigError, match=r"x=\[None\] must be null, or a list, each item a number$"):
        converted("x", [None], tuple[float, ...] | None)


def test_a_list_that_contains_itself_is_an_unknown_setting(tmp_path):
    (tmp_path / "a.yaml").write_text("a: &a [*a]\ntask: CartPole-v1\n")
    with pytest.raises(ConfigError, match="unknown setting a"):
        load(tmp_path / "a.yaml")
