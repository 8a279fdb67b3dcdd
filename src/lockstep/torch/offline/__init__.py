"""Learning from logged data: the algorithms, their batches, and estimates of their policies.

Begin with `train.py`, the loop, and `learner.py`, the base of the algorithms; each of these has a file, as `dqn.py`.
"""
