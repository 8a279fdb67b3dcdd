"""What lies on the disk may be damaged, hostile or left over: it is found out, told, and nothing of it is run."""

import contextlib
import hashlib
import json
import os
import pickle
import re
import shutil
import socket
import subprocess
import sys
import time

import pytest
from chaos_runs import BATCH, Start, folder_for, resume, small, timeless, train

from lockstep.cli.chaos.faults import InjectedFault
from lockstep.launch.rank_environment import free_port
from lockstep.record.checkpoint import find, read_manifest, read_state

pytestmark = pytest.mark.chaos


@pytest.fixture(scope="module")
def interrupted(tmp_path_factory):
    """The folder of a run whose rank 1 was killed when it had checkpoints to go back to."""
    folder = folder_for(tmp_path_factory.mktemp("interrupted"), small())
    start = train(folder, 2, fault=InjectedFault("kill", 1, 16, saved=True))
    assert start.wait() == 137, start.said
    start.check_clean()
    assert len(find(start.run_dir)) > 1, "the tests need a checkpoint before the newest"
    return folder


@pytest.fixture
def folder(interrupted, tmp_path):
    """A copy of it."""
    return shutil.copytree(interrupted, tmp_path / "copy")


def fingerprint(folder):
    return json.loads((folder / "run" / "summary.json").read_text())["params_fingerprint"]


def as_if_nothing_happened(start, undisturbed, *words):
    """The run ended like one that was never disturbed, and said what it found."""
    assert start.wait() == 0, start.said
    start.check_clean()
    for word in words:
        assert re.search(word, start.said), start.said
    assert fingerprint(start.folder) == fingerprint(undisturbed)
    assert timeless(start.folder) == timeless(undisturbed)


