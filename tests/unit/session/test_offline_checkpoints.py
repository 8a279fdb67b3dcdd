"""The policy of a checkpoint of a run on logged data: whole before the run has ended, as after a kill."""

import json
import shutil
from dataclasses import replace

import numpy as np
import pytest

import made_data
from lockstep.algorithms.offline import OfflineDQNConfig
from lockstep.cli.evaluate import evaluate_run
from lockstep.cli.main import main
from lockstep.cli.request import requested_ranks
from lockstep.errors import ConfigError
from lockstep.record import checkpoint
from lockstep.run import OfflineRun, ScoreNetworkConfig, load
from lockstep.session.checkpoints import Checkpoints
from lockstep.session.evaluation import Evaluation
from lockstep.session.policy_file import evaluation_in, read
from lockstep.session.resume import prepare
from lockstep.session.start_policy import check_start_policy
from lockstep.session.which_policy import find_policy
from lockstep.system.exit_signals import exit_on_signal
from lockstep.train import train

ROWS = 200
RETURNS = {ROWS: 20.0, 2 * ROWS: 10.0, 3 * ROWS: 30.0}
"""Of every episode, by the step of the evaluation: the first checkpoint is of the best policy but one."""


@pytest.fixture(scope="module")
def ended(tmp_path_factory):
    """A run of three epochs with a simulator, an evaluation and a checkpoint after each."""
    folder = tmp_path_factory.mktemp("logged")
    columns = made_data.discrete_columns(ROWS, state_size=4, actions=2)
    data = made_data.write(folder / "data", columns, actions=("0", "1"))
    run = OfflineRun(
        data=str(data), task="CartPole-v1", epochs=3, network=ScoreNetworkConfig(hidden=(8,)),
        algorithm=OfflineDQNConfig(batch_size=50), evaluate_every=ROWS, evaluate_episodes=4, checkpoint_every=ROWS,
        num_checkpoints=9, stop_when_solved=False,
    )  # fmt: skip
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Evaluation, "play", returned(Evaluation.play))
        patch.setattr(Checkpoints, "take_if_due", finished(Checkpoints.take_if_due))
        train(run, run_dir=folder / "run")
    return folder / "run"


def returned(play):
    """`Evaluation.play` with the returns of `RETURNS`."""

    def played(self, index, *, heartbeat):
        episodes = play(self, index, heartbeat=heartbeat)
        return replace(episodes, returns=[RETURNS[index]] * len(episodes.returns))

    return played


def finished(take):
    """`Checkpoints.take_if_due` that waits for the disk: on a slow one the next checkpoint would be left out."""

    def taken(self, *args, **more):
        take(self, *args, **more)
        self._writer.finish(lambda: None)

    return taken


@pytest.fixture
def killed(ended, tmp_path):
    """The same run as a kill left it."""
    path = tmp_path / "run"
    shutil.copytree(ended, path)
    (path / "policy.safetensors").unlink()
    (path / "summary.json").unlink()
    return path


def forget_the_description(path):
    """Make of a checkpoint one of an older version."""
    state = {name: value for name, value in read_learner(path).items() if name != "policy"}
    manifest = checkpoint.read_manifest(path)
    manifest["files"][checkpoint.LEARNER] = checkpoint.write_state(path / checkpoint.LEARNER, state)
    (path / checkpoint.MANIFEST).write_text(json.dumps(manifest))


def read_learner(path):
    return checkpoint.read_state(path / checkpoint.LEARNER, checkpoint.read_manifest(path)["files"][checkpoint.LEARNER])


def equal(one, other):
    assert one.keys() == other.keys()
    return all(np.array_equal(one[name], other[name]) for name in one)


def test_it_is_read_before_the_run_has_ended(ended, killed):
    (killed / "policy_best.safetensors").unlink()
    found = find_policy(killed)
    assert found.description == f"the checkpoint of step {3 * ROWS}, the newest of a run that has not ended"
    (metadata, arrays), (told, final) = read(found.path), read(ended / "policy.safetensors")
    assert metadata == told
    assert equal(arrays, final)
    first = read(killed / "checkpoints" / f"step_{ROWS}")
    assert first[0] == told and not equal(first[1], final)


def test_it_is_exported_evaluated_recorded_and_started_from(killed, tmp_path):
    (killed / "policy_best.safetensors").unlink()
    named = killed / "checkpoints" / f"step_{ROWS}"
    assert main(["export", str(killed), "--format", "torch", "--out", str(tmp_path / "newest.pt2")]) == 0
    assert main(["offline", "record", str(named), "--out", str(tmp_path / "log.jsonl"), "--steps", "20"]) == 0
    assert len((tmp_path / "log.jsonl").read_text().splitlines()) == 20
    assert evaluate_run(killed, episodes=2)["policy"].startswith(f"the checkpoint of step {3 * ROWS}")
    check_start_policy(named, load(killed / "run.yaml"))


