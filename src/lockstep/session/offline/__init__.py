"""What surrounds learning from logged data, for both backends.

`session.py` is the context of the training loop, `policy_spec.py` describes a policy, `rows.py` checks the data,
`estimate.py` estimates the value of a policy, `evaluator.py` scores logged decisions for it, and `recording.py` logs
the decisions of one.
"""
