"""The location in messages about errors of environments: the user's own line, wherever the error was raised."""

import os
import re
from pathlib import Path

import numpy as np
import pytest
from own_envs import Counter

from lockstep.config.env import EnvConfig
from lockstep.envs.errors import describe_error, user_location
from lockstep.envs.make import make_vector_env
from lockstep.errors import RunError

HERE = re.escape(str(Path(__file__)))


def test_the_location_is_the_users_line_and_not_that_of_numpy(monkeypatch):
    monkeypatch.setattr(Counter, "step", lambda self, action: np.stack([]))
    env = make_vector_env("own_envs:Counter", EnvConfig(vectorization="sync"), 1)
    env.reset([0])
    with pytest.raises(RunError, match=rf"failed in step: ValueError: need at least one array .* \({HERE}:\d+\)$"):
        env.step(np.zeros(1, np.int64))


def test_where_no_line_of_the_user_ran_the_location_is_that_of_the_package():
    with pytest.raises(ValueError) as caught:
        np.stack([])
    error = caught.value
    assert user_location(error).startswith(f" ({__file__}:") and describe_error(error).endswith(user_location(error))
    error = error.with_traceback(error.__traceback__.tb_next)  # numpy's frames alone
    assert user_location(error) == "" and f"site-packages{os.sep}numpy" in describe_error(error)
    assert describe_error(error.with_traceback(None)) == "ValueError: need at least one array to stack"


def test_of_a_traceback_in_the_message_the_error_at_its_end_is_described():
    """As JAX quotes an error of a callback, with the frames that called it."""
    jax = pytest.importorskip("jax")

    def fails(x):
        raise ZeroDivisionError("no such\nplace")

    def called(x):
        return jax.pure_callback(fails, jax.ShapeDtypeStruct((), np.float32), x, vmap_method="sequential")

    with pytest.raises(jax.errors.JaxRuntimeError) as caught:
        jax.jit(called)(np.float32(1)).block_until_ready()
    line = fails.__code__.co_firstlineno + 1
    assert describe_error(caught.value) == f"ZeroDivisionError: no such place ({__file__}:{line})"
    python = 'worker:\nTraceback (most recent call last):\n  File "own.py", line 3, in step\n    1 / 0\n    ~~^~~\n'
    assert (
        describe_error(RuntimeError(python + "ZeroDivisionError: division")) == "ZeroDivisionError: division (own.py:3)"
    )
    assert describe_error(RuntimeError(python)).startswith("RuntimeError: worker: ")


def test_an_error_without_a_message_has_no_colon():
    assert describe_error(KeyboardInterrupt()) == "KeyboardInterrupt"


def test_a_users_folder_may_be_called_like_ours(tmp_path):
    """Also where the repository was cloned as `src/lockstep`, with the user's class beside its examples."""
    file = tmp_path / "src" / "lockstep" / "my_env.py"
    with pytest.raises(ZeroDivisionError) as caught:
        exec(compile("1 / 0", str(file), "exec"))
    assert describe_error(caught.value).endswith(f" ({file}:1)")
