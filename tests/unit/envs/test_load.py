"""Names of user code are checked without importing it, and errors of an import say where."""

import pytest

from lockstep import recipes
from lockstep.envs.load import check_location
from lockstep.errors import ConfigError


def file_with(tmp_path, text):
    path = tmp_path / "mine.py"
    path.write_text(f"raise SystemExit('imported')\n{text}\n")
    return path


@pytest.mark.parametrize(
    "text",
    [
        "class Network: ...",
        "def Network(): ...",
        "from elsewhere import Network",
        "import elsewhere as Network",
        "try:\n    Network = 1\nexcept Exception: ...",
        "from elsewhere import *",
        "def __getattr__(name): ...",
        "globals()['Net' + 'work'] = 1",
        "[Network := i for i in range(2)]",
        "import sys\nsys.modules[__name__].Network = 1",
    ],
)
@pytest.mark.parametrize("name", ["Network", "Network.Inner"])
def test_a_name_that_a_file_may_define_passes(tmp_path, text, name):
    check_location(f"{file_with(tmp_path, text)}:{name}", "network.module")


@pytest.mark.parametrize(
    "source", [b"\xef\xbb\xbfclass Network: ...", b"# coding: latin-1\n# \xe9\nclass Network: ..."]
)
def test_a_file_in_another_encoding_is_read_as_python_reads_it(tmp_path, source):
    path = tmp_path / "mine.py"
    path.write_bytes(source)
    check_location(f"{path}:Network", "network.module")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("class Networks: ...", r"mine.py has no Network; did you mean Networks\?"),
        ("class Other:\n    Network = 1", "mine.py has no Network$"),
        ("print(Network)", "mine.py has no Network$"),
        ("class Network(:", "importing .*mine.py failed: SyntaxError"),
    ],
)
def test_a_name_that_a_file_does_not_define_is_refused(tmp_path, text, message):
    path = file_with(tmp_path, text)
    with pytest.raises(ConfigError, match=f"^network.module={path}:Network: .*{message}"):
        check_location(f"{path}:Network", "network.module")


def test_the_file_of_a_run_from_another_machine_has_a_way_out(tmp_path):
    moved = r"; if a run began with it elsewhere, change task in its run.yaml, or --resume it with --set task=\.\.\."
    with pytest.raises(ConfigError, match=rf"there is no file {tmp_path}/mine.py{moved}$"):
        check_location(f"{tmp_path}/mine.py:Env", "task")
    with pytest.raises(ConfigError, match=r"there is no file .*/nowhere.py$"):
        check_location("nowhere.py:Env", "task")


def test_an_error_of_an_imported_file_has_its_line(tmp_path):
    path = tmp_path / "mine.py"
    path.write_text("import os\n\nNAME = os.environ['NOWHERE_AT_ALL']\n\n\nclass Env: ...\n")
    with pytest.raises(ConfigError, match=rf"^{path}:Env: importing {path} failed: KeyError: .* \({path}:3\)$"):
        recipes.load_file(f"{path}:Env")
