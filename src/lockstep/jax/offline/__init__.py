"""Learning from logged data: the algorithms, their batches and optimizer, and the scores that estimates need.

Begin with `train.py`, the loop, and `learner.py`, the base of the algorithms `dqn.py` and `iql.py`.
"""
