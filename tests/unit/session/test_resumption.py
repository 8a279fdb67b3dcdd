"""What a resumed run may change, and what it is told."""

import json
import shutil
from pathlib import Path

import pytest

from lockstep.config.settings import as_text
from lockstep.errors import ConfigError
from lockstep.launch import train as launched
from lockstep.record import checkpoint
from lockstep.record.checkpoint import FORMAT, write_state
from lockstep.record.run_dir import RunDir
from lockstep.run import OfflineRun, Run, load, override, to_dict
from lockstep.session.resume import compare, load_resumption, prepare

RUN = Run(task="CartPole-v1", num_shards=4)
REPLAY = Run(task="CartPole-v1", num_shards=4, algo="dqn")


@pytest.fixture
def run_dir(tmp_path):
    path = tmp_path / "run"
    RunDir.create(path, RUN)
    return path


def add(run_dir, step, **more):
    beside = checkpoint.partial(run_dir, step)
    beside.mkdir(parents=True)
    files = {"learner.safetensors": write_state(beside / "learner.safetensors", {})}
    manifest = {"format": FORMAT, "step": step, "num_shards": 4, "world_size": 2, "run": to_dict(RUN), "files": files}
    checkpoint.commit(run_dir, json.loads(json.dumps(manifest | more)), 3)
    return run_dir / "checkpoints" / f"step_{step}"


def test_a_resumed_run_has_the_same_config(run_dir):
    add(run_dir, 512)
    found = prepare(run_dir, {})
    assert (found.run, found.run_dir, found.world_size, found.num_shards, found.step) == (RUN, run_dir, 2, 4, 512)
    assert found.notes == []
    assert found.run == load(run_dir / "run.yaml")


def test_a_run_that_is_resumed_in_python_is_told_what_changed(run_dir, monkeypatch, capsys):
    add(run_dir, 512)
    monkeypatch.setattr(launched, "_train_here", lambda *_, **__: {})
    launched.train(resume=run_dir, gamma=0.9, timeout_s=50)
    said = capsys.readouterr().err
    assert "note: algorithm.gamma is 0.9 from here on, was 0.99; the result will differ" in said
    assert "note: timeout_s is 50.0 from here on, was 120.0\n" in said
    summary = {"status": "finished", "env_steps": 512}
    (run_dir / "summary.json").write_text(json.dumps(summary))
    assert launched.train(resume=run_dir, gamma=0.9, total_steps=512) == summary
    assert "from here on" not in capsys.readouterr().err, "it has ended"


def test_one_checkpoint_can_be_named(run_dir):
    older = add(run_dir, 512)
    add(run_dir, 1024)
    assert prepare(run_dir, {}).step == 1024
    found = prepare(older, {})
    assert (found.step, found.exact, found.run_dir) == (512, older, run_dir)


def test_a_checkpoint_whose_replacement_was_cut_short_can_be_named(run_dir):
    named = add(run_dir, 512)
    named.rename(named.with_name(".replaced_step_512"))
    found = prepare(named, {})
    assert (found.step, found.exact, found.run_dir) == (512, named, run_dir), "the start gives it back its name"


def test_without_checkpoint_the_run_restarts_with_a_note(run_dir):
    (run_dir / "summary.json").write_text('{"world_size": 3}')
    found = prepare(run_dir, {})
    assert (found.step, found.num_shards, found.world_size) == (None, None, 3)
    assert found.notes == ["there is no checkpoint yet: the run begins from its start"]


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        ("policy.safetensors", "", r"holds policy.safetensors: .*with --init-from .*/policy.safetensors$"),
        ("summary.json", '{"status": "solved"}', r"has solved: .* or start a new run$"),
        ("checkpoints/LATEST", "step_512\n", "holds checkpoints/LATEST"),
        ("metrics.jsonl", '{"step": 200000}\n', "was at step 200000, with checkpoint_every=100000"),
    ],
)
def test_a_run_whose_checkpoints_are_gone_is_not_begun_again(run_dir, name, content, words):
    """Removed to save space, or left out of a copy: all that the run has would be overwritten."""
    (run_dir / name).parent.mkdir(exist_ok=True)
    (run_dir / name).write_text(content)
    with pytest.raises(ConfigError, match=rf"no checkpoint to continue from, and {words}"):
        prepare(run_dir, {"seed": 7})
    assert (run_dir / name).read_text() == content


