"""Settings: `settings.py` types, YAML and `--set`; `run_base.py` what all run configs share.

`renamed.py` answers the words of other libraries (`synonyms.py`) with ours.
"""
