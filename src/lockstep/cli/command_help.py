"""What each command of `lockstep` does, with an example and its page: the texts of `--help`."""

import argparse
import textwrap
from dataclasses import dataclass
from typing import Any

_WIDTH = 100
FAULTS = "kill, raise, exit, stall, collective, stop, diskfull, weight, nan, corrupt, launcher"
"""The kinds of faults of `lockstep chaos`, named here so that help imports nothing."""


@dataclass(frozen=True, slots=True)
class CommandHelp:
    """The help of one command."""

    line: str
    """In the list of commands."""
    description: str
    """One or two sentences at the top of its own help."""
    example: str
    page: str | None = None
    """A file of the repository; None: there is no more to say."""

    def parser_options(self, more: str = "") -> dict[str, Any]:
        """The options of `add_parser`; `more` stands before example and page."""
        page = "" if self.page is None else f"\npage: {self.page}"
        return {
            "help": self.line,
            "description": textwrap.fill(self.description, _WIDTH),
            "epilog": f"{more}example: {self.example}{page}",
            "formatter_class": argparse.RawDescriptionHelpFormatter,
        }


COMMANDS = {
    "train": CommandHelp(
        "train a task, a recipe or a config",
        "Train on any number of ranks, or resume a run. Without a launcher, --ranks N starts them; under torchrun, "
        "srun or mpirun, this process joins theirs.",
        "lockstep train CartPole-v1 --ranks 2 --set total_steps=200000",
        "docs/commands.md",
    ),
    "sweep": CommandHelp(
        "train with many settings and seeds, side by side; resumable",
        "Train every combination of the settings and seeds of a sweep file, by grid, random search or Optuna, as many "
        "runs at a time as this machine has room for, and print a table of scores.",
        "lockstep sweep my_sweep.yaml --dry-run",
        "docs/sweeps.md",
    ),
    "bench": CommandHelp(
        "compare the speed with other libraries on the same workloads",
        "Run the same workloads with Lockstep and other libraries, alternating, each in an environment of its own, and "
        "print the ratios.",
        "lockstep bench cartpole_ppo --only lockstep,sb3",
        "docs/bench.md",
    ),
    "scale": CommandHelp(
        "measure how much faster more ranks are, and where the loss goes",
        "Measure strong and weak scaling of a task on this machine: speed-up, efficiency, and the part of the time "
        "that is lost to compute, communication and waiting.",
        "lockstep scale cartpole --ranks 1,2",
        "docs/scale.md",
    ),
    "launch": CommandHelp(
        "start any script once per rank, on one or many machines",
        "Start a script once per rank with the variables of torchrun, on one or several machines. The first rank that "
        "fails ends all; --max-restarts restarts them.",
        "lockstep launch --nproc-per-node 2 my_script.py --lr 1e-3",
        "docs/launchers/lockstep.md",
    ),
    "evaluate": CommandHelp(
        "evaluate the policy of a run",
        "Play new episodes with the policy of a run, a checkpoint or a policy file, and print mean and standard "
        "deviation of the return.",
        "lockstep evaluate runs/NAME --episodes 100 --best",
        "docs/commands.md",
    ),
    "play": CommandHelp(
        "play a few episodes with the policy of a run; --video records one",
        "Play a few episodes with the policy of a run, a checkpoint or a policy file, and print their return.",
        "lockstep play runs/NAME --video",
        "docs/commands.md",
    ),
    "tasks": CommandHelp(
        "list the tasks that can run here, and what to install for others",
        "List the tasks that can run on this machine, by source, and what to install for those of other suites.",
        "lockstep tasks Ant",
        "docs/environments.md",
    ),
    "check": CommandHelp(
        "check an environment, before training",
        "Step an environment with random actions and list what would break or mislead training: one line per fault.",
        "lockstep check my_env.py:MyEnv",
        "docs/environments.md",
    ),
    "chaos": CommandHelp(
        "inject faults into a run, and report which it survives",
        "Train once without faults, then once per fault, and report how each was detected and what was lost.",
        "lockstep chaos cartpole --ranks 2 --faults kill,stall",
        "docs/guides/nothing-is-lost.md",
    ),
    "watch": CommandHelp(
        "a run in the terminal: curves, speed, phases per rank, ETA",
        "Show a run in the terminal while it trains: curves, speed, phases per rank, ETA. Changes no file.",
        "lockstep watch runs/NAME",
        "docs/watch.md",
    ),
    "runs": CommandHelp(
        "list runs: status, task, algorithm, return, age",
        "List the runs below some directories, the newest first: status, task, algorithm, ranks, steps, return, age.",
        "lockstep runs",
        "docs/watch.md",
    ),
    "report": CommandHelp(
        "compare runs; predict the speed with more ranks",
        "Print a table of runs grouped by their settings, write one web page about them (--html), or predict the speed "
        "with more ranks and hosts from measured runs (--predict).",
        "lockstep report runs --html report.html",
        "docs/report.md",
    ),
    "submit": CommandHelp(
        "write or submit the job that trains on a cluster",
        "Check a run as `lockstep train` does, then submit the job that trains it on a cluster, or print the job "
        "(--dry-run).",
        "lockstep submit cartpole --on slurm --nnodes 2 --dry-run",
        "docs/launchers/README.md",
    ),
    "recipe": CommandHelp(
        "list the recipes, or print one to edit",
        "List the recipes, which are functions that return a complete run; or print one as a Python file to edit.",
        "lockstep recipe cartpole > my_cartpole.py",
        "docs/commands.md",
    ),
    "offline": CommandHelp(
        "logged data: prepare it, learn from it, estimate policies' values from it",
        "Prepare a log of decisions, learn a policy from it, estimate from it what a policy is worth, or record one.",
        "lockstep offline prepare log.jsonl --out data && lockstep offline train data",
        "docs/logged-data.md",
    ),
    "export": CommandHelp(
        "a policy as a file that runs without Lockstep",
        "Write the policy of a run as one file that runs without Lockstep, preprocessing included, and compare it with "
        "the trained policy.",
        "lockstep export runs/NAME --format onnx",
        "docs/logged-data.md",
    ),
    "doctor": CommandHelp(
        "what this machine can do, and what is missing",
        "Show devices, backends, packages and network interfaces, measure an all-reduce, and name what is missing; "
        "with --nnodes on each machine, what their ranks would find before they train.",
        "lockstep doctor --ranks 2",
        "docs/installation.md",
    ),
    "completion": CommandHelp(
        "tab completion for your shell",
        "Print the script that completes commands, flags, recipes, tasks and runs in a shell.",
        'eval "$(lockstep completion bash)"',
        "docs/commands.md",
    ),
    "offline prepare": CommandHelp(
        "make a log ready to learn from",
        "Read logs (JSON lines, Parquet, CSV, Minari) in bounded memory, check and normalize them, and write them as "
        "prepared data.",
        "lockstep offline prepare log.jsonl --out data",
        "docs/logged-data.md",
    ),
    "offline train": CommandHelp(
        "learn from prepared data, or by a workflow file",
        "Learn a policy from prepared data, on any number of ranks, or do what a workflow file of ReAgent says.",
        "lockstep offline train data --ranks 2",
        "docs/logged-data.md",
    ),
    "offline evaluate": CommandHelp(
        "estimate a policy's value from a log (off-policy evaluation)",
        "Estimate from prepared data what the policy of a run is worth, with intervals, and recommend an estimate. "
        "Give rows with --data that the policy did not learn from.",
        "lockstep offline evaluate runs/NAME --data other_data",
        "docs/logged-data.md",
    ),
    "offline record": CommandHelp(
        "play a policy and log its decisions",
        "Play episodes by a policy, or at random, and log every decision with its propensity.",
        "lockstep offline record lockstep/Corridor-v0 --out log.jsonl --episodes 500",
        "docs/logged-data.md",
    ),
}
"""By command."""
