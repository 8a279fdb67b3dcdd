"""A way to gather values from all ranks before a run has its own `Comm`."""

from collections.abc import Generator
from contextlib import contextmanager

from lockstep.distributed.agreement import Gather
from lockstep.run import AnyRun
from lockstep.world import World


@contextmanager
def gathering(run: AnyRun, world: World, timeout_s: float | None = None) -> Generator[Gather]:
    """Connect all ranks with the framework of the run, for the block; yields `gather_object`. *Collective*.

    Args:
        run: the config.
        world: the ranks.
        timeout_s: bound on each message; default: that of the run.
    """
    bound_s = run.timeout_s if timeout_s is None else timeout_s
    if run.ml_framework == "jax":
        from lockstep.distributed.timers import Timers
        from lockstep.jax.collectives.processes import Processes

        processes = Processes(world, Timers(), bound_s, run.startup_timeout_s)
        processes.open()
        try:
            yield processes.gather_object
        except BaseException as error:
            processes.close(error)
            raise
        processes.close(None)
        return
    from lockstep.torch.comm import Comm

    temporary = Comm(
        world, device="cpu", backend="gloo", shared_memory=False,
        timeout_s=bound_s, startup_timeout_s=run.startup_timeout_s,
    )  # fmt: skip
    with temporary as comm:
        yield comm.gather_object
