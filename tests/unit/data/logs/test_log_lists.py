"""Lists of possible actions, and columns with two names, that are wrong in a way of their own."""

import pytest

from lockstep.errors import ConfigError
from made_logs import row, table, write


def test_a_cell_that_is_no_json_says_what_a_list_is(tmp_path):
    path = tmp_path / "a.csv"
    path.write_text("mdp_id,sequence_number,state:0,action,reward,possible_actions\na,0,0.5,left,1,left;right\n")
    with pytest.raises(ConfigError, match=r"row 2: possible_actions: .*; it must be a list of names, .*, in JSON"):
        table(path)


@pytest.mark.parametrize("names", [None, ["left", "right"]])
def test_an_empty_name_of_a_possible_action_is_refused(tmp_path, names):
    """As an action it would be none, and so never taken."""
    rows = [row(possible_actions=["left"]), row(1, possible_actions=["left", ""])]
    with pytest.raises(ConfigError, match="row 2: possible_actions holds an empty name; leave it out of the list"):
        table(write(tmp_path / "a.jsonl", rows), actions=names)


def test_a_late_row_with_both_names_of_the_propensity_is_refused(tmp_path):
    rows = [row(i, propensity=0.5) for i in range(150)]
    rows[130]["action_probability"] = 0.25
    with pytest.raises(ConfigError, match="row 131: has both propensity and action_probability, which mean the same"):
        table(write(tmp_path / "a.jsonl", rows))
