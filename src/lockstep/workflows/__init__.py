"""Doors for people who come from other libraries: `python -m lockstep.workflows.NAME`."""
