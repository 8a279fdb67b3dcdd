"""Ranks prove that they agree: of everything that an update changes, when it is due, and before anything is saved."""

import json

import pytest
from spoiled import OFF_AT, spoil_all

from lockstep import spawn
from lockstep.launch.rank_environment import free_port

STEPS = 128  # of an update
FLAT = ("flat", "_backward._flat", "_gradient_step._flat")
"""Three paths to the same `FlatParameters`."""
OF_A_STEP = {f"{flat}.{name}" for flat in FLAT for name in ("gradient", "rows")} | {"optimizer._gradient"}
"""Made anew in every gradient step: what differs there has gone into the parameters."""
GRADIENT_VIEWS = tuple(f"{flat}._views." for flat in FLAT)
"""Views of `flat.gradient`, and of each parameter, which `flat.params` holds."""
OF_A_SHARD = {"normalizers.discounted.0.value", "_builder._normalizers.discounted.0.value"}
"""One array, by both of its paths: different on every rank, as it has to be."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("proof")


@pytest.fixture(scope="module")
def told(folder):
    return spawn(spoil_all, 2, ([free_port() for _ in range(4)], str(folder)), timeout_s=120)


def test_whatever_an_update_changes_is_proved_equal(told):
    for rank in told:
        found = rank["compared"]
        known = {"optimizer.moment", "optimizer.square", "optimizer.steps", "learning_rate", "metrics.table"}
        known |= {
            f"normalizers.{of}.{name}" for of in ("observations", "returns") for name in ("_count", "mean", "variance")
        }
        known |= {"flat.params", "env_steps", "updates", "episodes", *OF_A_STEP, *OF_A_SHARD}
        assert known <= found.keys(), "the update changed less than it should; the test proves less"
        missed = {path for path, said in found.items() if not said.startswith("ranks 0 and 1 hold different ")}
        orders = {
            path for path in missed if path.startswith("_orders._drawn_ahead.0.")
        }  # a shard's, of its next update
        missed = {path for path in missed if not path.startswith(GRADIENT_VIEWS)}
        assert orders and missed - orders == OF_A_STEP | OF_A_SHARD, f"not compared: {sorted(missed - orders)}"


def test_whatever_an_update_from_a_replay_changes_is_proved_equal(told):
    for rank in told:
        found = rank["compared with replay"]
        known = {"optimizer.moment", "optimizer.square", "optimizer.steps", "learning_rate", "metrics.table"}
        known |= {"flat.params", "_target_params", "counters", "env_steps", "updates", "episodes"}
        assert known <= found.keys(), "the update changed less than it should; the test proves less"
        missed = {path for path, said in found.items() if not said.startswith("ranks 0 and 1 hold different ")}
        elsewhere = ("replays.buffers.", *GRADIENT_VIEWS)
        left = {path for path in missed - OF_A_STEP if not path.startswith(elsewhere)}
        assert left == set(), "not compared"
        assert any(path.startswith("replays.buffers.") for path in missed), (
            "the replay did not change; the test proves less"
        )


def test_what_goes_off_is_noticed_when_the_next_proof_is_due(told, folder):
    for rank in told:
        assert rank["proved"].startswith("MismatchError: ranks 0 and 1 hold different policy."), "nothing was noticed"
    summary = json.loads((folder / "proved" / "summary.json").read_text())
    assert summary["status"] == "failed"
    assert summary["updates"] == 8, f"noticed after update {summary['updates']}"


def test_what_went_off_is_not_saved(told, folder):
    for rank in told:
        assert rank["saved"].startswith("MismatchError: ranks 0 and 1 hold different policy."), "nothing was noticed"
    saved = [int(path.name[5:]) for path in (folder / "saved" / "checkpoints").glob("step_*")]
    assert max(saved, default=0) < OFF_AT * STEPS, "a weight that went off was saved"
