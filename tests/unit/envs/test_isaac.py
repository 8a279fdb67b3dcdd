import pytest

from lockstep.envs import isaac
from lockstep.errors import ConfigError

TASKS = ("Isaac-Cartpole", "Isaac-Velocity-Rough-AnymalD", "IsaacContrib-Velocity-Flat-UnitreeGo1")


@pytest.fixture
def isaaclab(tmp_path, monkeypatch):
    """A stand-in that must not be imported."""
    for name in ("isaaclab", "isaaclab_tasks"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "__init__.py").write_text("raise AssertionError('imported')\n")
    folder = tmp_path / "isaaclab_tasks" / "core"
    folder.mkdir()
    registered = "\n".join(f'gym.register(\n    id="{task}",\n    kwargs={{}},\n)' for task in TASKS)
    (folder / "__init__.py").write_text(f"raise AssertionError('imported')\n{registered}\n")
    monkeypatch.syspath_prepend(tmp_path)
    isaac.task_ids.cache_clear()
    yield
    isaac.task_ids.cache_clear()


@pytest.mark.usefixtures("isaaclab")
def test_installed_isaac_lab_is_found_without_an_import():
    assert isaac.is_installed()
    assert isaac.task_ids() == TASKS


@pytest.mark.usefixtures("isaaclab")
@pytest.mark.parametrize(
    ("typed", "current"),
    [
        ("Isaac-Cartpole", "Isaac-Cartpole"),
        ("Isaac-Cartpole-v0", "Isaac-Cartpole"),
        ("Isaac-Velocity-Rough-Anymal-D-v0", "Isaac-Velocity-Rough-AnymalD"),
        ("Isaac-Velocity-Rough-Anymal-D-Play-v0", "Isaac-Velocity-Rough-AnymalD"),
        ("Isaac-Velocity-Flat-Unitree-Go1-v0", "IsaacContrib-Velocity-Flat-UnitreeGo1"),
    ],
)
def test_ids_of_older_versions_are_translated_with_a_line(typed, current):
    task, line = isaac.current_id(typed)
    assert task == current
    assert bool(line) == (typed != current)
    assert not line or (typed in line and current in line)
    assert ("not for play" in line) == ("-Play" in typed)


@pytest.mark.usefixtures("isaaclab")
def test_unknown_task_is_refused_with_similar_ids():
    with pytest.raises(ConfigError, match=r"task=Isaac-Cartpol-v0 does not exist .* Isaac-Cartpole"):
        isaac.current_id("Isaac-Cartpol-v0")


def test_missing_isaac_lab_is_refused_with_install_lines_and_the_built_in_task(monkeypatch):
    monkeypatch.setattr(isaac, "find_spec", lambda name: None)
    with pytest.raises(ConfigError) as caught:
        isaac.current_id("Isaac-Cartpole-v0")
    message = str(caught.value)
    assert caught.value.exit_code == 2
    for part in (
        "missing: isaaclab, isaaclab_tasks",
        "on a CPU: pip install torch",
        "with Python 3.12 and an NVIDIA GPU",
    ):
        assert part in message
    assert "--task=lockstep/Cartpole-v0" in message
    assert [line.partition(": pip install ")[0].strip() for line in message.splitlines()[1:]] == [
        "with Python 3.11 or 3.12, in an environment of its own, on a CPU",
        "with Python 3.12 and an NVIDIA GPU",
    ]
