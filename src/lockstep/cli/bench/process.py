"""Run one arm in a process of its own."""

import json
import os
import signal
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from lockstep.cli.bench.workloads import Arm, Workload
from lockstep.errors import ConfigError, RunError
from lockstep.launch.signals import Interrupted, caught_signals
from lockstep.launch.supervise import RankGroup

ARMS = Path(__file__).parent / "arms"
_TIMEOUT_S = 1800.0
_POLL_S = 0.2  # within which a signal is noticed
_ONE_THREAD = {
    "OMP_NUM_THREADS": "1",
    "MKL_NUM_THREADS": "1",
    "OPENBLAS_NUM_THREADS": "1",
    "JAX_PLATFORMS": "cpu",
    "XLA_FLAGS": "--xla_cpu_multi_thread_eigen=false",
    "CUDA_VISIBLE_DEVICES": "",
}
"""Every library computes with one thread per process, on the CPU."""


def measure(
    python: Path, workload: Workload, arm: Arm, scale: float, group: RankGroup, more: Sequence[str] = ()
) -> dict[str, Any]:
    """Run the arm's script; returns its result, the last line that it prints, or {"error": why there is none}.

    None of its processes outlives the call: they would take time from the next arm.

    Args:
        python: the interpreter of the arm's environment.
        workload: what is done.
        arm: by whom.
        scale: factor of the measured steps.
        group: starts it, and ends it if this process is killed. It stays open for all arms, so that its guardian
            process starts only once, beside the first.
        more: further arguments of the script.

    Raises:
        Interrupted: by a signal to this process.
    """
    updates = max(1, round(workload.measured * scale * arm.part / workload.update))
    warm_up = max(1, round(workload.warm_up * arm.part))  # not scaled: learning must have begun
    steps = [str(count * arm.ranks) for count in (warm_up, updates * workload.update)]
    words = [*arm.words, *more, "--warm-up", steps[0], "--measured", steps[1]]
    try:
        code, output, errors = _run([str(python), str(ARMS / arm.script), *words], arm, group)
    except TimeoutError:
        return {"error": f"not done after {_TIMEOUT_S:.0f} s"}
    except (ConfigError, RunError) as error:
        return {"error": str(error)}
    if code:
        lines = (errors or output).strip().splitlines()
        return {"error": lines[-1] if lines else f"ended with code {code}"}
    return _result(output)


def _run(command: Sequence[str], arm: Arm, group: RankGroup) -> tuple[int, str, str]:
    """Run a command on the cores of an arm; returns its exit code, its output and its standard error.

    Raises:
        ConfigError, RunError: it cannot be started.
        Interrupted: by a signal to this process.
        TimeoutError: it takes too long.
    """
    own = os.sched_getaffinity(0)
    with caught_signals() as caught, tempfile.TemporaryFile() as output, tempfile.TemporaryFile() as errors:
        try:
            os.sched_setaffinity(0, sorted(own)[: arm.cores])  # inherited by the process
            try:
                group.start(command, _environment(arm), output=output.fileno(), errors=errors.fileno())
            finally:
                os.sched_setaffinity(0, own)
            deadline = time.monotonic() + _TIMEOUT_S
            while group.running():
                if caught:
                    raise Interrupted(caught[0])
                if time.monotonic() > deadline:
                    raise TimeoutError
                group.sleep(_POLL_S)
        finally:  # after an arm that succeeded, too: of what it has left
            group.stop(signal.SIGINT, group.bounds.stop_s)  # a script removes its temporary files at SIGINT only
        code = group.ranks[-1].code or 0
        for file in (output, errors):
            file.seek(0)
        return code, output.read().decode(errors="replace"), errors.read().decode(errors="replace")


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
