"""Checks and measurements before the first step.

`compare.py` checks that the identities of all ranks (`identity.py`) agree, `latency.py` measures the network, and
`cost_model.py` predicts the speed on other numbers of ranks and hosts. `setting_paths.py` makes the paths of a config
absolute, or reduces them to names, which are equal on all hosts.
"""
