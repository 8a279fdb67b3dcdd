"""Programs that pages show: they run as they stand, with fewer steps."""

import json
import re
import subprocess
import sys
from pathlib import Path

import lockstep
from lockstep.recipes.cartpole import recipe

ROOT = Path(__file__).parents[2]
EPISODES = 16  # per update, of examples/my_loop.py
BLOCK = re.compile(r"^```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def program(page):
    """The blocks of a page that are no files, one after another."""
    return "".join(BLOCK.findall((ROOT / page).read_text()))


def test_the_loop_of_the_guide_runs_on_two_ranks(examples, python):
    text = program("docs/guides/your-own-script-in-six-changes.md")
    shorter = text.replace("range(1, 201)", "range(1, 3)")
    assert shorter != text
    Path("guide.py").write_text(f"import sys\nsys.path.append({str(examples)!r})\n{shorter}")
    for _ in range(2):  # the second time from its checkpoints
        python("-m", "lockstep.cli", "launch", "--ranks", "2", "guide.py")
    assert sorted(path.name for path in Path("runs/my_checkpoints/checkpoints").glob("step_*"))[-1] == "step_3"
    folders = list(Path("runs").glob("my_loop-*"))
    assert len(folders) == 2
    for folder in folders:
        summary = json.loads((folder / "summary.json").read_text())
        lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
        assert (summary["status"], summary["updates"]) == ("finished", len(lines))
        steps = round(sum(line["episode/return_mean"] for line in lines) * EPISODES)
        assert (lines[-1]["step"], summary["env_steps"]) == (steps, steps), "steps of environments, not updates"
        assert 0 < lines[0]["time_s"] < lines[-1]["time_s"]


def test_a_policy_is_loaded_and_acts_as_the_page_of_commands_shows(examples):
    lockstep.train(recipe(), total_steps=2048, run_dir="run", evaluate_episodes=2)
    text = program("docs/commands.md")
    assert len(text.split("\n\n")[1].splitlines()) == 4, "load, then act in four lines"
    Path("act.py").write_text(text.replace("runs/NAME", "run") + "print(observation.shape, reward, spec.action.kind)\n")
    for framework in ("torch", "jax"):
        code = Path("act.py").read_text().replace("lockstep.torch", f"lockstep.{framework}")
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
        assert done.stdout == "(4,) 1.0 discrete\n", done.stderr
