"""`lockstep tasks`."""

import json

import pytest

from lockstep.cli import tasks
from lockstep.cli.main import main


def test_tasks_are_listed_by_source_with_what_is_missing(capsys, monkeypatch):
    monkeypatch.setattr(tasks, "find_spec", lambda name: None if name in ("mjlab", "mujoco") else True)
    sources = [
        tasks.Source("built in", "numpy", "", lambda: ["lockstep/Cartpole-v0"]),
        tasks.Source("many", "numpy", "", lambda: [f"Task-{i}" for i in range(40)]),
        tasks.Source("mjlab", "mjlab", "pip install 'lockstep-rl[mjlab]'", lambda: 1 / 0),
        tasks.Source("Isaac Lab", "mjlab", "pip install " + "package " * 20, lambda: 1 / 0),
    ]
    monkeypatch.setattr(tasks, "_sources", lambda: sources)
    assert main(["tasks"]) == 0
    text = capsys.readouterr().out
    assert "built in (1)\n  lockstep/Cartpole-v0" in text
    assert "... and 28 more" in text
    assert "  mjlab: pip install 'lockstep-rl[mjlab]'" in text
    assert "Gymnasium's mujoco tasks: pip install 'lockstep-rl[mujoco]'" in text
    assert "  Isaac Lab: `lockstep tasks isaac` says how" in text
    assert main(["tasks", "Isaac-Ant"]) == 0
    text = capsys.readouterr().out
    assert "Isaac Lab: pip install package" in text
    assert "mjlab" not in text
    assert main(["tasks", "Task-39"]) == 0
    assert capsys.readouterr().out == (
        "many (1)\n  Task-39\n\n"
        "not installed: mjlab, Isaac Lab, Gymnasium's mujoco tasks; `lockstep tasks` says how to install them\n"
    )


@pytest.mark.parametrize(
    ("pattern", "expected"),
    [("cartpole", ["CartPole-v1"]), ("*-v0", ["Blackjack-v0"]), ("nothing", [])],
)
def test_a_pattern_selects(capsys, monkeypatch, pattern, expected):
    sources = [tasks.Source("some", "numpy", "", lambda: ["CartPole-v1", "Blackjack-v0"])]
    monkeypatch.setattr(tasks, "_sources", lambda: sources)
    assert main(["tasks", pattern, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["tasks"] == {"some": expected}


def test_what_gymnasium_registers_is_found_once_in_its_newest_version(capsys):
    assert main(["tasks", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)["tasks"]
    assert "CartPole-v1" in found["Gymnasium"]
    assert "CartPole-v0" not in found["Gymnasium"]
    assert "lockstep/Cartpole-v0" in found["built in"]


def test_a_pattern_without_a_match_says_so(capsys):
    assert main(["tasks", "no-such-task"]) == 0
    assert "no task that can run here matches no-such-task\n" in capsys.readouterr().out
    assert main(["tasks", "catpole"]) == 0
    assert "matches catpole; did you mean CartPole-v1" in capsys.readouterr().out


def test_tasks_of_mjlab_and_its_plugins_are_read_without_importing_them(tmp_path, monkeypatch):
    for file, text in {
        "mjlab/__init__.py": "raise ImportError",
        "mjlab/tasks/walk.py": 'register_mjlab_task(\n  task_id="Mjlab-Walk",\n)',
        "mjlab/notes.py": 'task_id="Mjlab-No-Task"',
        "my_robots/__init__.py": "raise ImportError",
        "my_robots/config/arm.py": "register_mjlab_task(task_id='Mjlab-My-Arm')",
        "my_robots-1.0.dist-info/METADATA": "Name: my_robots\nVersion: 1.0\n",
        "my_robots-1.0.dist-info/entry_points.txt": "[mjlab.tasks]\nmine = my_robots.config\n",
    }.items():
        path = tmp_path / file
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    monkeypatch.syspath_prepend(tmp_path)
    assert tasks._mjlab_tasks() == ["Mjlab-My-Arm", "Mjlab-Walk"]
