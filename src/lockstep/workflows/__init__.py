"""Entry points for classic workflow files: `python -m lockstep.workflows.NAME`."""