def test_the_newest_is_judged_by_a_log_before_the_run_has_ended(ended, killed, capsys):
    judged = {}
    for path in (ended, killed):
        assert main(["offline", "evaluate", str(path), "--json"]) == 0
        said = capsys.readouterr()
        judged[path] = json.loads(said.out)
        newest = f"the estimates are of the checkpoint of step {3 * ROWS}, the newest of a run that has not ended"
        assert (newest in said.err) == (path == killed)
        assert json.loads((path / "estimates.json").read_text()) == judged[path]
        assert judged[path]["step"] == 3 * ROWS, "as training writes it"
    assert judged[killed] == judged[ended]


@pytest.mark.parametrize("ranks", ["1", "2"])
def test_one_that_is_removed_once_it_was_read_is_judged(killed, monkeypatch, capsys, ranks):
    """Ranks take seconds to start, in which a fast run replaces all of its checkpoints."""

    def removed_before(*given):
        shutil.rmtree(killed / "checkpoints")
        return requested_ranks(*given)

    monkeypatch.setattr("lockstep.cli.request.requested_ranks", removed_before)
    assert main(["offline", "evaluate", str(killed), "--ranks", ranks]) == 0
    assert f"the checkpoint of step {3 * ROWS}" in capsys.readouterr().err


def test_one_that_is_removed_once_it_was_read_is_recorded(killed, tmp_path, monkeypatch, capsys):
    def removed_before():
        shutil.rmtree(killed / "checkpoints")
        return exit_on_signal()

    monkeypatch.setattr("lockstep.system.exit_signals.exit_on_signal", removed_before)
    assert main(["offline", "record", str(killed), "--out", str(tmp_path / "log.jsonl"), "--steps", "20"]) == 0
    assert f"the log is of the checkpoint of step {3 * ROWS}" in capsys.readouterr().err


def test_a_chosen_one_is_judged_by_a_log_and_its_estimates_are_printed_alone(ended, capsys):
    place = ended / "checkpoints" / f"step_{ROWS}"
    before = (ended / "estimates.json").read_text()
    judged = []
    for words in ([str(ended), "--checkpoint", str(ROWS)], [str(place)]):
        assert main(["offline", "evaluate", *words, "--json"]) == 0
        said = capsys.readouterr()
        assert f"the estimates are of the checkpoint of step {ROWS}" in said.err
        judged.append(json.loads(said.out))
    assert judged[0] == judged[1] != json.loads(before)
    for words in ([str(ended), "--best"], [str(ended / "policy_best.safetensors")]):
        assert main(["offline", "evaluate", *words, "--json"]) == 0
        judged.append(json.loads(capsys.readouterr().out))
    assert judged[2] == judged[3] != judged[0]
    assert (judged[0]["step"], judged[2]["step"]) == (ROWS, 3 * ROWS)
    assert (ended / "estimates.json").read_text() == before


def test_one_of_an_older_version_is_described_by_a_policy_file_of_its_run(ended, killed):
    path = killed / "checkpoints" / f"step_{ROWS}"
    before = read(path)
    forget_the_description(path)
    assert evaluation_in(killed / "policy_best.safetensors") is not None
    metadata, arrays = read(path)
    assert metadata == before[0] and equal(arrays, before[1])
    (killed / "policy_best.safetensors").unlink()
    with pytest.raises(ConfigError, match=r"of an older version and does not describe its policy.* --resume "):
        read(path)
    shutil.copy(ended / "policy.safetensors", killed)
    assert read(path)[0] == before[0]


@pytest.mark.parametrize("described", [True, False])
def test_the_best_policy_before_a_resumed_checkpoint_takes_the_place_of_a_later_one(
    killed, monkeypatch, capsys, described
):
    monkeypatch.setattr(Evaluation, "play", returned(Evaluation.play))
    first = killed / "checkpoints" / f"step_{ROWS}"
    arrays = read(first)[1]
    if not described:
        forget_the_description(first)
    resumed_before_the_best(killed)
    assert f"policy_best.safetensors is that of step {ROWS} again" in capsys.readouterr().out
    metadata, best = read(killed / "policy_best.safetensors")
    assert equal(best, arrays)
    assert metadata.pop("evaluation") == {"step": ROWS, "return_mean": RETURNS[ROWS]}
    assert metadata == read(killed / "policy.safetensors")[0]


def test_a_damaged_checkpoint_of_the_best_policy_is_named(killed, monkeypatch, capsys):
    monkeypatch.setattr(Evaluation, "play", returned(Evaluation.play))
    learner = killed / "checkpoints" / f"step_{ROWS}" / checkpoint.LEARNER
    learner.write_bytes(learner.read_bytes()[:-8])
    resumed_before_the_best(killed)
    said = capsys.readouterr().out
    assert f"warning: policy_best.safetensors is removed: step {3 * ROWS} is no longer part of this run" in said
    assert f"that of step {ROWS} cannot take its place: " in said and "its manifest says" in said


def resumed_before_the_best(path):
    """Resume from the second checkpoint; the run ends at the third, whose evaluation is then worse."""
    RETURNS[3 * ROWS] = 5.0
    try:
        source = path / "checkpoints" / f"step_{2 * ROWS}"
        train(prepare(source, {}).run, resume=source)
    finally:
        RETURNS[3 * ROWS] = 30.0
