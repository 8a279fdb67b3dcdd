"""What a run demands of its task and of a host is told before anything starts."""

import dataclasses
import sys
from types import SimpleNamespace

import pytest

import made_data
from lockstep.algorithms.dqn import DQNConfig
from lockstep.algorithms.offline import CloningConfig, OfflineDQNConfig
from lockstep.algorithms.ppo import PPOConfig
from lockstep.config.env import EnvConfig
from lockstep.data import dataset_files
from lockstep.data.prepare import PrepareOptions, prepare_dataset
from lockstep.envs.spec import ActionSpec, EnvSpec
from lockstep.errors import ConfigError
from lockstep.experience.memory import replay_bytes
from lockstep.launch.world_checks import check_world
from lockstep.run import OfflineRun, Run, override
from lockstep.session import host_checks, package_checks, placement
from lockstep.session.data_checks import check_data, check_enough_rows
from lockstep.session.host_checks import bytes_of_host, check_host, check_model_path
from lockstep.session.run_checks import check_run
from lockstep.session.task_checks import check_task
from lockstep.world import World
from made_logs import parametric, write

VECTOR = EnvSpec(
    observation_size=4, action=ActionSpec(kind="discrete", sizes=(2,)), autoreset="same_step", separately_seedable=True
)
IMAGE = EnvSpec(
    observation_size=2 * 36 * 36,
    action=ActionSpec(kind="discrete", sizes=(2,)),
    autoreset="same_step",
    separately_seedable=True,
    image=(2, 36, 36),
    frames=2,
)
TINY = dataclasses.replace(IMAGE, observation_size=2 * 8 * 36, image=(2, 8, 36))
FORCES = EnvSpec(
    observation_size=4,
    action=ActionSpec(kind="continuous", sizes=(1,), low=(-1.0,), high=(1.0,)),
    autoreset="same_step",
    separately_seedable=True,
)
TWO_OBSERVATIONS = dataclasses.replace(VECTOR, critic_size=3)
RUN = Run(task="a", algo="dqn", num_envs=8, algorithm=DQNConfig(capacity=8000, n_step=3))


def test_a_task_that_can_be_learned_passes():
    for run, spec in ((RUN, VECTOR), (RUN, IMAGE), (Run(task="a"), FORCES), (Run(task="a"), IMAGE)):
        check_task(run, spec)
    check_task(override(RUN, {"encoder": "impala"}), IMAGE)
    check_task(override(RUN, {"encoder": "mlp"}), IMAGE)
    for way_out in ({}, {"encoder": "impala"}, {"encoder": "mlp"}, {"network.module": "my:Network"}):
        check_task(override(RUN, way_out), TINY)


@pytest.mark.parametrize(
    ("run", "spec", "words"),
    [
        (RUN, FORCES, ["task=a", "algo=dqn", "one discrete action", "real numbers", "use algo=ppo, sac or td3"]),
        (override(RUN, {"encoder": "nature"}), VECTOR, ["network.encoder=nature needs images", "mlp, or auto"]),
        (
            override(Run(task="a"), {"normalize_observation": True}),
            IMAGE,
            ["normalize_observation=true", "set it false"],
        ),
        (override(Run(task="a"), {"bounds_loss_coef": 0.1}), VECTOR, ["bounds_loss_coef=0.1", "discrete", "use 0"]),
        (
            override(Run(task="a"), {"state_dependent_std": True}),
            VECTOR,
            ["state_dependent_std=true", "task=a"],
        ),
        (override(RUN, {"critic_hidden": [8]}), VECTOR, ["network.critic_hidden=[8]", "algo=dqn"]),
        (
            override(Run(task="a"), {"critic_hidden": [8], "shared": True}),
            VECTOR,
            ["network.critic_hidden=[8]", "network.shared=false"],
        ),
        (override(Run(task="a"), {"critic_hidden": [8]}), IMAGE, ["network.critic_hidden=[8]", "convolutions"]),
        (
            override(RUN, {"encoder": "nature"}),
            TINY,
            ["network.encoder=nature needs images of at least 36 by 36", "8 by 36", "impala or mlp"],
        ),
        (override(Run(task="a"), {"shared": True}), TWO_OBSERVATIONS, ["network.shared=true", "use null or false"]),
        (
            override(Run(task="a"), {"module": "my:Network"}),
            TWO_OBSERVATIONS,
            ["network.module=my:Network", "use null"],
        ),
        (override(RUN, {"encoder": "small"}), TINY, ["network.encoder=small needs images of at least 20 by 20"]),
    ],
)
def test_a_task_that_cannot_be_learned_is_refused(run, spec, words):
    with pytest.raises(ConfigError) as caught:
        check_task(run, spec)
    assert all(word in str(caught.value) for word in words), caught.value


