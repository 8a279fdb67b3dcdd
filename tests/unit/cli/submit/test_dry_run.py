"""A dry run needs nothing that only the user knows; a real submission does."""

import subprocess

import pytest
from submitting import program, refusal, text_of

from lockstep.cli.main import main

# As the command of Ray 2.60 and its head do: they join the words after `--`, and a shell runs the result.
RAY = """
import shlex, subprocess, sys
words = sys.argv[1:]
sys.exit(subprocess.run(shlex.join(words[words.index("--") + 1 :]), shell=True).returncode)
"""


@pytest.mark.parametrize(
    ("on", "shown", "noted"),
    [
        ("slurm", "#SBATCH --nodes=4", ""),
        ("kubernetes", "image: registry.example/lockstep:tag", "--image"),
        ("ssh", "host-3", "--hosts"),
    ],
)
def test_dry_run_prints_the_job_with_placeholders(on, shown, noted, capsys):
    assert main(["submit", "cartpole", "--on", on, "--nnodes", "4", "--dry-run"]) == 0
    told = capsys.readouterr()
    assert shown in told.out
    assert noted in told.err


@pytest.mark.parametrize(("on", "said"), [("kubernetes", "--image"), ("ssh", "--hosts")])
def test_placeholders_are_for_dry_runs_only(on, said, capsys):
    assert main(["submit", "cartpole", "--on", on, "--nnodes", "4"]) == 2
    assert said in capsys.readouterr().err


def test_command_of_ray_can_be_pasted_into_a_shell(here, programs, capsys, monkeypatch):
    program(programs, "ray", RAY)
    program(programs, "lockstep", "import os, sys; print(os.environ.get('OMP_NUM_THREADS'), *sys.argv[1:], sep='|')")
    words = ["cartpole", "--on", "ray", "--lockstep", "lockstep", "--name", "job", "--setup", 'N="it\'s $((1 + 1))"']
    line = text_of(capsys, *words, "--setup", 'echo "$N"', "--set", "env.kwargs={sutton_barto_reward: true}")
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    done = subprocess.run(["bash", "-c", line], capture_output=True, text=True, check=True)
    said, started = done.stdout.splitlines()
    assert said == "it's 2"
    trained = "None|train|cartpole|--set|env.kwargs={sutton_barto_reward: true}|--run-dir|runs/job|--on|ray|"
    assert started.startswith(trained)


@pytest.mark.parametrize("nnodes", ["100000", "1:100000"])
def test_placeholders_are_not_made_for_any_number_of_hosts(nnodes, capsys):
    assert "at most 1000 hosts" in refusal(capsys, "cartpole", "--on", "ssh", "--nnodes", nnodes)


def test_no_placeholders_are_made_where_hosts_are_named(capsys):
    words = ["cartpole", "--on", "ssh", "--hosts", "a,b", "--num-envs", "100000", "--nnodes", "100000"]
    assert "but 2 hosts are named" in refusal(capsys, *words)
