"""Examples that divide counts among ranks: what does not divide is refused, and a short run works, too."""

import argparse
import importlib
import subprocess
import sys

import pytest

from lockstep import ConfigError


@pytest.mark.parametrize("name", ["my_sac", "my_fsdp_loop"])
def test_ranks_that_do_not_divide_the_work_are_refused(examples, monkeypatch, name):
    for variable, value in {"RANK": 0, "WORLD_SIZE": 3, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": 1}.items():
        monkeypatch.setenv(variable, str(value))
    given = argparse.Namespace(total_steps=4, updates=1, width=8, device="cpu", out="whole.pt")
    with pytest.raises(ConfigError, match="divide among 3 ranks"):
        importlib.import_module(name).train(0, given)


@pytest.mark.parametrize(
    ("name", "ranks"), [("my_loop", 17), ("my_jax_loop", 3), ("my_algorithm", 4), ("my_sac", 3), ("my_fsdp_loop", 3)]
)
def test_more_or_other_ranks_than_episodes_divide_among_are_refused(examples, name, ranks):
    command = [sys.executable, examples / f"{name}.py", "--ranks", str(ranks)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 2 and f"argument --ranks: invalid choice: {ranks}" in done.stderr


def test_a_run_shorter_than_the_period_of_its_log_reports_its_loss(examples, capsys):
    import my_fsdp_loop

    given = argparse.Namespace(updates=3, width=8, device="cpu", out="runs/whole.pt")
    assert my_fsdp_loop.train(0, given)["loss"] > 0
    assert "update 3: loss" in capsys.readouterr().out
