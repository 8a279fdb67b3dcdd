"""The delay line of benchmarks/network.py: frames take as long as it says, and nothing of it stays."""

import subprocess
import sys
import time
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))
from delay_line import DelayLine, missing

pytestmark = pytest.mark.skipif(missing() is not None, reason=f"a delay line needs {missing()}")

_TAKE = """
import socket, sys, time
s, _ = socket.create_server((sys.argv[1], 7778)).accept()
got, start = 0, time.perf_counter()
while part := s.recv(1 << 16):
    got += len(part)
print(got, time.perf_counter() - start)
"""
_GIVE = """
import socket, sys, time
for _ in range(100):
    try:
        s = socket.create_connection((sys.argv[1], 7778), timeout=10)
        break
    except ConnectionRefusedError:
        time.sleep(0.1)
s.sendall(bytes(int(sys.argv[2])))
"""


def test_a_round_trip_takes_two_delays():
    with DelayLine(2, 0.0) as line:
        base_s = line.round_trip_s(50)
    with DelayLine(2, 10e-3) as line:
        far_s = line.round_trip_s(50)
    assert far_s >= 20e-3
    assert far_s - base_s < 60e-3  # on a busy machine; 20.1 ms on an idle one


def test_a_rate_is_kept_between_any_two_hosts():
    """0.5 MB at 2.5 MB/s take 0.2 s at least; the second and third host are as far apart as the first two."""
    with DelayLine(3, 0.0, rate=2.5e6) as line:
        there = line.hosts[2]
        with (
            there.start([sys.executable, "-c", _TAKE, there.address], {}, stdout=subprocess.PIPE) as take,
            line.hosts[1].start([sys.executable, "-c", _GIVE, there.address, "500000"], {}) as give,
        ):
            try:
                out, _ = take.communicate(timeout=60)
            finally:
                take.kill()
                give.kill()
    got, seconds = out.split()
    assert int(got) == 500_000
    assert float(seconds) >= 0.19


def test_nothing_stays():
    with pytest.raises(RuntimeError, match="in the middle"), DelayLine(2, 1e-3) as line:
        names = [host.namespace for host in line.hosts]
        assert all(name in _namespaces() for name in names)
        raise RuntimeError("in the middle")
    until = time.monotonic() + 10
    while any(name in _namespaces() for name in names) and time.monotonic() < until:
        time.sleep(0.1)
    assert not any(name in _namespaces() for name in names)


def test_what_a_killed_one_left_goes_with_the_next():
    ended = subprocess.Popen(["true"])
    ended.wait()
    left = f"lockstep-line-{ended.pid}-0"
    subprocess.run(["ip", "netns", "add", left], check=True)
    with DelayLine(2, 0.0):
        assert left not in _namespaces()


def _namespaces() -> str:
    return subprocess.run(["ip", "netns", "list"], check=True, capture_output=True, text=True).stdout


@pytest.mark.slow
def test_the_benchmark_and_what_it_predicts(tmp_path):
    """Its quick mode from end to end: every kind of run, the table, points that a prediction can be made from."""
    script, points = Path(__file__).parents[2] / "benchmarks" / "network.py", tmp_path / "points.json"
    words = [sys.executable, str(script), "--quick", "--points", str(points)]
    measured = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True, timeout=1500)
    assert measured.returncode == 0, measured.stderr[-3000:]
    rows = [line.split(" | ") for line in measured.stdout.splitlines() if line.startswith(("| 2 x 1", "| 2 x 2"))]
    assert [row[0] for row in rows] == ["| 2 x 1", "| 2 x 1", "| 2 x 2", "| 2 x 2"]
    assert {row[2] for row in rows} == {"17.0"}  # messages of an update: 16 gradient steps, and one before
    words = [sys.executable, "-m", "lockstep.cli", "report", "--predict", str(points), "--ranks-per-host", "2"]
    told = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True, timeout=120)
    assert told.returncode == 0, told.stderr
    assert "held-out error: median" in told.stdout