@pytest.mark.parametrize(
    ("files", "every"),
    [
        ({"metrics.jsonl": '{"step": 150000}\n'}, 100_000),
        ({"metrics.jsonl": '{"step": 900000}\n', "policy_best.safetensors": ""}, None),
        ({"metrics.jsonl": '{"step": 900000}\n', "checkpoints/.step_102400/x": ""}, 100_000),
        ({"summary.json": '{"status": "failed", "world_size": 1}'}, 100_000),
    ],
)
def test_a_run_that_may_have_ended_before_its_first_checkpoint_begins_again(tmp_path, files, every):
    RunDir.create(tmp_path / "run", override(RUN, {"checkpoint_every": every}))
    for name, content in files.items():
        (tmp_path / "run" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "run" / name).write_text(content)
    assert prepare(tmp_path / "run", {}).notes == ["there is no checkpoint yet: the run begins from its start"]


def test_without_checkpoint_the_policy_to_start_from_counts_again(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    policy, run_dir = tmp_path / "policy.safetensors", tmp_path / "run"
    policy.touch()
    made = RunDir.create(run_dir, RUN, init_from=Path("policy.safetensors"))
    monkeypatch.chdir("/")
    found = prepare(run_dir, {})
    assert found.init_from == policy
    assert found.notes == [f"there is no checkpoint yet: the run begins from its start, with the policy {policy}"]
    policy.unlink()
    with pytest.raises(ConfigError, match=rf"no checkpoint yet, and init_from={policy}.* does not exist; put it back"):
        prepare(run_dir, {})
    add(run_dir, 512)
    assert prepare(run_dir, {}).init_from is None
    shutil.rmtree(run_dir / "checkpoints")
    made.discard()
    assert not run_dir.exists()


@pytest.mark.parametrize(
    "name",
    [
        *("task=Acrobot-v1", "ml_framework=jax", "seed=1", "num_envs=16", "num_shards=2", "num_shards=null"),
        *("hidden=[8]", "max_episode_steps=9", "normalize_observation=true", "env.kwargs.x=1"),
    ],
)
def test_what_the_state_was_made_with_cannot_change(run_dir, name):
    add(run_dir, 512)
    key, value = name.split("=")
    with pytest.raises(
        ConfigError, match=rf"{key.rpartition('.')[2]}=.* differs from the .* cannot change within a run"
    ):
        prepare(run_dir, {key: value})


@pytest.fixture
def replay_dir(tmp_path):
    path = tmp_path / "run"
    RunDir.create(path, REPLAY)
    add(path, 512, run=to_dict(REPLAY))
    return path


@pytest.mark.parametrize(
    "name",
    [
        *("capacity=50000", "n_step=3", "prioritized=true", "learning_starts=5"),
        *("dueling=true", "value_distribution=quantile", "v_max=3", "noisy=true"),
    ],
)
def test_a_replay_and_the_meaning_of_outputs_cannot_change(replay_dir, name):
    key, value = name.split("=")
    with pytest.raises(ConfigError, match=rf"algorithm.{key}=.* cannot change within a run") as caught:
        prepare(replay_dir, {key: value})
    assert ("checkpoint_replay=false" in str(caught.value)) == (
        key in ("capacity", "n_step", "prioritized", "learning_starts")
    )


def test_a_replay_that_is_left_out_may_have_another_form(replay_dir):
    found = prepare(replay_dir, {"capacity": "50000", "n_step": "3", "checkpoint_replay": "false"})
    assert (found.run.algorithm.capacity, found.run.algorithm.n_step) == (50_000, 3)
    assert [note.split()[0] for note in found.notes] == [
        "algorithm.capacity", "algorithm.checkpoint_replay", "algorithm.n_step", "the",
    ]  # fmt: skip


def test_a_run_that_fills_a_new_replay_is_told_when_it_learns_again(tmp_path, replay_dir):
    changed = {"checkpoint_replay": "false", "learning_starts": "1000"}
    *_, note = prepare(replay_dir, changed).notes
    assert note == "the replay buffer begins empty (checkpoint_replay=false), and learning continues at step 1512"
    *_, note = prepare(replay_dir, changed | {"total_steps": "1500"}).notes
    assert note.endswith("at step 1512, which is beyond total_steps=1500: nothing more will be learned")
    saved = override(REPLAY, {"checkpoint_replay": False})
    RunDir.create(tmp_path / "left out", saved)
    add(tmp_path / "left out", 512, run=to_dict(saved))
    *_, note = prepare(tmp_path / "left out", {"checkpoint_replay": "true"}).notes
    assert note.startswith("the replay buffer begins empty")


def test_a_replay_may_be_stored_elsewhere_without_effect(replay_dir):
    notes = prepare(replay_dir, {"replay_device": "cpu", "replay_path": "/tmp"}).notes
    assert notes == [
        "algorithm.replay_device is cpu from here on, was auto",
        "algorithm.replay_path is /tmp from here on, was null",
    ]


def test_another_algorithm_cannot_resume(replay_dir):
    with pytest.raises(ConfigError, match=r"^algo=ppo differs from the dqn that the checkpoint was made with"):
        prepare(replay_dir, {"algo": "ppo"})


def test_settings_that_are_new_since_the_checkpoint_have_their_defaults(run_dir):
    older = to_dict(RUN)
    del older["network"]["encoder"], older["check_every"]
    add(run_dir, 512, run=older)
    assert prepare(run_dir, {}).notes == []
    with pytest.raises(ConfigError, match=r"network.encoder=small differs from the auto"):
        prepare(run_dir, {"encoder": "small"})


def test_what_may_change_is_noted_with_its_effect(run_dir):
    add(run_dir, 512)
    found = prepare(run_dir, {"total_steps": "1000000", "learning_rate": "0.001"})
    assert found.run != load(run_dir / "run.yaml")
    assert (found.run.total_steps, found.run.algorithm.learning_rate) == (1_000_000, 0.001)
    assert found.notes == [
        "algorithm.learning_rate is 0.001 from here on, was 0.00025; "
        "the result will differ from that of a run without the change",
        "total_steps is 1000000 from here on, was 500000; "
        "the learning rates follow the new end, unlike those of a run that had it from the start",
    ]


@pytest.mark.parametrize(
    ("change", "effect"),
    [
        ({"device": "cpu"}, "; the result may differ from that of a run without the change"),
        ({"non_finite": "skip"}, "; the result may differ from that of a run without the change"),
        ({"evaluate_greedy": False}, "; evaluations differ, and what is best or solved by them"),
        ({"evaluate_episodes": 3}, ""),
        ({"gamma": 0.9}, "; the result will differ from that of a run without the change"),
    ],
)
def test_no_effect_is_claimed_that_a_change_need_not_have(change, effect):
    (name, value) = next(iter(change.items()))
    (note,) = compare(to_dict(RUN), to_dict(override(RUN, change)))
    before = note.partition(", was ")[2].partition(";")[0]
    assert note.endswith(f"{name} is {as_text(value)} from here on, was {before}{effect}")


@pytest.mark.parametrize("change", ["num_critics=3", "layer_norm=true", "alpha=0.2", "policy_average=0.1"])
def test_what_decides_the_learned_parameters_may_not_change(run_dir, change):
    name, value = change.split("=")
    sac = Run(task="Pendulum-v1", algo="sac")
    with pytest.raises(ConfigError, match=rf"algorithm.{name}=.* cannot change within a run"):
        compare(to_dict(sac), to_dict(override(sac, {name: value})))


def test_an_average_may_be_taken_over_another_part():
    td3 = override(Run(task="Pendulum-v1", algo="td3"), {"policy_average": "0.1"})
    (note,) = compare(to_dict(td3), to_dict(override(td3, {"policy_average": "0.2"})))
    assert "policy_average is 0.2 from here on, was 0.1" in note


def test_the_optimizer_of_logged_data_may_not_change():
    run = OfflineRun(data="data")
    with pytest.raises(ConfigError, match=r"algorithm.optimizer=sgd.* cannot change within a run"):
        compare(to_dict(run), to_dict(override(run, {"optimizer": "sgd"})))


def test_an_adaptive_rate_goes_on_and_the_note_says_so(run_dir):
    adaptive = to_dict(override(RUN, {"learning_rate_schedule": "adaptive"}))
    add(run_dir, 512, run=adaptive)
    found = prepare(run_dir, {"learning_rate_schedule": "adaptive", "learning_rate": "0.001"})
    assert found.notes == [
        "algorithm.learning_rate is 0.001 from here on, was 0.00025, without effect: "
        "the adaptive schedule continues from the rate that it has reached"
    ]


def test_a_replay_that_was_not_saved_is_none_to_keep(run_dir):
    saved = override(REPLAY, {"checkpoint_replay": False})
    add(run_dir, 512, run=to_dict(saved))
    now = override(REPLAY, {"checkpoint_replay": True, "capacity": 50_000})
    assert [note.partition(" ")[0] for note in load_resumption(run_dir, now).notes] == [
        "algorithm.capacity",
        "algorithm.checkpoint_replay",
        "the",
    ]


def test_the_temperature_goes_on_from_where_it_is():
    run = Run(task="Pendulum-v1", algo="sac")
    assert compare(to_dict(run), to_dict(override(run, {"initial_alpha": 0.1}))) == [
        "algorithm.initial_alpha is 0.1 from here on, was 1.0, without effect: "
        "the temperature continues from the value that it has reached"
    ]


def test_a_setting_without_effect_changes_no_result():
    run = Run(task="Pendulum-v1", algo="sac")
    now = override(run, {"importance_exponent": 0.5})
    assert compare(to_dict(run), to_dict(now)) == ["algorithm.importance_exponent is 0.5 from here on, was 0.4"]
    run, now = (override(each, {"prioritized": True}) for each in (run, now))
    (note,) = compare(to_dict(run), to_dict(now))
    assert note.endswith("the result will differ from that of a run without the change")


def test_the_deviations_of_noisy_layers_go_on_from_where_they_are():
    run = override(Run(task="CartPole-v1"), {"algo": "dqn", "noisy": True})
    (note,) = compare(to_dict(run), to_dict(override(run, {"noisy_std": 0.1})))
    assert note.endswith("was 0.5, without effect: the deviations continue from the values that they have reached")


@pytest.mark.parametrize("changes", [{"replay_path": "/x"}, {"prioritized": True, "checkpoint_replay": False}])
@pytest.mark.parametrize("placement", ["auto", "device"])
def test_settings_that_move_environments_to_the_host_are_refused_by_name(run_dir, changes, placement):
    run = Run(task="brax/fast", num_shards=4, algo="sac", ml_framework="jax")
    add(run_dir, 512, run=to_dict(run))
    name, value = next(iter(changes.items()))
    with pytest.raises(
        ConfigError, match=f"{name}={as_text(value)} is for .* from environments on the device.* leave {name} out"
    ):
        load_resumption(run_dir, override(run, {**changes, "env.placement": placement}))
    assert load_resumption(run_dir, override(run, {"env.placement": placement})).step == 512


def test_whole_rollouts_decide_whether_something_is_learned(run_dir):
    saved = override(REPLAY, {"checkpoint_replay": False, "learning_starts": 100})
    add(run_dir, 512, run=to_dict(saved))
    for total, nothing in ((608, True), (609, False)):  # rollouts of 8 environments: the latter ends at 616
        note = load_resumption(run_dir, override(saved, {"total_steps": total})).notes[-1]
        assert "learning continues at step 612" in note and note.endswith("nothing more will be learned") == nothing


def test_the_placement_of_environments_may_be_named(run_dir):
    """`auto` means another placement on another machine, and the way out of the error there is to name the first."""
    add(run_dir, 512)
    found = prepare(run_dir, {"env.placement": "host"})
    assert found.notes == ["env.placement is host from here on, was auto"]


def test_a_hand_edited_config_is_compared_too(run_dir):
    add(run_dir, 512)
    text = (run_dir / "run.yaml").read_text()
    (run_dir / "run.yaml").write_text(text.replace("seed: 0", "seed: 5"))
    with pytest.raises(ConfigError, match="seed=5 differs from the 0"):
        prepare(run_dir, {})


def test_a_damaged_manifest_is_left_out_and_the_last_one_refuses(run_dir):
    first, second = add(run_dir, 512), add(run_dir, 1024)
    (second / "manifest.json").write_text("half")
    found = prepare(run_dir, {})
    assert found.step == 512
    assert "checkpoint step_1024 is damaged and skipped" in found.notes[0]
    with pytest.raises(ConfigError, match="not the manifest"):
        prepare(second, {})
    (first / "manifest.json").unlink()
    with pytest.raises(ConfigError, match=r"manifest\.json cannot be read"):
        prepare(run_dir, {})


def test_another_format_is_refused(run_dir):
    add(run_dir, 512, format=99)
    with pytest.raises(ConfigError, match="has format 99"):
        prepare(run_dir, {})


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("nowhere", "does not exist; give runs/NAME or"),
        ("nowhere/checkpoints/step_9", "does not exist; give runs/NAME or"),
        ("run/checkpoints/step_9", "does not exist; checkpoints of this run: step_512"),
        ("run/logs", r"is neither a run directory \(it has no run.yaml\)"),
    ],
)
def test_what_is_no_run_is_refused(tmp_path, run_dir, name, words):
    (run_dir / "logs").mkdir()
    add(run_dir, 512)
    with pytest.raises(ConfigError, match=f"^--resume {tmp_path / name} {words}"):
        prepare(tmp_path / name, {})
