"""PYTHONPATH of ranks: what the user added, not what belongs to an interpreter."""

import os
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

from lockstep.launch.search_path import search_path, search_path_of_nodes, search_path_of_programs


@pytest.fixture
def entries(tmp_path, monkeypatch) -> list[str]:
    """A search path as a script has it, with folders of the user's before and behind those of the installation."""
    libraries = [sysconfig.get_path(name) for name in ("stdlib", "purelib")]
    archive = f"/opt/lib/python{sys.version_info.major}{sys.version_info.minor}.zip"
    dynload = os.path.join(libraries[0], "lib-dynload")
    monkeypatch.setattr(sys, "path", ["/my/script", archive, *libraries, dynload, "", "/my/appended"])
    monkeypatch.setenv("PYTHONPATH", "/my/inherited")
    monkeypatch.chdir(tmp_path)
    return [archive, *libraries, dynload]


def test_ranks_get_what_the_user_added_and_find_the_rest_themselves(entries, tmp_path):
    assert search_path().split(os.pathsep) == [str(tmp_path), "/my/script", "/my/appended", "/my/inherited"]


def test_programs_get_what_was_inherited(entries, tmp_path):
    assert search_path_of_programs().split(os.pathsep) == [str(tmp_path), "/my/inherited"]


def test_a_folder_of_an_editable_package_stays_behind_the_standard_library(entries, tmp_path, monkeypatch):
    packages, source = tmp_path / "packages", tmp_path / "source"
    packages.mkdir()
    (packages / "__editable__.mine.pth").write_text(f"import sys\n\n{source}\n")
    monkeypatch.setattr("lockstep.launch.search_path.site.getsitepackages", lambda: [str(packages)])
    sys.path += [str(packages), str(source)]
    assert search_path().split(os.pathsep) == [str(tmp_path), "/my/script", "/my/appended", "/my/inherited"]
    assert str(source) in search_path_of_nodes(), "other nodes may not have it"


def test_other_nodes_get_nothing_of_the_installation(entries, tmp_path):
    beside = f"{sys.prefix}-mine/src"
    sys.path += [beside, os.path.join(sysconfig.get_path("purelib"), "vendored"), f"{sys.prefix}/src"]
    own = [str(tmp_path), "/my/script", "/my/appended", beside, f"{sys.prefix}/src", "/my/inherited"]
    assert search_path_of_nodes("/my/first") == ["/my/first", *own]


def test_a_program_of_another_python_loads_its_own_library():
    """The printed path is that of an interpreter without packages: of ours nothing may be in it."""
    printed = ["--no-python", sys.executable, "-S", "-c", "import sys; print(*sys.path, sep=chr(10))"]
    clean = {name: value for name, value in os.environ.items() if name not in ("RANK", "WORLD_SIZE")}
    command = [sys.executable, "-m", "lockstep.cli", "launch", "--ranks", "1", *printed]
    done = subprocess.run(command, env=clean, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    assert sysconfig.get_path("purelib") not in done.stdout.split("\n")
    assert str(Path.cwd()) in done.stdout.split("\n")
