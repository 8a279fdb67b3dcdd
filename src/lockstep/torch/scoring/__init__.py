"""Policies learned from logs: networks that score named actions or candidates, and their preprocessing.

Begin with `offline_policy.py`, which makes, saves and reads policies of any kind: `policy.py` scores actions,
`actor_policy.py` gives continuous ones.
"""
