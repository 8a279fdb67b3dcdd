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
def test_it_prints_what_it_would_submit_and_names_what_lacks(on, shown, noted, capsys):
    assert main(["submit", "cartpole", "--on", on, "--nnodes", "4", "--dry-run"]) == 0
    told = capsys.readouterr()
    assert shown in told.out
    assert noted in told.err


@pytest.mark.parametrize(("on", "said"), [("kubernetes", "--image"), ("ssh", "--hosts")])
def test_nothing_stands_in_when_it_is_real(on, said, capsys):
    assert main(["submit", "cartpole", "--on", on, "--nnodes", "4"]) == 2
    assert said in capsys.readouterr().err
