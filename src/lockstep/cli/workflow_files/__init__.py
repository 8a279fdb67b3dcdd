"""Classic workflow files (JSON, YAML).

`files.py` reads them, `fields.py` and `learner.py` map every field to our settings. `preparing.py` prepares their
logs, on one machine or several (`nodes.py`).
"""
