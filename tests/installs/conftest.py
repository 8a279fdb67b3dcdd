"""For the tests of installs: nothing stays in the folder for temporary files."""

import shutil
from collections.abc import Iterator

import pytest
from clean_environment import DIST, wheel


@pytest.fixture(autouse=True, scope="session")
def _remove_wheel() -> Iterator[None]:
    yield
    if not DIST and wheel.cache_info().currsize:
        shutil.rmtree(wheel().parent)
