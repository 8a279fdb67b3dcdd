"""Packages with tasks are found without an import."""

from lockstep.envs.package_folders import package_folders, plugin_folders


def test_packages_and_plugins_are_found_without_importing_them(tmp_path, monkeypatch):
    for package in ("my_suite", "robots", "arms"):
        (tmp_path / package).mkdir()
        (tmp_path / package / "__init__.py").write_text("raise ImportError")
    described = tmp_path / "robots-1.0.dist-info"
    described.mkdir()
    (described / "METADATA").write_text("Metadata-Version: 2.1\nName: robots\nVersion: 1.0\n")
    entries = (
        "[my_suite.tasks]\nwalk = robots.walk\nrun = robots.run\nreach = arms\ngone = no_such_package_of_anybody\n"
    )
    (described / "entry_points.txt").write_text(entries + "[other.tasks]\nmine = my_suite\n")
    monkeypatch.syspath_prepend(tmp_path)
    assert package_folders("my_suite") == [tmp_path / "my_suite"]
    assert package_folders("no_such_package_of_anybody") == []
    assert plugin_folders("my_suite") == [tmp_path / "arms", tmp_path / "robots"]
    assert plugin_folders("no_such_suite") == []
