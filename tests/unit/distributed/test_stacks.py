"""Python stacks of another process."""

import os
import signal
import subprocess
import sys
import time

import pytest

from lockstep.distributed import stacks

CODE = """
import ctypes, os, signal, sys, threading, time
from pathlib import Path
from lockstep.distributed import stacks
calls = []
signal.signal(signal.SIGUSR1, lambda *_: calls.append(1))
logs = Path(sys.argv[1])

def inner(way):
    print("ready", flush=True)
    ctypes.PyDLL(None).sleep(30) if way == "c" else time.sleep(30)

def outer(depth, way):
    outer(depth - 1, way) if depth else inner(way)

def count_down(depth):
    return depth and count_down(depth - 1)

def use_and_free_frames():
    while True:
        count_down(300)

for target in {threads}:
    threading.Thread(target=target, daemon=True).start()
with stacks.dumps_on_request(logs, 2):
    os.kill(os.getpid(), signal.SIGUSR1)
    assert calls == [1], "the user's own signal was taken"
    {body}
print("ready", flush=True)
{after}
"""


@pytest.fixture
def process(tmp_path):
    started = []

    def start(body, after="pass", threads="[]"):
        code = CODE.format(body=body, after=after, threads=threads)
        command = [sys.executable, "-c", code, str(tmp_path / "logs")]
        started.append(subprocess.Popen(command, stdout=subprocess.PIPE, text=True))
        assert started[-1].stdout.readline() == "ready\n"
        time.sleep(0.1)  # to enter the sleep
        return started[-1]

    yield start
    for one in started:
        one.kill()
        one.communicate()


@pytest.mark.parametrize("way", ["python", "c"])
def test_stacks_are_dumped_also_while_c_code_holds_the_gil(process, tmp_path, way):
    child = process(f"outer(2, '{way}')")
    first, second, *_ = stacks.request(tmp_path / "logs", 2, child.pid).splitlines()
    assert first.endswith("in inner")
    assert second.endswith("in outer")


@pytest.mark.real_start  # a forked process has the calls of the fork server too
def test_the_innermost_calls_of_a_deep_stack_are_returned(process, tmp_path):
    child = process("outer(50, 'python')")
    calls = stacks.request(tmp_path / "logs", 2, child.pid).splitlines()
    assert len(calls) == 13
    assert calls[0].endswith("in inner")
    assert calls[-1] == "... and 41 more"


def test_a_process_survives_a_dump_while_its_other_threads_run(process, tmp_path):
    child = process("outer(2, 'python')", threads="[use_and_free_frames]")
    header = stacks.stack_file(tmp_path / "logs", 2).read_text()
    thread = int(header.split()[-1])
    for _ in range(200):  # a dump of all threads crashed after about ten
        stacks._signal_thread(child.pid, thread)
        time.sleep(0.002)
    assert stacks.request(tmp_path / "logs", 2, child.pid).splitlines()[0].endswith("in inner")
    assert child.poll() is None


def test_the_stack_is_that_of_the_thread_that_trains(process, tmp_path):
    body = """
    def train():
        with stacks.dumps_on_request(logs, 3):
            outer(2, 'python')
    threading.Thread(target=train, daemon=True).start()
    time.sleep(30)"""
    child = process(body)
    calls = stacks.request(tmp_path / "logs", 3, child.pid).splitlines()
    assert calls[0].endswith("in inner")
    assert "in train" in " ".join(calls)


def test_a_second_request_gets_its_own_dump(process, tmp_path):
    child = process("outer(0, 'python')")
    assert stacks.request(tmp_path / "logs", 2, child.pid) == stacks.request(tmp_path / "logs", 2, child.pid) != ""


def test_a_stopped_process_gives_no_stack_and_continues_unharmed(process, tmp_path):
    child = process("outer(0, 'python')")
    child.send_signal(signal.SIGSTOP)
    time.sleep(0.1)
    assert stacks.request(tmp_path / "logs", 2, child.pid) == ""
    child.send_signal(signal.SIGCONT)
    time.sleep(0.3)
    assert child.poll() is None


def test_a_process_without_the_handler_is_not_signalled(process, tmp_path):
    child = process("pass", after="time.sleep(30)")  # it answers no longer
    logs = tmp_path / "logs"
    assert not list(logs.iterdir()), "a file without a stack was left"
    assert stacks.request(logs, 2, child.pid) == ""
    os.kill(child.pid, stacks.SIGNAL)  # a question that comes too late
    time.sleep(0.2)
    assert child.poll() is None


def test_the_header_of_an_earlier_process_does_not_count(tmp_path):
    child = subprocess.Popen(["sleep", "30"])  # unhandled, the signal would end it
    try:
        stacks.stack_file(tmp_path, 2).write_text(f"process {os.getpid()}, rank 2, thread 1\n")
        assert stacks.request(tmp_path, 2, child.pid) == ""
        time.sleep(0.2)
        assert child.poll() is None
    finally:
        child.kill()
        child.wait()


def test_requested_dumps_stay_in_the_file(process, tmp_path):
    child = process("outer(0, 'c')", after="time.sleep(30)")  # the question ends the sleep in C
    assert stacks.request(tmp_path / "logs", 2, child.pid)
    assert child.stdout.readline() == "ready\n"
    assert "in inner" in stacks.stack_file(tmp_path / "logs", 2).read_text()