def test_a_host_has_the_memory_for_the_observations_of_a_rollout(monkeypatch):
    monkeypatch.setattr(host_checks, "usable_memory", lambda: 10**9)
    here = World(rank=2, size=4, local_rank=0, local_size=2)
    run = Run(task="a", num_envs=4 * 1000, algorithm=PPOConfig(num_steps=99))
    of_row = 4 * VECTOR.observation_size
    host_checks.check_rollouts(run, VECTOR, here)
    monkeypatch.setattr(host_checks, "usable_memory", lambda: 2 * 1000 * 100 * of_row - 1)
    with pytest.raises(ConfigError, match=r"num_envs=4000 with num_steps=99 needs .* of memory on this host"):
        host_checks.check_rollouts(run, VECTOR, here)
    monkeypatch.setattr(host_checks, "usable_memory", lambda: 2 * 1000 * 100 * of_row)
    host_checks.check_rollouts(run, VECTOR, here)
    monkeypatch.setattr(host_checks, "usable_memory", lambda: None)  # not known on this system
    host_checks.check_rollouts(run, VECTOR, here)


def test_a_host_counts_the_parts_of_its_ranks():
    part = {"n_step": 3, "prioritized": False}
    whole = bytes_of_host(RUN, VECTOR, World())
    assert whole == replay_bytes(VECTOR, 8, 8000, **part)
    here = World(rank=2, size=4, local_rank=0, local_size=2)
    assert bytes_of_host(RUN, VECTOR, here) == 2 * replay_bytes(VECTOR, 2, 2000, **part)
    uneven = World(rank=2, size=3, local_rank=0, local_size=1).with_shards(4)
    assert bytes_of_host(RUN, VECTOR, uneven) == len(uneven.shards) * replay_bytes(VECTOR, 2, 2000, **part)
    in_files = override(RUN, {"replay_path": "/tmp"})
    assert bytes_of_host(in_files, VECTOR, World()) == replay_bytes(VECTOR, 8, 8000, **part, mapped=True) < whole
    assert bytes_of_host(in_files, VECTOR, World(), mapped=False) == whole


def test_memory_is_asked_for_what_this_host_holds(monkeypatch):
    asked = []
    monkeypatch.setattr(
        host_checks,
        "check_memory",
        lambda capacity, wanted, *, copy, may_map, **_: asked.append((wanted, copy, may_map)),
    )
    here = World(rank=2, size=4, local_rank=0, local_size=2)
    check_host(RUN, VECTOR, here)
    check_host(override(RUN, {"checkpoint_replay": "false"}), VECTOR, here)
    whole = bytes_of_host(RUN, VECTOR, here)
    assert asked == [(whole, whole, True), (whole, 0, True)]
    in_files = override(RUN, {"replay_path": "/tmp"})
    check_host(in_files, VECTOR, here)
    in_memory = bytes_of_host(in_files, VECTOR, here)
    assert asked[2] == (in_memory, whole, False), "the copy for a checkpoint lies in memory"
    check_host(RUN, VECTOR, here, on_device=True)
    assert asked[3] == (in_memory, whole + (whole - in_memory), False), "observations on devices could not be in files"
    check_host(Run(task="a"), VECTOR, here)
    assert len(asked) == 4, "there is no replay"


