"""Checks that an environment does what training expects; each fault is one line that names the method.

Begin with `task.py`, which checks the environments of a task; `before_run.py` is the short check before a run.
"""
