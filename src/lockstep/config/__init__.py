"""Settings: conversion, validation and the fields that all runs share.

`settings.py` converts configs from and to YAML and `--set`, `run_base.py` has the fields of all runs, `env.py` those of
environments. `renamed.py` suggests our name for a setting of another library (`synonyms.py`).
"""
