"""`benchmarks/gpu.py` runs, on a CPU and small, and goes on where it was cut off."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "gpu.py"
SOME = (
    "machine",
    "copy",
    "gradient_step/sac/eager",
    "gradient_step/ppo_pixels/eager",
    "gradient_step/dqn_pixels/deterministic",
    "offline_dqn/eager",
    "replay/torch/cpu",
    "replay/jax/cpu",
)
WHOLE = ("cartpole/4096/torch/eager", "pixels/1024/torch/eager")


def measure(out, *items, minutes="4"):
    command = [sys.executable, str(SCRIPT), "--device", "cpu", "--scale", "0.01", "--minutes", minutes]
    done = subprocess.run([*command, "--out", str(out), "--only", *items], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    return done.stdout, json.loads(out.read_text())


@pytest.mark.slow
def test_items_are_measured_and_not_measured_again(tmp_path):
    out = tmp_path / "gpu.json"
    _, found = measure(out, *SOME, *WHOLE)
    assert set(found) == {*SOME, *WHOLE}
    assert not [name for name, result in found.items() if "error" in result], found
    assert found["gradient_step/sac/eager"]["microseconds"] > 0
    assert found["offline_dqn/eager"]["rows_per_second"] > 0
    assert all(found[name]["with_first_updates"] > 0 for name in WHOLE)  # so small a run logs one line
    assert found["copy"]["to_device"] > 0
    found["copy"] = {"error": "the GPU was lost"}
    out.write_text(json.dumps(found))
    printed, again = measure(out, *SOME)
    assert printed.startswith("copy: ") and len(printed.splitlines()) == 1, "only what failed is measured again"
    assert {name: again[name] for name in found if name != "copy"} == {n: r for n, r in found.items() if n != "copy"}


@pytest.mark.slow
def test_time_that_is_up_keeps_what_was_measured(tmp_path):
    out = tmp_path / "gpu.json"
    out.write_text(json.dumps({"machine": {"device": "none"}}))
    printed, found = measure(out, "machine", "copy", minutes="0")
    assert "time is up" in printed and found == {"machine": {"device": "none"}}
