"""For the tests of ranks: a place for what JAX compiles."""

import pytest


@pytest.fixture(autouse=True, scope="session")
def _compiled(tmp_path_factory):
    """A folder for what ranks of JAX compile (`jax_compiled.py`); this process does not use it."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("LOCKSTEP_TEST_COMPILED", str(tmp_path_factory.mktemp("compiled")))
        yield
