"""What is kept about a suite's tasks is found anew when their sources change."""

import os

from lockstep.torch.envs import spec_cache


def test_without_a_folder_for_the_cache_the_answer_is_found_each_time(tmp_path, monkeypatch):
    (tmp_path / "file").touch()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    monkeypatch.setattr(spec_cache, "version", lambda package: "1.6.0")
    assert spec_cache.cached("envpool", {"spec": "Mine-v1"}, lambda: {"found": 1}) == {"found": 1}


def test_an_edited_task_is_looked_at_again(tmp_path, monkeypatch):
    """A package of the user's own adds tasks to mjlab by an entry point; neither has a new version after an edit."""
    source = tmp_path / "my_robots" / "tasks.py"
    source.parent.mkdir()
    source.write_text("observations = 48")
    described = tmp_path / "my_robots-1.0.dist-info"
    described.mkdir()
    (described / "METADATA").write_text("Metadata-Version: 2.1\nName: my_robots\nVersion: 1.0\n")
    (described / "entry_points.txt").write_text("[mjlab.tasks]\nmine = my_robots.tasks\n")
    (source.parent / "__init__.py").touch()
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(spec_cache, "version", lambda package: "1.6.0")

    asked = []

    def find():
        asked.append(source.read_text())
        return {"found": asked[-1]}

    def ask():
        return spec_cache.cached("mjlab", {"spec": "Mjlab-Mine"}, find)["found"]

    assert [ask(), ask()] == ["observations = 48"] * 2
    assert len(asked) == 1
    before = source.stat().st_mtime_ns
    source.write_text("observations = 50")
    os.utime(source, ns=(before + 1, before + 1))
    assert [ask(), ask()] == ["observations = 50"] * 2
    assert len(asked) == 2


def test_a_link_to_nowhere_among_the_sources_is_left_out(tmp_path, monkeypatch):
    """As the lock of an editor, beside a file that is being edited."""
    (tmp_path / ".#tasks.py").symlink_to("nobody@nowhere.1234")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(spec_cache, "version", lambda package: "1.6.0")
    monkeypatch.setattr(spec_cache, "package_folders", lambda module: [tmp_path])
    assert spec_cache.cached("mjlab", {"spec": "Mjlab-Mine"}, lambda: {"found": 1}) == {"found": 1}
