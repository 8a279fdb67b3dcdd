"""Trackers of tests: one that writes what it receives, and one whose disk is full."""

import json
import os
from pathlib import Path

FOLDER = Path(__file__).parent


class Recorder:
    """Appends the name and the process of each call to a file."""

    def start(self, run):
        self.file = Path(os.environ["TRACKED"])
        self.write("start", run.config["num_envs"])
        return "1"

    def write(self, *values):
        with self.file.open("a") as file:
            file.write(json.dumps([os.environ.get("RANK"), *values]) + "\n")

    def metrics(self, step, metrics):
        self.write("metrics", step, metrics["progress/updates"])

    def evaluation(self, step, returns, lengths):
        self.write("evaluation", step, len(returns))

    def file(self, path, step):
        self.write("file", step)

    def finish(self, summary):
        self.write("finish", summary["status"])


class FullDisk(Recorder):
    """Every write fails with ENOSPC, as the kernel reports it."""

    def write(self, *values):
        with open("/dev/full", "w") as file:
            file.write(json.dumps(values))