def test_a_directory_that_cannot_hold_the_replay_is_refused(tmp_path):
    check_host(override(RUN, {"replay_path": str(tmp_path / "new" / "replay")}), VECTOR, World())
    assert list(tmp_path.iterdir()) == [], "only asked"
    (tmp_path / "file").write_text("mine")
    with pytest.raises(ConfigError, match=r"replay_path=.*/file/below cannot take .* \(.*/file is a file\)"):
        check_host(override(RUN, {"replay_path": str(tmp_path / "file" / "below")}), VECTOR, World())


def test_a_disk_too_small_for_the_replay_is_refused(tmp_path, monkeypatch):
    run = override(RUN, {"replay_path": str(tmp_path / "new")})
    # The files have the observations, and memory the rest.
    needed = bytes_of_host(RUN, VECTOR, World()) - bytes_of_host(run, VECTOR, World())
    usage = SimpleNamespace(free=needed)
    monkeypatch.setattr(host_checks.shutil, "disk_usage", lambda _: usage)
    check_host(run, VECTOR, World())
    usage.free = needed - 1
    with pytest.raises(ConfigError, match=r"replay_path=.*/new cannot take 0\.\d MB \(0\.\d MB are free there\); use"):
        check_host(run, VECTOR, World())


def test_an_unwritable_model_path_is_refused(tmp_path):
    check_model_path(OfflineRun(data="data"))
    check_model_path(OfflineRun(data="data", model_path=str(tmp_path / "made" / "later")))
    (tmp_path / "file").touch()
    with pytest.raises(ConfigError, match=r"model_path=.*below cannot be written \(.*file is a file\)"):
        check_model_path(OfflineRun(data="data", model_path=str(tmp_path / "file" / "below")))


SARSA = OfflineDQNConfig(maxq=False, estimate=False)


@pytest.fixture
def candidates(tmp_path):
    """Prepared data of candidates: with their possible actions, and without."""

    def prepared(name, possible, **options):
        log = write(tmp_path / f"{name}.jsonl", [parametric(i, possible_actions=possible) for i in range(9)])
        options = PrepareOptions(kind="parametric", **options)
        return prepare_dataset([log], tmp_path / name, options, show=lambda text: None)

    known = prepared("with", [{"7": 1.0}, {"7": 2.0}])
    alike = {f"{name}_features": known / f"{name}_features.json" for name in ("state", "action")}
    return str(known), str(prepared("without", ..., **alike))


@pytest.mark.parametrize(
    ("config", "way_out"),
    [
        (OfflineDQNConfig(), "maxq=true, estimate=true need.* that were taken: --set maxq=false --set estimate=false$"),
        (OfflineDQNConfig(estimate=False), "maxq=true needs.* that were taken: --set maxq=false --set estimate=false$"),
        (
            dataclasses.replace(SARSA, cql_alpha=1.0),
            "cql_alpha=1 needs.* the log must have.* that were taken: --set cql_alpha=0$",
        ),
        (OfflineDQNConfig(cql_alpha=1.0), "maxq=true, .* --set maxq=false --set estimate=false --set cql_alpha=0$"),
        (SARSA, None),
        (CloningConfig(), "algo=bc learns to choose among them; the log must have possible_actions$"),
        (CloningConfig(estimate=False), "algo=bc learns to choose among them; the log must have possible_actions$"),
    ],
)
def test_of_data_without_candidates_only_the_value_of_what_was_done_is_learned(candidates, config, way_out):
    algo = "bc" if isinstance(config, CloningConfig) else "parametric_dqn"
    known, data = (OfflineRun(data=one, algo=algo, algorithm=config) for one in candidates)
    check_data(known)
    if way_out is None:
        check_data(data)
        return
    with pytest.raises(
        ConfigError, match=f"does not say which actions were possible .possible_actions., and {way_out}"
    ):
        check_data(data)


