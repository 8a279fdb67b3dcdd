"""Run one arm in a process of its own."""

import json
import os
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from lockstep.cli.bench.works import Arm, Work

ARMS = Path(__file__).parent / "arms"
_TIMEOUT_S = 1800.0
_ONE_THREAD = {
    "OMP_NUM_THREADS": "1",
    "MKL_NUM_THREADS": "1",
    "OPENBLAS_NUM_THREADS": "1",
    "JAX_PLATFORMS": "cpu",
    "XLA_FLAGS": "--xla_cpu_multi_thread_eigen=false",
    "CUDA_VISIBLE_DEVICES": "",
}
"""Every library computes with one thread per process, on the CPU."""


def measure(python: Path, work: Work, arm: Arm, scale: float, more: Sequence[str] = ()) -> dict[str, Any]:
    """Run the arm's script; returns its result, the last line that it prints, or {"error": why there is none}.

    Args:
        python: the interpreter of the arm's environment.
        work: what is done.
        arm: by whom.
        scale: factor of the measured steps.
        more: further arguments of the script.
    """
    updates = max(1, round(work.measured * scale * arm.part / work.update))
    warm_up = max(1, round(work.warm_up * arm.part))  # not scaled: learning must have begun
    steps = [str(count * arm.ranks) for count in (warm_up, updates * work.update)]
    words = [*arm.words, *more, "--warm-up", steps[0], "--measured", steps[1]]
    command = [str(python), str(ARMS / arm.script), *words]
    own = os.sched_getaffinity(0)
    os.sched_setaffinity(0, sorted(own)[: arm.cores])  # inherited by the process
    try:
        done = subprocess.run(
            command, env=_environment(arm), capture_output=True, text=True, errors="replace", check=False,
            timeout=_TIMEOUT_S,
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        return {"error": f"not done after {_TIMEOUT_S:.0f} s"}
    except OSError as error:
        return {"error": f"{python} cannot be run: {error.strerror}"}
    finally:
        os.sched_setaffinity(0, own)
    if done.returncode:
        lines = (done.stderr or done.stdout).strip().splitlines()
        return {"error": lines[-1] if lines else f"ended with code {done.returncode}"}
    return _result(done.stdout)


def _result(output: str) -> dict[str, Any]:
    """The result on the last line of a script's output."""
    last = (output.strip().splitlines() or [""])[-1]
    try:
        found = json.loads(last)
        return {**found, "value": float(found["value"])}
    except (ValueError, TypeError, KeyError):
        return {"error": f"ended with code 0 without a result; its last line: {last or '(none)'}"}


def _environment(arm: Arm) -> Mapping[str, str]:
    """The environment variables of an arm. Scripts of other libraries import our environments, too."""
    source = str(Path(__file__).parents[3])
    return os.environ | _ONE_THREAD | ({} if arm.environment is None else {"PYTHONPATH": source})
