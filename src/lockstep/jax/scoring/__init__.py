"""Policies learned from logs: networks of named and of continuous actions, and how they act in a simulator.

Begin with `offline_policy.py`, which makes, saves and reads policies of any kind: `scoring_policy.py` scores named
actions, `actor_policy.py` gives continuous ones.
"""
