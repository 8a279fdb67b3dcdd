"""Forked processes of an environment can be terminated while Lockstep handles signals."""

import signal
import subprocess
import sys

import pytest

_SCRIPT = """
import multiprocessing, os, signal, sys, time
from lockstep.launch.child import exit_process
from lockstep.session.signals import StopSignals
from lockstep.system.exit_signals import cleanup_on_signal, exit_on_signal

context = multiprocessing.get_context("fork")

def cleaned(number):
    print(f"cleanup {number}", flush=True)

def idle():
    while True:
        time.sleep(1)

"""


def _run(body: str, *, code: int = 0) -> list[str]:
    command = [sys.executable, "-c", _SCRIPT + body]
    result = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert result.returncode == code, (result.returncode, result.stdout, result.stderr)
    return result.stdout.split("\n")[:-1]


@pytest.mark.parametrize("handling", ["cleanup_on_signal(cleaned)", "exit_on_signal()", "StopSignals()"])
def test_a_pool_in_the_environment_ends_its_workers_and_nothing_else(handling: str) -> None:
    body = f"""
with {handling}:
    with context.Pool(2) as pool:
        print(pool.map(abs, [-1, 2]), flush=True)
    child = context.Process(target=idle)
    child.start()
    child.terminate()  # at once: it may not have run a line yet
    child.join()
    time.sleep(0.1)
    print(child.exitcode)
"""
    assert _run(body) == ["[1, 2]", str(-signal.SIGTERM)]


def test_a_forked_daemon_that_is_left_does_not_hold_up_the_end() -> None:
    body = """
with StopSignals():
    context.Process(target=idle, daemon=True).start()
exit_process(0)
"""
    assert _run(body) == []


def test_this_process_still_cleans_up_after_a_fork() -> None:
    body = """
with cleanup_on_signal(cleaned):
    child = context.Process(target=abs, args=(1,))
    child.start()
    child.join()
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(60)
"""
    assert _run(body, code=128 + signal.SIGTERM) == [f"cleanup {signal.SIGTERM}"]


def test_forks_keep_a_handler_of_somebody_else() -> None:
    body = """
def own(number, frame):
    sys.exit(7)

with StopSignals():
    signal.signal(signal.SIGTERM, own)
    child = context.Process(target=idle)
    child.start()
    time.sleep(0.3)
    child.terminate()
    child.join()
    print(child.exitcode)
"""
    assert _run(body) == ["7"]


def test_a_terminals_signal_does_not_end_a_helper_that_the_rank_still_needs() -> None:
    body = """
with StopSignals():
    child = context.Process(target=idle)
    child.start()
    time.sleep(0.3)
    for number in (signal.SIGINT, signal.SIGHUP, signal.SIGUSR1):
        os.kill(child.pid, number)
        time.sleep(0.3)
    print(child.is_alive())
    child.kill()
"""
    assert _run(body) == ["True"]
