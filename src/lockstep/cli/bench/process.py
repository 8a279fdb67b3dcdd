"""Run one contender in a process of its own."""

import json
import os
import signal
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from lockstep.cli.bench.workloads import Contender, Workload
from lockstep.errors import ConfigError, RunError
from lockstep.launch.signals import Interrupted, caught_signals
from lockstep.launch.supervise import RankGroup

CONTENDERS = Path(__file__).parent / "contenders"
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
    python: Path, workload: Workload, contender: Contender, scale: float, group: RankGroup, more: Sequence[str] = ()
) -> dict[str, Any]:
    """Run the contender's script; returns its result, the last line that it prints, or {"error": why there is none}.

    None of its processes outlives the call: they would take time from the next contender.

    Args:
        python: the interpreter of the contender's environment.
        workload: what is done.
        contender: by whom.
        scale: factor of the measured steps.
        group: starts it, and ends it if this process is killed. It stays open for all contenders, so that its guardian
            process starts only once, beside the first.
        more: further arguments of the script.

    Raises:
        Interrupted: by a signal to this process.
    """
    updates = max(1, round(workload.measured * scale * contender.fraction_of_steps / workload.update))
    warm_up = max(1, round(workload.warm_up * contender.fraction_of_steps))  # not scaled: learning must have begun
    steps = [str(count * contender.ranks) for count in (warm_up, updates * workload.update)]
    words = [*contender.arguments, *more, "--warm-up", steps[0], "--measured", steps[1]]
    try:
        code, output, errors = _run([str(python), str(CONTENDERS / contender.script), *words], contender, group)
    except TimeoutError:
        return {"error": f"not done after {_TIMEOUT_S:.0f} s"}
    except (ConfigError, RunError) as error:
        return {"error": str(error)}
    if code:
        lines = (errors or output).strip().splitlines()
        return {"error": lines[-1] if lines else f"ended with code {code}"}
    return _result(output)


def _run(command: Sequence[str], contender: Contender, group: RankGroup) -> tuple[int, str, str]:
    """Run a command on the cores of a contender; returns its exit code, its output and its standard error.

    Raises:
        ConfigError, RunError: it cannot be started.
        Interrupted: by a signal to this process.
        TimeoutError: it takes too long.
    """
    own = os.sched_getaffinity(0)
    with caught_signals() as caught, tempfile.TemporaryFile() as output, tempfile.TemporaryFile() as errors:
        try:
            os.sched_setaffinity(0, sorted(own)[: contender.cores])  # inherited by the process
            try:
                group.start(command, _environment(contender), output=output.fileno(), errors=errors.fileno())
            finally:
                os.sched_setaffinity(0, own)
            deadline = time.monotonic() + _TIMEOUT_S
            while group.running():
                if caught:
                    raise Interrupted(caught[0])
                if time.monotonic() > deadline:
                    raise TimeoutError
                group.sleep(_POLL_S)
        finally:  # after a contender that succeeded, too: of what it has left
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


def _environment(contender: Contender) -> Mapping[str, str]:
    """The environment variables of a contender. Scripts of other libraries import our environments, too."""
    source = str(Path(__file__).parents[3])
    return os.environ | _ONE_THREAD | ({} if contender.environment is None else {"PYTHONPATH": source})
