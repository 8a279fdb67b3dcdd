"""Off-policy estimates of a policy from sums over groups of logged trajectories, with intervals and a verdict.

Begin with `estimates.py`, which makes all of them; the estimators are in `importance.py` and `magic.py`, and the
sums that they work on in `trajectories.py`.
"""
