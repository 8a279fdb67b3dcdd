"""Errors of the compiler behind `torch.compile`: a failure of the run, or the end of a signal that killed it."""

import signal
import subprocess
import sys
import time

import psutil
import pytest
import torch

import lockstep
from lockstep.algorithms.ppo import PPOConfig
from lockstep.cli.main import main
from lockstep.errors import PeerError, RunError
from lockstep.launch.train import exit_code
from lockstep.record.follow import read_json
from lockstep.run import Run
from lockstep.torch.compiler import compiler_failure

pytestmark = pytest.mark.filterwarnings("ignore:.*torch.jit:DeprecationWarning")  # of torch's own compiler
RUN = Run(
    task="CartPole-v1", num_envs=4, total_steps=64, compile=True, algorithm=PPOConfig(num_steps=8, num_minibatches=2)
)
OUTPUT = "C++ compile error\n\nCommand:\ng++ main.cpp\n\nOutput:\nmain.cpp:1:2: error: no such type\nmore"


def failed():
    from torch._dynamo.exc import BackendCompilerFailed

    return BackendCompilerFailed(lambda: None, RuntimeError(OUTPUT), None)


def fails_with(monkeypatch, make, number=None):
    """Let compiled functions fail, after a signal to this process."""

    def fail(*_args):
        if number is not None:
            signal.raise_signal(number)
        raise make()

    monkeypatch.setattr(torch, "compile", lambda _function, **_options: fail)


def test_a_compiler_that_fails_ends_the_run_with_one_line(monkeypatch, tmp_path, capsys):
    fails_with(monkeypatch, failed)
    with pytest.raises(
        RunError, match=r"^compile=true: the compiler failed \(main.cpp:1:2: error: no such type\); leave"
    ):
        lockstep.train(RUN, run_dir=tmp_path / "run")
    summary = read_json(tmp_path / "run" / "summary.json")
    assert (summary["status"], summary["error"].count("\n")) == ("failed", 0)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_that_ends_the_compiler_interrupts_the_run(monkeypatch, tmp_path, capsys, number):
    fails_with(monkeypatch, failed, number)
    found = lockstep.train(RUN, run_dir=tmp_path / "run")
    assert exit_code(found) == 128 + number
    summary = read_json(tmp_path / "run" / "summary.json")
    assert (summary["status"], summary["error"]) == ("interrupted", f"stopped by {number.name}")
    said = capsys.readouterr().out
    assert "interrupted after 0 steps" in said
    assert f"continue with: lockstep train --resume {tmp_path / 'run'}" in said
    assert not (tmp_path / "run" / "logs" / "failure.json").exists()
    monkeypatch.undo()
    assert main(["train", "--resume", str(tmp_path / "run"), "--set", "compile=false"]) == 0


def test_a_rank_that_waited_for_the_one_that_compiled_is_interrupted_too(monkeypatch, tmp_path):
    fails_with(monkeypatch, lambda: PeerError("rank 1 has ended"), signal.SIGTERM)
    monkeypatch.setattr("lockstep.session.session.PEER_DELAY_S", 0.0)
    assert exit_code(lockstep.train(RUN, run_dir=tmp_path / "run")) == 128 + signal.SIGTERM


def test_other_errors_after_a_signal_are_failures(monkeypatch, tmp_path):
    fails_with(monkeypatch, lambda: RunError("no memory"), signal.SIGTERM)
    with pytest.raises(RunError, match="no memory"):
        lockstep.train(RUN, run_dir=tmp_path / "run")
    assert read_json(tmp_path / "run" / "summary.json")["status"] == "failed"


def test_a_second_interrupt_while_compiling_is_no_failure(monkeypatch, tmp_path):
    fails_with(monkeypatch, KeyboardInterrupt, signal.SIGINT)
    with pytest.raises(KeyboardInterrupt):
        lockstep.train(RUN, run_dir=tmp_path / "run")
    assert read_json(tmp_path / "run" / "summary.json")["status"] == "interrupted"


def test_compilers_and_the_kernels_that_wait_for_them_are_ended(monkeypatch):
    from torch._inductor import async_compile
    from torch._inductor.runtime.cache_dir_utils import cache_dir

    monkeypatch.setattr(async_compile, "get_compile_threads", lambda: 2)
    async_compile.AsyncCompile.pool.cache_clear()
    pool = async_compile.AsyncCompile.pool()
    sleep = [sys.executable, "-c", "import time; time.sleep(100)"]
    other = subprocess.Popen(sleep)
    compiling = [pool.submit(subprocess.call, [*sleep, f"{cache_dir()}/{k}.cpp"]) for k in range(4)]
    until = time.monotonic() + 30
    while len(psutil.Process().children()) < 3 and time.monotonic() < until:
        time.sleep(0.01)
    try:
        assert compiler_failure(failed()) is not None
        assert [future.cancelled() for future in compiling] == [False, False, True, True]
        assert [future.result(timeout=30) for future in compiling[:2]] == [-signal.SIGKILL] * 2
        assert other.poll() is None, "a process that compiles nothing was ended"
        assert async_compile.AsyncCompile.pool() is not pool, "a later run could not compile"
    finally:
        other.kill()
        other.wait()
        async_compile.AsyncCompile.pool.cache_clear()
