"""Names of the columns of the schema, and a bound on values; imports no polars, which only readers need."""

MAPS = {"state_features": "state", "next_state_features": "next_state", "metrics": "metric"}
"""Columns that are maps, with the prefix of columns of single ids, such as `state:0`."""
ACTIONS = ("action", "next_action")
LISTS = ("possible_actions", "possible_next_actions")
NUMBERS = ("reward", "propensity", "log_probability", "time_diff")
FLAGS = ("terminated", "truncated")
REQUIRED = ("mdp_id", "sequence_number")
SCHEMA = (*REQUIRED, *MAPS, *ACTIONS, *LISTS, *NUMBERS, *FLAGS)
"""All columns."""
LOG_PROBABILITY_ROUNDING = 1e-6
"""The logarithm of a probability of 1 may be above 0 by this."""
