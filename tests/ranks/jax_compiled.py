"""What ranks of JAX compiled, kept for the tests that come after: most of their time would go into compiling it again.

Each rank of each layout has a place of its own. So bits that are found equal were still compiled apart from each other,
and no rank reads what another one writes at that moment.
"""

import os

_XLA_FLAGS = " --xla_backend_optimization_level=0"

PLACE = "LOCKSTEP_TEST_COMPILED"
"""The variable that names a folder of this session; without it nothing is kept."""


def keep_compiled(rank: int, devices: int = 1) -> None:
    """To be called inside a rank, of `devices` devices, before it compiles anything.

    Kernels are compiled without optimization, which takes half the time. `jax_real_size.py` and the runs of the
    command line compile them as usual.
    """
    if PLACE in os.environ:
        import jax

        os.environ["XLA_FLAGS"] = os.environ.get("XLA_FLAGS", "") + _XLA_FLAGS

        layout = f"{os.environ['WORLD_SIZE']}_processes_{devices}_devices_rank_{rank}"
        jax.config.update("jax_compilation_cache_dir", os.path.join(os.environ[PLACE], layout))
        jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)
        jax.config.update("jax_persistent_cache_min_entry_size_bytes", -1)
