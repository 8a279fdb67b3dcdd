"""The run directory, and experiment trackers.

`run_dir.py` its files, `journal.py` what is written when, `checkpoint.py` and `checkpoint_writer.py` checkpoints,
`text.py` numbers as the user reads them.
`trackers/` sends a run to Weights & Biases, MLflow, or a class of the user's.
"""
