"""Send a run to experiment trackers: Weights & Biases, MLflow, or classes of the user's.

`interface.py` is what a tracker implements, `wandb_tracker.py` and `mlflow_tracker.py` do, `background.py` calls a
tracker from a thread so that it cannot slow or end the run, `open.py` finds the trackers that a run names.
"""
