"""How long until the first update is done, in units of `import torch`.

    python benchmarks/startup.py

From the start of the process to the end of its first update (one rollout of 8 x 128 steps, 16 gradient steps): one
rank, eager, by the `lockstep` command. The yardstick is the whole of `python -c "import torch"` on the same machine.
"""

import argparse
import sys
import time
from statistics import median

import measure


def import_torch() -> float:
    """Seconds of a process that only imports torch."""
    start = time.monotonic()
    measure.call([sys.executable, "-c", "import torch"])
    return time.monotonic() - start


def first_update() -> float:
    """Seconds from process start to the first update."""
    return measure.train("CartPole-v1", {"num_envs": 8, "total_steps": 8 * 128})["startup_s"]


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repetitions", type=int, default=11)
    args = parser.parse_args()
    import_torch(), first_update()  # files into the page cache
    seconds = measure.in_turn({"import torch": import_torch, "first update": first_update}, args.repetitions)
    rows = [[name, f"{median(s):.2f}", measure.ratio(s, seconds["import torch"])] for name, s in seconds.items()]
    print(f"{measure.machine()}; {args.repetitions} repetitions\n")
    print(measure.table(["process start to", "seconds, median", "ratio, median (range)"], rows))


if __name__ == "__main__":
    main()
