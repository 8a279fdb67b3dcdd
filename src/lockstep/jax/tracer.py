"""The profiler of JAX for `lockstep train --profile`."""

import gzip
import tempfile
from pathlib import Path
from typing import Any

import jax
import msgspec


class JaxTracer:
    """Records XLA's executions on the devices of this process."""

    def start(self) -> None:
        """Start recording."""
        self._folder = tempfile.TemporaryDirectory()
        options = jax.profiler.ProfileOptions()
        options.python_tracer_level = 0  # it would cost more than the run itself
        jax.profiler.start_trace(self._folder.name, profiler_options=options)

    def mark(self, name: str) -> None:
        """Record a short event with this name."""
        with jax.profiler.TraceAnnotation(name):
            pass

    def stop(self) -> list[dict[str, Any]]:
        """Stop; the events since `start` in Chrome's format."""
        jax.profiler.stop_trace()
        files = sorted(Path(self._folder.name).rglob("*.trace.json.gz"))
        traces = [msgspec.json.decode(gzip.decompress(file.read_bytes())) for file in files]
        self._folder.cleanup()
        return [event for trace in traces for event in trace["traceEvents"] if event]
