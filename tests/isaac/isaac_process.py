"""Python in a process of its own that can start Isaac Lab: there is one simulator in a process."""

import os
import subprocess
import sys
from pathlib import Path


def run_python(folder, *words):
    """Run `python WORDS` in `folder`, as one process without ranks; returns what it printed."""
    clean = {name: value for name, value in os.environ.items() if name not in ("RANK", "WORLD_SIZE")}
    assets = clean.get("ISAACSIM_ASSET_ROOT", str(Path(sys.prefix) / "assets"))
    environment = clean | {"OMP_NUM_THREADS": "1", "ISAACSIM_ASSET_ROOT": assets}
    done = subprocess.run(
        [sys.executable, *words], cwd=folder, env=environment, capture_output=True, text=True, check=False, timeout=900
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout
