"""Programs of a cluster go into a folder of their own, first on PATH."""

import os

import pytest

pytest.register_assert_rewrite("submitting")


@pytest.fixture
def programs(here, monkeypatch):
    """An empty folder on PATH, before the shell's own programs and instead of all others."""
    folder = here / "programs"
    folder.mkdir()
    monkeypatch.setenv("PATH", os.pathsep.join([str(folder), "/usr/bin", "/bin"]))
    return folder