@pytest.mark.parametrize("ranks", [2, 4])
@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("learner.safetensors", r"learner\.safetensors holds \d+ bytes, its manifest says \d+"),
        ("shard_3.safetensors", r"shard_3\.safetensors holds \d+ bytes, its manifest says \d+"),
        ("manifest.json", r"manifest\.json is not the manifest of a checkpoint"),
    ],
)
def test_a_truncated_file_is_told_and_the_checkpoint_before_is_used(undisturbed, folder, ranks, name, words):
    newest = find(folder / "run")[0]
    os.truncate(newest / name, (newest / name).stat().st_size // 2)
    as_if_nothing_happened(resume(folder, ranks), undisturbed, f"{newest.name} is damaged and skipped", words)


@pytest.mark.parametrize("name", ["learner.safetensors", "shard_0.safetensors", "manifest.json", "LATEST"])
def test_a_missing_file_is_told_and_the_checkpoint_before_is_used(undisturbed, folder, name):
    checkpoints = folder / "run" / "checkpoints"
    if name == "LATEST":
        (checkpoints / name).unlink()
        as_if_nothing_happened(resume(folder, 2), undisturbed)
    else:
        newest = find(folder / "run")[0]
        (newest / name).unlink()
        as_if_nothing_happened(resume(folder, 2), undisturbed, f"{newest.name} is damaged and skipped", name)


def test_no_whole_checkpoint_at_all_is_refused(folder):
    for path in (folder / "run" / "checkpoints").glob("step_*/learner.safetensors"):
        path.write_bytes(b"")
    start = resume(folder, 2)
    assert start.wait() == 2, start.said
    start.check_clean()
    assert "learner.safetensors holds 0 bytes" in start.errors
    assert "Traceback" not in start.errors


class Payload:
    """Unpickled, it makes a file."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return os.system, (f"touch {self.path}",)


@pytest.mark.parametrize("name", ["learner.safetensors", "shard_2.safetensors", "manifest.json", "LATEST"])
def test_a_hostile_file_runs_nothing(undisturbed, folder, tmp_path, name):
    ran, checkpoints = tmp_path / "it_ran", folder / "run" / "checkpoints"
    payload = pickle.dumps(Payload(ran))
    subprocess.run([sys.executable, "-c", f"import pickle; pickle.loads({payload!r})"], check=True)
    assert ran.exists(), "the payload does nothing"
    ran.unlink()
    newest = find(folder / "run")[0]
    path = checkpoints / name if name == "LATEST" else newest / name
    path.write_bytes(payload)
    if name.endswith(".safetensors"):  # whoever means harm writes a manifest that fits
        manifest = json.loads((newest / "manifest.json").read_text())
        manifest["files"][name] = {"size": len(payload), "sha256": hashlib.sha256(payload).hexdigest()}
        (newest / "manifest.json").write_text(json.dumps(manifest))
    words = [] if name == "LATEST" else [f"{newest.name} is damaged and skipped", re.escape(name)]
    as_if_nothing_happened(resume(folder, 2), undisturbed, *words)
    assert not ran.exists(), "the payload was run"


@pytest.mark.parametrize("ranks", [2, 4])
def test_a_half_written_checkpoint_of_a_crash_is_removed(undisturbed, folder, ranks):
    checkpoints = folder / "run" / "checkpoints"
    shutil.copytree(find(folder / "run")[0], checkpoints / ".step_4096")
    (checkpoints / ".step_4096" / "manifest.json").unlink()
    (checkpoints / ".LATEST.4711").write_text("step_14")
    as_if_nothing_happened(resume(folder, ranks), undisturbed)


def test_one_checkpoint_by_name(undisturbed, folder):
    older = find(folder / "run")[1].name
    start = Start(folder, "--resume", f"run/checkpoints/{older}", "--ranks", "2")
    as_if_nothing_happened(start, undisturbed)
    assert start.summary["resumed_from"] == f"checkpoints/{older}"


@contextlib.contextmanager
def old_server(port, ranks):
    """What a crashed run may leave: its store still listens, with all its keys."""
    code = (
        "import sys, time, torch.distributed as dist\n"
        f"store = dist.TCPStore('127.0.0.1', {port}, {ranks}, True, wait_for_workers=False)\n"
        f"for rank in range({ranks}): store.set(f'default_pg/0//cpu//0/rank_{{rank}}', 'stale')\n"
        "print('there', flush=True); time.sleep(600)\n"
    )
    server = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE)
    try:
        assert server.stdout is not None
        assert server.stdout.readline() == b"there\n"
        yield
    finally:
        server.kill()
        server.communicate()


@pytest.mark.parametrize("ranks", [2, 4])
def test_a_stale_rendezvous_is_no_world(tmp_path, ranks):
    """Ranks that somebody else started, at a port where an old server listens: refused, and nobody waits for long."""
    port = free_port()
    folder = folder_for(tmp_path, small())
    with old_server(port, ranks):
        began = time.monotonic()
        starts = [
            Start(folder, "run.yaml", "--run-dir", "run", environment=environment(rank, ranks, port))
            for rank in range(ranks)
        ]
        codes = [start.wait(60.0) for start in starts]
        assert time.monotonic() - began < 60
    assert codes[0] == 2, starts[0].said
    assert 0 not in codes
    assert f"127.0.0.1:{port}" in starts[0].errors, starts[0].errors
    assert "Traceback" not in starts[0].errors
    assert not (folder / "run" / "metrics.jsonl").exists(), "somebody trained"
    for start in starts:
        assert start.left() == []


def environment(rank, ranks, port):
    return {
        "RANK": str(rank),
        "WORLD_SIZE": str(ranks),
        "LOCAL_RANK": str(rank),
        "LOCAL_WORLD_SIZE": str(ranks),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
    }


@pytest.mark.parametrize("ranks", [2, 4])
def test_a_restart_meets_elsewhere_when_somebody_took_its_port(undisturbed, tmp_path, ranks):
    """As soon as the first start has ended, its port is taken: the second start does not go back there."""
    start = train(folder_for(tmp_path, small()), ranks, "--max-restarts", "1", fault=InjectedFault("raise", 1, 10))
    start.until(start.ranks)
    port = master_port(start.ranks()[0])
    with socket.socket() as taken:
        taken.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        start.until(lambda: (start.run_dir / "logs" / "failure.json").exists())

        def bound():
            with contextlib.suppress(OSError):
                taken.bind(("127.0.0.1", port))
                taken.listen()
                return True
            return False

        start.until(bound)
        as_if_nothing_happened(start, undisturbed)


def master_port(pid):
    with open(f"/proc/{pid}/environ", "rb") as file:
        return next(int(v[12:]) for v in file.read().split(b"\0") if v.startswith(b"MASTER_PORT="))


@contextlib.contextmanager
def small_disk(path, size):
    """A disk of `size` bytes at `path`."""
    path.mkdir(parents=True)
    done = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", f"size={size}", "lockstep-test", str(path)], capture_output=True, text=True
    )
    if done.returncode:
        pytest.skip(f"this machine does not let us mount a small disk: {done.stderr.strip()}")
    try:
        yield
    finally:
        subprocess.run(["umount", "--lazy", str(path)], check=True)


@pytest.mark.parametrize("ranks", [2, 4])
def test_a_full_disk(tmp_path, ranks):
    """A real one: the checkpoint before stays whole, there is one warning, and when there is room again it goes on."""
    folder = folder_for(tmp_path, small(total_steps=1_000_000, checkpoint_every=16 * BATCH))
    start = train(folder, ranks)
    start.until((folder / "run" / "run.yaml").exists)
    checkpoints = folder / "run" / "checkpoints"
    with small_disk(checkpoints, 1 << 20):
        start.until(lambda: start.latest > 0)
        ballast = (checkpoints / "ballast").open("wb", buffering=0)
        with contextlib.suppress(OSError):
            while True:
                ballast.write(bytes(4096))
        start.until(lambda: "could not be written" in start.said)
        steps = progress(start)
        start.until(lambda: progress(start) > steps + 100 * BATCH)
        assert start.said.count("could not be written") == 1, "one warning is enough"
        assert "No space left on device" in start.said
        whole = find(start.run_dir)[0]
        files = read_manifest(whole)["files"]
        assert len(files) == 5
        for name, expected in files.items():
            read_state(whole / name, expected)
        before = start.latest
        ballast.close()
        (checkpoints / "ballast").unlink()
        start.until(lambda: start.latest > before)
        start.process.terminate()
        assert start.wait() == 143, start.said
        start.check_clean()
        assert start.latest == start.summary["env_steps"]


def progress(start):
    """The step of the last line of metrics."""
    with contextlib.suppress(OSError, IndexError, ValueError):
        return json.loads((start.run_dir / "metrics.jsonl").read_text().splitlines()[-1])["step"]
    return 0