def test_estimates_that_are_asked_for_on_data_without_candidates_are_refused(candidates):
    known, without = candidates
    run = OfflineRun(data=known, algo="parametric_dqn")
    with pytest.raises(
        ConfigError, match=r"eval_data=.*: .*possible_actions.* every policy takes it; .*leave eval_data"
    ):
        check_data(override(run, {"eval_data": without}))
    run = OfflineRun(data=without, algo="parametric_dqn", algorithm=SARSA)
    with pytest.raises(ConfigError, match=r"estimate_every=1 needs .* that were taken: --set estimate_every=null$"):
        check_data(override(run, {"estimate_every": 1}))
    check_data(override(run, {"estimate_every": 1, "eval_data": known}))


@pytest.mark.parametrize(
    ("num_shards", "way_out"), [(None, "use --ranks 3 or fewer"), (4, "use --set num_shards=3 or fewer")]
)
def test_more_shards_than_rows_are_refused_with_the_setting_that_changes_them(tmp_path, num_shards, way_out):
    run, world = OfflineRun(data=str(made_data.discrete(tmp_path / "data", rows=3))), World(size=4)
    check_enough_rows(run, World(size=3).with_shards(None))
    with pytest.raises(ConfigError, match=f"has 3 rows for 4 shards: .*; {way_out}$"):
        check_enough_rows(run, world.with_shards(num_shards))


def test_a_package_that_estimates_need_is_asked_for_before(tmp_path, monkeypatch):
    data = made_data.discrete(tmp_path / "data")
    monkeypatch.setitem(sys.modules, "scipy", None)
    with pytest.raises(ConfigError, match="needs the package scipy"):
        check_data(OfflineRun(data=str(data)))
    check_data(OfflineRun(data=str(data), algorithm=OfflineDQNConfig(estimate=False)))


def test_data_that_are_damaged_are_refused_before_a_run(tmp_path):
    data = made_data.discrete(tmp_path / "data")
    column = data / "part_00000" / "reward.npy"
    column.write_bytes(column.read_bytes()[:-1] + b"\x7f")
    check_data(OfflineRun(data=str(data)))  # as large as it was
    with pytest.raises(ConfigError, match=r"reward\.npy"):
        check_data(OfflineRun(data=str(data)), verify=True)


def test_large_data_are_not_read_whole_before_a_run(tmp_path, monkeypatch):
    data = made_data.discrete(tmp_path / "data")
    column = data / "part_00000" / "reward.npy"
    column.write_bytes(column.read_bytes()[:-1] + b"\x7f")
    monkeypatch.setattr(dataset_files, "MAX_VERIFIED", 100)
    check_data(OfflineRun(data=str(data)), verify=True)


