"""`lockstep train` in slow motion: as long as the file `$PACE` exists, each rollout takes its time. Numbers stay."""

import os
import runpy
import time
from pathlib import Path

from lockstep.experience.rollout import Collector
from lockstep.launch.child import die_with_launcher

SLOW_S = 0.5

if __name__ == "__main__":
    die_with_launcher()
    collect = Collector.collect

    def paced(collector):
        if Path(os.environ["PACE"]).exists():
            time.sleep(SLOW_S)
        return collect(collector)

    Collector.collect = paced
    runpy.run_module("lockstep.train", run_name="__main__", alter_sys=True)
