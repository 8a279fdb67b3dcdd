"""For the tests of this folder: one run that nothing disturbs."""

import pytest
from chaos_runs import folder_for, small, train


@pytest.fixture(scope="session")
def undisturbed(tmp_path_factory):
    """The folder of a finished run of `small()`, on 2 ranks."""
    folder = folder_for(tmp_path_factory.mktemp("undisturbed"), small())
    start = train(folder, 2)
    assert start.wait() == 0, start.said
    start.check_clean()
    assert start.summary["status"] == "finished"
    return folder
