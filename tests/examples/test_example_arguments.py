"""Examples that divide counts among ranks: what does not divide is refused, and a short run works, too."""

import argparse
import importlib

import pytest

from lockstep import ConfigError


@pytest.mark.parametrize(("name", "ranks"), [("my_sac", 3), ("my_fsdp_loop", 3), ("my_loop", 17)])
def test_ranks_that_do_not_divide_the_work_are_refused(examples, monkeypatch, name, ranks):
    for variable, value in {"RANK": 0, "WORLD_SIZE": ranks, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": 1}.items():
        monkeypatch.setenv(variable, str(value))
    given = argparse.Namespace(total_steps=4, updates=1, width=8, device="cpu", out="whole.pt")
    with pytest.raises(ConfigError, match=f"divide among {ranks} ranks"):
        importlib.import_module(name).train(0, given)


def test_a_run_shorter_than_the_period_of_its_log_reports_its_loss(examples, capsys):
    import my_fsdp_loop

    given = argparse.Namespace(updates=3, width=8, device="cpu", out="runs/whole.pt")
    assert my_fsdp_loop.train(0, given)["loss"] > 0
    assert "update 3: loss" in capsys.readouterr().out
