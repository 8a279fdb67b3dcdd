"""The run directory.

`run_dir.py` its files, `journal.py` what is written when, `checkpoint.py` and `checkpoint_writer.py` checkpoints.
"""
