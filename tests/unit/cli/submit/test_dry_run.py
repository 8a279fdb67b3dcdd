"""A dry run needs nothing that only the user knows; a real submission does."""

import pytest

from lockstep.cli.main import main


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