def test_what_is_not_there_is_named_by_its_setting(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    made_data.discrete(tmp_path / "data")
    with pytest.raises(
        ConfigError, match=r"eval_data=nowhere does not exist below .*; say where it is now \(--set eval"
    ):
        check_data(OfflineRun(data="data", eval_data="nowhere"))
    (tmp_path / "log.jsonl").write_text("{}")
    with pytest.raises(ConfigError, match=r"eval_data=log.jsonl is a file.* log.jsonl --out DIRECTORY --like data$"):
        check_data(OfflineRun(data="data", eval_data="log.jsonl"))
    with pytest.raises(ConfigError, match=r"^data=log.jsonl is a file.* log.jsonl --out DIRECTORY$"):
        check_data(OfflineRun(data="log.jsonl"))


def test_the_algorithms_that_fit_are_listed(tmp_path):
    data = str(made_data.continuous(tmp_path / "data"))
    with pytest.raises(ConfigError, match=r"its actions are continuous; use iql, td3_bc or cql$"):
        check_data(OfflineRun(data=data))
    with pytest.raises(ConfigError, match=r"use iql, td3_bc or cql; td3_bc with alpha=0 clones$"):
        check_data(OfflineRun(data=data, algo="bc"))


def test_a_folder_named_like_a_framework_is_none(tmp_path, monkeypatch):
    (tmp_path / "torch").mkdir()  # of a run, where the command is given
    monkeypatch.setattr(sys, "path", [str(tmp_path)])
    monkeypatch.delitem(sys.modules, "torch", raising=False)
    with pytest.raises(ConfigError, match=r"ml_framework=torch needs the package torch: pip install"):
        package_checks.check_package("torch")


@pytest.mark.parametrize(
    ("framework", "installed", "words"),
    [
        ("jax", {"torch"}, "pip install 'lockstep-rl[jax]', or use --ml-framework torch"),
        ("torch", {"jax"}, "pip install 'lockstep-rl[torch]', or use --ml-framework jax"),
        ("torch", set(), "pip install 'lockstep-rl[torch]'"),
        ("jax", {"jax"}, None),
    ],
)
def test_a_framework_that_is_not_installed_is_named(monkeypatch, framework, installed, words):
    monkeypatch.setattr(package_checks, "_installed", lambda name: name in installed)
    run = Run(task="CartPole-v1", ml_framework=framework)
    if words is None:
        package_checks.check_packages(run)
        return
    with pytest.raises(ConfigError, match=f"ml_framework={framework} needs") as caught:
        package_checks.check_packages(run)
    assert str(caught.value).endswith(words)


def test_the_memory_of_a_rollout_is_compared_before_ranks_start():
    with pytest.raises(ConfigError, match=r"num_envs=1000000000 .* of memory on this host"):
        check_world(Run(task="CartPole-v1", device="cpu", num_envs=10**9), World())


def test_sac_in_jax_does_not_keep_torch_tensors_on_the_device(monkeypatch):
    monkeypatch.setattr(placement, "is_tensor_task", lambda task: True)
    run = Run(task="Mine", algo="sac", ml_framework="jax", env=EnvConfig(placement="device"))
    with pytest.raises(ConfigError, match=r"env.placement=device: algo=sac in JAX .* torch tensors"):
        placement.check_placement(run)


def test_machines_of_a_ray_cluster_are_not_judged_by_this_one(monkeypatch):
    monkeypatch.setattr(host_checks, "usable_memory", lambda: 1)
    run = Run(task="CartPole-v1", algo="dqn", device="cuda", num_envs=8, algorithm=DQNConfig(replay_device="cuda"))
    check_world(run, World(size=8, launcher="ray"))
    with pytest.raises(ConfigError, match="replay_device=cuda"):
        check_world(run, World(size=8))


@pytest.mark.parametrize("ml_framework", ["torch", "jax"])
def test_a_run_that_cannot_begin_is_refused_before_it_has_a_directory(here, ml_framework):
    module = here / "net.py"
    module.write_text("class Net:\n    pass\n")
    for changes, message in (
        ({"env.placement": "device"}, "env.placement=device: task=CartPole-v1 is not written for"),
        (
            {"algo": "dqn", "network.module": f"{module}:Net", "dueling": True},
            "algorithm.dueling=true shapes Lockstep's",
        ),
        ({"algo": "dqn", "network.module": f"{module}:Net", "noisy": True}, "algorithm.noisy=true shapes Lockstep's"),
    ):
        run = override(Run(task="CartPole-v1", ml_framework=ml_framework), changes)
        with pytest.raises(ConfigError, match=message):
            check_run(run)


def test_actions_that_float32_cannot_tell_apart_are_refused():
    action = ActionSpec(kind="continuous", sizes=(1,), low=(1e8,), high=(1e8 + 1,))
    with pytest.raises(ConfigError, match=r"actions that can vary in float32, and dimension 0 of task=Mine"):
        check_task(Run(task="Mine", algo="sac"), dataclasses.replace(FORCES, action=action))


@pytest.mark.parametrize("algo", ["ppo", "sac"])
def test_stacked_observations_are_refused_on_the_device_before_a_run(algo):
    run = override(Run(task="brax/fast", ml_framework="jax"), {"algo": algo, "env.frame_stack": 2})
    with pytest.raises(ConfigError, match=r"env.frame_stack=2 is for environments on the host; use env.placement=host"):
        placement.check_placement(run)
    placement.check_placement(override(run, {"env.placement": "host"}))
