"""Learning from logged data, measured: each part is a script of its own, run one after another; Markdown tables.

    python benchmarks/offline.py                       all parts; an hour on two cores
    python benchmarks/offline.py prepare scaling       some of them

prepare: rows per second and memory of preparing 10 million rows, beside the same timeline in pandas (pip install it)
reader: rows per second of a reader beside those of the learner that it feeds
scaling: rows per second of two ranks beside one, at equal global batch
learning: the return of policies learned from the log of a mediocre one
estimators: how often the truth lies in the interval of each estimator, and the errors
"""

import argparse
import subprocess
import sys
from pathlib import Path

PARTS = ("prepare", "reader", "scaling", "learning", "estimators")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("parts", nargs="*", metavar="PART", help="which (default: all)")
    chosen = parser.parse_args().parts or PARTS
    for part in chosen:
        if part not in PARTS:
            parser.error(f"unknown part {part}; there are {', '.join(PARTS)}")
    for part in chosen:
        print(f"\n## {part}\n", flush=True)
        done = subprocess.run([sys.executable, str(Path(__file__).with_name(f"offline_{part}.py"))])
        if done.returncode:
            sys.exit(f"{part} ended with code {done.returncode}")


if __name__ == "__main__":
    main()
