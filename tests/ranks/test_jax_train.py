"""JAX ranks under any launcher come to the bits of one process, and whatever a rank does ends the run and names it."""

import signal
import time

import pytest
from jax_runs import START_S, Command, by_hand, end_all, jax_alone, new_port, slurm, small, train

from lockstep.cli.chaos.faults import InjectedFault
from quick import others_slow

pytest.importorskip("jax")


@pytest.fixture(autouse=True)
def _ended():
    yield
    end_all()


@pytest.fixture(scope="module")
def alone(tmp_path_factory):
    """The fingerprint of the small run in one process."""
    command = train(tmp_path_factory.mktemp("alone"))
    assert command.wait() == 0, command.said
    assert command.summary["world_size"] == 1
    return command.summary["params_fingerprint"]


def check(command: Command, fingerprint: str) -> None:
    summary = command.summary
    assert (summary["status"], summary["world_size"], summary["ml_framework"]) == ("finished", 2, "jax")
    assert {rank["params_fingerprint"] for rank in summary["ranks"]} == {fingerprint}


def test_our_own_launcher_starts_jax_ranks(tmp_path, alone):
    command = train(tmp_path, "--ranks", "2")
    assert command.wait() == 0, command.said
    check(command, alone)
    assert "parameters equal on both ranks" in command.said


@pytest.mark.real_start
def test_the_launcher_for_jax_starts_our_training_as_it_is_typed(tmp_path, alone):
    words = "lockstep.launch.jax --nnodes=1 --nproc_per_node=2 -m lockstep.train --task=CartPole-v1 --headless"
    words += " --distributed --ml_framework jax --run-dir run"
    command = Command(tmp_path, [*words.split(), *small()])
    assert command.wait() == 0, command.said
    check(command, alone)


@pytest.mark.parametrize("variables", others_slow([slurm, by_hand, jax_alone]))
def test_variables_of_other_launchers_start_jax_ranks(tmp_path, alone, variables):
    port, words = new_port(), ["lockstep.train", "CartPole-v1", "--run-dir", "run", *small()]
    ranks = [Command(tmp_path, words, **variables(rank, port)) for rank in range(2)]
    codes = [rank.wait() for rank in ranks]
    assert codes == [0, 0], "\n---\n".join(rank.said for rank in ranks)
    check(ranks[0], alone)


# What the launcher and the heartbeats do, which is quick to see with ranks of torch (test_faults.py).
ALIKE_IN_TORCH = [
    ("weight", 1, "ranks 0 and 1 hold different policy."),
    ("raise", 1, "rank 1 failed in env.step of shard 2 (environments 8 to 11): RuntimeError"),
    ("exit", 1, "rank 1 exited early with code 0"),
    ("collective", 1, "rank 1 has been in "),
    ("stop", 1, "rank 1 is stopped (SIGSTOP) in env.step"),
]


def struck(tmp_path, fault, *words, **changes):
    """A training of two ranks with a fault in one of them, and how long it went on after that."""
    told = [
        "lockstep.cli.chaos.faults",
        fault.to_json(),
        "train",
        "CartPole-v1",
        "--run-dir",
        "run",
        "--ranks",
        "2",
        *words,
    ]
    command = Command(tmp_path, [*told, *small(**{"total_steps": 10**8, "timeout_s": 4, **changes})])
    note = tmp_path / "run" / "logs" / "injected_fault.json"
    command.until(note.exists)
    since = time.monotonic()
    code = command.wait(START_S)
    return command, code, time.monotonic() - since


@pytest.mark.parametrize(
    ("kind", "code", "said"),
    [
        ("kill", 137, "rank 1 was killed by SIGKILL (signal 9)"),
        *(pytest.param(*case, marks=pytest.mark.slow) for case in ALIKE_IN_TORCH),
    ],
)
def test_a_rank_that_fails_ends_the_run_and_is_named(tmp_path, kind, code, said):
    command, returned, took = struck(tmp_path, InjectedFault(kind, 1, 2))
    assert returned == code, command.said
    assert f"lockstep: {said}" in command.said or (kind == "weight" and said in command.said)
    assert said in command.summary["error"] and command.summary["status"] == "failed"
    assert took < 4 + 20, "neither JAX nor a launcher may wait for who does not come back"
    assert command.gone(), "processes were left behind"


@pytest.mark.slow
def test_rank_0_may_be_killed_where_all_others_meet(tmp_path):
    command, returned, _ = struck(tmp_path, InjectedFault("kill", 0, 2))
    assert returned == 137, command.said
    assert "rank 0 was killed by SIGKILL" in command.summary["error"]
    assert command.gone()


@pytest.mark.slow  # quick: signal_stops_all of the seams, and resumed runs of tests/unit/jax/test_jax_session.py
def test_sigterm_ends_all_at_one_step_and_the_run_goes_on_to_the_same_bits(tmp_path):
    (tmp_path / "other").mkdir()
    long = {"total_steps": 200 * 128, "checkpoint_every": 128 * 400, "log_every": 128 * 20}
    other = train(tmp_path / "other", **long)
    command = train(tmp_path, "--ranks", "2", **long)
    command.until(command.trained)
    command.process.send_signal(signal.SIGTERM)
    assert command.wait() == 143, command.said
    assert command.gone()
    assert command.summary["status"] == "interrupted"
    assert command.summary["env_steps"] < 200 * 128, "too late: nothing to continue"
    again = Command(tmp_path, ["lockstep.cli", "train", "--resume", "run", "--ranks", "1"])
    assert (again.wait(), other.wait()) == (0, 0), again.said + other.said
    assert again.summary["params_fingerprint"] == other.summary["params_fingerprint"]
    assert again.summary["resumed_from"]


@pytest.mark.chaos
@pytest.mark.parametrize("kind", ["kill", "collective", "weight", "nan"])
def test_a_fault_is_recovered_from_and_costs_nothing_but_steps(tmp_path, kind):
    (tmp_path / "other").mkdir()
    long = {"total_steps": 60 * 128, "checkpoint_every": 128 * 8}
    other = train(tmp_path / "other", **long)
    assert other.wait() == 0, other.said
    command, code, _ = struck(tmp_path, InjectedFault(kind, 1, 10, saved=True), "--max-restarts", "1", **long)
    assert code == 0, command.said
    assert "restart 1 of 1 from step" in command.said
    assert command.summary["params_fingerprint"] == other.summary["params_fingerprint"]
    assert command.summary["restarts"] == 1
    assert command.gone()
