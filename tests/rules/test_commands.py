"""What README and guides tell people to type is typed, in order, in an empty directory; only the steps are fewer."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from pages import CHINESE, PAGES, ROOT, blocks, commands, missing_packages, name

# These set up an environment, or are what runs this test.
NOT_TYPED = (
    "make ",
    "python3 -m venv ",
    "pip ",
    "git ",
    ". .venv/bin/activate",
    "pre-commit ",
    "pytest ",
    ".venv-jax/",
)
NOT_TYPED += (".ci/", "$EDITOR", "tensorboard ", "lockstep bench ")
SHORTER = {
    r"^lockstep train |-m lockstep\.train |^python .*my_cartpole\.py": "--set total_steps=4096",
    # Whole games are long, and the networks are large.
    r"^lockstep train (pong(_small)? |ALE/)|^python .*my_pong": "--set learning_starts=192 --set total_steps=384",
    r"^lockstep train (pong|ALE/)|^python .*my_pong": "--set evaluate_episodes=2 --set env.max_episode_steps=60",
    r"^lockstep offline train|-m lockstep\.workflows\.(dqn|parametric_dqn)": "--set epochs=2",
    r"-m lockstep\.train .*Isaac-|^lockstep train (Isaac-|Mjlab-)": "--set num_envs=64 --set evaluate_episodes=2",
    r"-m lockstep\.workflows\.(skrl|rsl_rl)": "--num_envs=16 --max_iterations=1",
    # The published minibatch of 8192 transitions needs as many environments.
    r"-m lockstep\.workflows\.rl_games": "--num_envs=512 --max_iterations=1",
    r"^python .*examples/my_loop\.py": "--updates 2",
    r"^python .*examples/my_checkpointed_loop\.py": "--updates 2",
    r"^lockstep launch .*examples/my_loop\.py": "--updates 2",
    r"^python .*examples/my_off_policy_loop\.py": "--total-steps 2000",
    r"^python .*examples/my_sac\.py": "--total-steps 1200",
    r"^python .*examples/my_algorithm\.py": "--total-steps 2048",
    r"^python .*examples/my_(fsdp|jax)_loop\.py": "--updates 20",
}


def typed(page: Path) -> list[str]:
    """The commands of a page that can run in this environment."""
    runnable = [command for command in commands(page) if not command.startswith(NOT_TYPED)]
    return [command for command in runnable if not missing_packages(command)]


def shorter(command: str) -> str:
    """The same command with less to do; the flag goes behind the last of several commands."""
    last = command.rpartition("&&")[2].strip()
    return " ".join([command, *(flag for kind, flag in SHORTER.items() if re.search(kind, last))])


def run(command: str, folder: Path) -> str:
    environment = os.environ | {"PATH": os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])}
    runs = sorted((folder / "runs").glob("*/summary.json"))
    if runs:
        command = command.replace("runs/NAME", f"runs/{runs[0].parent.name}")
    done = subprocess.run(
        ["bash", "-c", shorter(command)], cwd=folder, env=environment, capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, f"{command}\n{done.stdout[-2000:]}\n{done.stderr[-2000:]}"
    return done.stdout


# The pages of launchers are for several hosts: tests/hosts/test_launcher_pages.py.
TYPED = [page for page in PAGES if typed(page) and CHINESE not in page.name and page.parent.name != "launchers"]


@pytest.mark.slow
@pytest.mark.parametrize("page", TYPED, ids=name)
def test_commands_run(page, tmp_path):
    for folder in ("examples", "benchmarks"):
        (tmp_path / folder).symlink_to(ROOT / folder)
    for block in blocks(page):
        if block.file:
            (tmp_path / block.file).write_text(block.body)
    for command in typed(page):
        if "runs/NAME" in command and not (tmp_path / "runs").exists():
            run("lockstep train cartpole", tmp_path)
        told = run(command, tmp_path)
        if command.startswith("grep -h params_fingerprint"):
            assert len(set(re.findall(r"[0-9a-f]{32}", told))) == 1, told
        if command.startswith("lockstep train") and "--ranks 2" in command:
            assert "parameters equal on both ranks" in told
            assert "data different on both ranks" in told


def test_shorter_reaches_what_trains():
    assert shorter("lockstep train cartpole").endswith("--set total_steps=4096")
    assert shorter("lockstep recipe cartpole > my.py && lockstep train my.py:recipe").endswith("total_steps=4096")
    for command in ("lockstep doctor", "lockstep recipe cartpole > my_cartpole.py"):
        assert shorter(command) == command


def test_commands_of_robot_suites_get_fewer_environments():
    assert shorter("python -m lockstep.workflows.rsl_rl --task=Isaac-Ant").endswith("--num_envs=16 --max_iterations=1")
    assert "--set num_envs=64" in shorter("lockstep train Isaac-Cartpole --ranks 2 --set num_envs=1024")
