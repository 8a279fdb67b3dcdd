"""What `prepare` says of a log, by which a mistake in it is seen before hours of training."""

import pytest

from lockstep.data.prepare import PrepareOptions, prepare_dataset
from made_logs import row, write


def said(tmp_path, rows, **options):
    """The lines that are printed."""
    printed = []
    log = write(tmp_path / "log.jsonl", rows)
    prepare_dataset([log], tmp_path / "data", PrepareOptions(**options), show=printed.append)
    return printed


def test_the_names_of_actions_are_shown(tmp_path):
    first = said(tmp_path, [row(i, action=name) for i, name in enumerate(["buy", "buy ", "Buy", "buy"])])[0]
    assert first == "4 decisions in 1 trajectory of 4, discrete actions: Buy, buy, 'buy '"


def test_of_many_actions_the_first_are_shown(tmp_path):
    first = said(tmp_path, [row(i, action=f"a_{i}") for i in range(12)])[0]
    assert first.endswith("discrete actions: a_0, a_1, a_2, a_3, a_4, a_5, a_6, a_7, a_8, a_9 and 2 more")


@pytest.mark.parametrize(
    ("known", "words"),
    [
        ([0.5, 0.5, 0.5], None),
        ([0.5, None, 0.5], "1 of 3 decisions without a propensity"),
        ([None] * 3, "no decision has a propensity"),
    ],
)
def test_missing_propensities_are_told(tmp_path, known, words):
    """One missing is enough that most estimates cannot be made."""
    lines = said(tmp_path, [row(i, propensity=one) for i, one in enumerate(known)])
    expected = [] if words is None else [f"{words}: estimates that weight the log need one for every decision"]
    assert [line for line in lines if "propensity" in line] == expected


def test_missing_densities_are_told(tmp_path):
    rows = [row(i, action=[0.5 * i, -1.0 * i], log_probability=None if i else -0.5) for i in range(3)]
    assert any(
        line.startswith("2 of 3 decisions without a log_probability (the logarithm of a density): estimates that")
        for line in said(tmp_path, rows)
    )


@pytest.mark.parametrize(
    ("numbers", "words"),
    [
        ([0, 1, 2, 3], None),
        ([0, 1, 3, 4, 7], "after 2 decisions, by 1 after 2: are rows missing (a split by rows, not by trajectories)?"),
        ([0, 1, 3], "after 1 decision, by 1 after 1: are rows missing"),
        ([0, 2, 4, 5], None),
        ([0, 3, 6, 9], None),
    ],
)
def test_rows_that_seem_to_be_missing_are_told(tmp_path, numbers, words):
    """Sequence numbers need not count by one, but where most do the others are suspicious."""
    lines = said(tmp_path, [row(number) for number in numbers])
    lines = [line for line in lines if line.startswith("the sequence_number grows by more than 1")]
    assert len(lines) == (words is not None) and (not words or words in lines[0])


def test_rows_are_not_missing_where_the_log_tells_the_time_to_the_next(tmp_path):
    rows = [row(number, time_diff=after) for number, after in ((0, 1), (1, 1), (2, 2), (4, 1))]
    assert not any("sequence_number grows" in line for line in said(tmp_path, rows))
