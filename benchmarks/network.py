"""What a network costs: time per PPO update between hosts that lie 0.1, 1 and 5 ms apart, against the least possible.

    python benchmarks/network.py                              # about half an hour
    python benchmarks/network.py --quick                      # a minute or two, for orders of magnitude
    python benchmarks/network.py --messages                   # a minute: messages alone, also on a busy machine
    python benchmarks/network.py --points points.json && lockstep report --predict points.json

Hosts are network namespaces with a relay between them that holds every frame (delay_line.py); the round trip is what a
TCP ping-pong measures there. Each host has its part of this machine's cores, each rank one thread. Needs root.
CartPole-v1, 16 environments x 128 steps, 4 epochs x 4 minibatches, 2x64 tanh.

The least possible is the time of the same ranks on one host, where messages pass through shared memory, and one way
through the network, half a round trip, for each message: sooner nobody can know what the others have. `plain` is the
same training with torch's all-reduce over all ranks for each message, as one writes it by hand.
"""

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median
from typing import Any

import measure
from delay_line import INTERFACE, DelayLine, missing

from lockstep.cli.report.load import seconds_per_update

PROMISED = 1.5
ROUND_TRIPS_S = (0.0, 0.1e-3, 1e-3, 5e-3)
LAYOUTS = ((2, 1), (2, 2), (4, 1))  # hosts, ranks of each
ALONE = (1, 2, 4)  # ranks on one host
ENVS = 16
OTHER_ENVS = (64, 256)  # tell the model what a call costs and what a row
STEPS, EPOCHS, MINIBATCHES = 128, 4, 4
LOGGED = 10  # updates between two lines of metrics.jsonl; those before the first do not count
LONGEST_S = 300.0


@dataclass(frozen=True, slots=True)
class Trial:
    """One kind of run. `round_trip_s` is what is aimed at."""

    hosts: int
    local: int
    num_envs: int = ENVS
    round_trip_s: float = 0.0
    scheme: str = "ours"

    def __str__(self) -> str:
        where = f"{self.hosts} x {self.local}, {self.round_trip_s * 1e3:g} ms" if self.hosts > 1 else f"{self.local}"
        return f"{where}, {self.num_envs} envs" + (", plain" if self.scheme == "plain" else "")


def trials(*, quick: bool) -> list[Trial]:
    """What is run, in turn."""
    layouts, round_trips = (LAYOUTS[:2], (0.0, 1e-3)) if quick else (LAYOUTS, ROUND_TRIPS_S)
    sizes = [(ranks, envs) for ranks in ALONE for envs in (ENVS, *OTHER_ENVS)]
    found = [Trial(1, ranks, envs) for ranks, envs in sizes if not quick or envs == ENVS or ranks == 1]
    for hosts, local in layouts:
        for round_trip in round_trips:
            found += [Trial(hosts, local, round_trip_s=round_trip, scheme=scheme) for scheme in ("ours", "plain")]
        found += [Trial(hosts, local, envs, 1e-3) for envs in (() if quick else OTHER_ENVS)]
    return sorted(found, key=lambda trial: trial.hosts * trial.local)  # what is compared, one soon after the other


def train_as_rank(run_dir: str, num_envs: int, updates: int, scheme: str) -> None:
    """Train as one rank; rank 0 also writes how many messages it sent."""
    import torch.distributed as dist

    from lockstep.algorithms.ppo import PPOConfig
    from lockstep.launch.train import exit_code, train
    from lockstep.run import Run
    from lockstep.torch.comm import Comm

    if scheme == "plain":

        def all_reduce(comm: Comm, rows: Any, tag: str = "sum_shards") -> Any:
            comm.num_messages[tag] += 1
            total = rows.sum(0)
            dist.all_reduce(total)
            return total

        Comm.sum_shards = all_reduce
    leave = Comm.__exit__

    def counted(comm: Comm, *error: Any) -> None:
        if comm.world.rank == 0:
            Path(run_dir, "messages.json").write_text(json.dumps(comm.num_messages))
        leave(comm, *error)

    Comm.__exit__ = counted
    rollout = num_envs * STEPS
    run = Run(
        task="CartPole-v1",
        device="cpu",
        num_envs=num_envs,
        total_steps=(LOGGED + updates) * rollout,
        log_every=LOGGED * rollout,
        check_every=1_000_000,  # proofs, evaluations and checkpoints send messages of their own
        evaluate_every=None,
        evaluate_episodes=4,
        checkpoint_every=None,
        stop_when_solved=False,
        algorithm=PPOConfig(num_steps=STEPS, num_epochs=EPOCHS, num_minibatches=MINIBATCHES),
    )
    sys.exit(exit_code(train(run, run_dir=run_dir)))


def send_as_rank(run_dir: str, calls: int) -> None:
    """Exchange gradients of 9 k parameters as one rank, nothing between two; rank 0 writes the mean seconds of one."""
    import torch

    from lockstep.torch.comm import Comm
    from lockstep.world import World

    torch.set_num_threads(1)
    world, row = World.from_environment(), torch.ones(1, 9_155)
    with Comm(world, device="cpu") as comm:
        for call in range(2 * calls):
            if call == calls:  # connections have found their speed
                start = time.perf_counter()
            comm.sum_shards(row, "gradients")
        took = (time.perf_counter() - start) / calls
    if world.rank == 0:
        Path(run_dir).mkdir()
        Path(run_dir, "message.json").write_text(json.dumps(took))
    sys.stdout.flush()
    os._exit(0)


def message_table(round_trips: Sequence[float] = (10e-3, 100e-3), calls: int = 50) -> str:
    """Messages alone: far apart, so that what else the machine does weighs little."""
    rows = []
    for hosts, local in LAYOUTS:
        for aim in round_trips:
            with DelayLine(hosts, aim / 2) as line:
                round_trip = line.round_trip_s(50)
                prefixes = [["ip", "netns", "exec", host.namespace] for host in line.hosts for _ in range(local)]
                with started(prefixes, Trial(hosts, local), line.hosts[0].address, {"calls": calls}) as run_dir:
                    took = json.loads((run_dir / "message.json").read_text())
            rows.append(
                [f"{hosts} x {local}", *(f"{s * 1e3:.2f}" for s in (round_trip, took)), f"{took / round_trip:.2f}"]
            )
    return measure.table(["hosts x ranks", "round trip, ms", "message, ms", "round trips"], rows)


def measured(trial: Trial, updates: int, base_s: float) -> dict[str, float]:
    """Seconds per update of one run, their parts, messages per update, and the round trip there.

    Args:
        trial: what to run.
        updates: how many count.
        base_s: round trip of the relay without any delay.
    """
    how = {"num_envs": trial.num_envs, "updates": updates, "scheme": trial.scheme}
    if trial.hosts == 1:
        with started([[]] * trial.local, trial, "127.0.0.1", how) as run_dir:
            return per_update(run_dir)
    with DelayLine(trial.hosts, max(trial.round_trip_s - base_s, 0.0) / 2) as line:
        round_trip = line.round_trip_s()
        prefixes = [["ip", "netns", "exec", host.namespace] for host in line.hosts for _ in range(trial.local)]
        with started(prefixes, trial, line.hosts[0].address, how) as run_dir:
            return {**per_update(run_dir), "round_trip_s": round_trip}


@contextmanager
def started(prefixes: list[list[str]], trial: Trial, address: str, how: Mapping[str, object]) -> Iterator[Path]:
    """The run directory of one rank for each prefix of a command, once all have ended well."""
    with tempfile.TemporaryDirectory() as folder:
        run_dir = Path(folder, "run")
        command = [sys.executable, __file__, "--rank", json.dumps({"run_dir": str(run_dir), **how})]
        common = {**os.environ, **measure.ONE_THREAD, "MASTER_ADDR": address, "MASTER_PORT": "29511"}
        common |= {"WORLD_SIZE": str(len(prefixes)), "LOCAL_WORLD_SIZE": str(trial.local)}
        common |= {"GLOO_SOCKET_IFNAME": INTERFACE} if trial.hosts > 1 else {}
        ranks: list[subprocess.Popen[bytes]] = []
        logs = [Path(folder, f"{rank}.log") for rank in range(len(prefixes))]
        try:
            for rank, (prefix, log) in enumerate(zip(prefixes, logs, strict=True)):
                who = {"RANK": rank, "LOCAL_RANK": rank % trial.local, "GROUP_RANK": rank // trial.local}
                mine = common | {name: str(value) for name, value in who.items()}
                with log.open("wb") as out, on_cores_of(rank // trial.local, trial.hosts):
                    process = subprocess.Popen([*prefix, *command], env=mine, stdout=out, stderr=out, process_group=0)
                ranks.append(process)
            until = time.monotonic() + LONGEST_S
            codes = [rank.wait(max(until - time.monotonic(), 0.1)) for rank in ranks]
        except subprocess.TimeoutExpired:
            codes = [1]
        finally:
            for rank in ranks:
                with suppress(ProcessLookupError):
                    os.killpg(rank.pid, signal.SIGKILL)
                rank.wait()
        if any(codes):
            sys.exit(f"{trial}: exit codes {codes}\n" + "\n".join(log.read_text()[-3000:] for log in logs))
        yield run_dir


@contextmanager
def on_cores_of(host: int, hosts: int) -> Iterator[None]:
    """What starts inside has this host's part of the machine's cores: hosts share none, as far as there are enough."""
    every = os.sched_getaffinity(0)
    mine = sorted(every)[host % len(every) :: hosts]
    os.sched_setaffinity(0, mine)
    try:
        yield
    finally:
        os.sched_setaffinity(0, every)


def per_update(run_dir: Path) -> dict[str, float]:
    """Seconds of an update and of its parts, once warm, evaluations and checkpoints apart; messages of an update."""
    seconds, parts, updates = seconds_per_update(run_dir)
    sent: Mapping[str, int] = json.loads((run_dir / "messages.json").read_text())
    return {
        "seconds": seconds,
        **dict(zip(("rollout_s", "learning_s", "messages_s"), parts, strict=True)),
        "messages": sum(sent.get(tag, 0) for tag in ("moments", "average_gradients")) / (updates + LOGGED),
        "num_bytes": (run_dir / "policy.safetensors").stat().st_size,
    }


def point(trial: Trial, middle: Mapping[str, float]) -> dict[str, Any]:
    """A measured layout as `lockstep report --predict` reads it."""
    return {
        "name": str(trial),
        "subject": "PPO on CartPole-v1",
        **{"ranks": trial.hosts * trial.local, "hosts": trial.hosts},
        "cores": len(os.sched_getaffinity(0)) / trial.hosts,  # all hosts are one machine
        **{"num_envs": trial.num_envs, "num_steps": STEPS, "num_epochs": EPOCHS, "num_minibatches": MINIBATCHES},
        **{name: value for name, value in middle.items() if name != "messages"},
    }


def row(trial: Trial, found: Mapping[Trial, list[dict[str, float]]]) -> list[object]:
    """A line of the table: medians, and ratios of what was measured in the same repetition."""
    ours, plain = (found[replace(trial, scheme=scheme)] for scheme in ("ours", "plain"))
    alone = [result["seconds"] for result in found[Trial(1, trial.hosts * trial.local)]]
    pairs = list(zip(alone, ours, strict=True))
    least = [seconds + result["messages"] * result["round_trip_s"] / 2 for seconds, result in pairs]
    arms = [alone, least, *([result["seconds"] for result in arm] for arm in (ours, plain))]
    middle = middle_of(ours)
    where = [f"{trial.hosts} x {trial.local}", f"{middle['round_trip_s'] * 1e3:.2f}", f"{middle['messages']:.1f}"]
    return [*where, *(f"{median(arm) * 1e3:.1f}" for arm in arms), *(measure.ratio(arm, least) for arm in arms[2:])]


def middle_of(results: list[dict[str, float]]) -> dict[str, float]:
    """The median of everything."""
    return {name: median(result[name] for result in results) for name in results[0]}


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repetitions", type=int, default=5)
    parser.add_argument("--updates", type=int, default=60, help="of each run, that count")
    parser.add_argument("--quick", action="store_true", help="one repetition, few updates, two layouts, 0 and 1 ms")
    parser.add_argument("--messages", action="store_true", help="instead: a message of gradients alone, 10 and 100 ms")
    parser.add_argument("--points", type=Path, help="write what was measured here, for lockstep report --predict")
    parser.add_argument("--rank", type=json.loads, help=argparse.SUPPRESS)  # this process is a rank
    args = parser.parse_args()
    if args.rank:
        (send_as_rank if "calls" in args.rank else train_as_rank)(**args.rank)
    if lacks := missing():
        sys.exit(f"benchmarks/network.py needs {lacks}")
    if args.messages:
        return print(f"{measure.machine()}\n\n{message_table()}")
    repetitions, updates = (1, 20) if args.quick else (args.repetitions, args.updates)
    with DelayLine(2, 0.0) as line:
        base_s = line.round_trip_s()
    found: dict[Trial, list[dict[str, float]]] = {trial: [] for trial in trials(quick=args.quick)}
    for i in range(repetitions):
        for trial, results in found.items():
            results.append(measured(trial, updates, base_s))
            shown = f"{results[-1]['seconds'] * 1e3:.2f} ms per update"
            print(f"[{i + 1}/{repetitions}] {trial}: {shown}", file=sys.stderr, flush=True)
    rows = [row(t, found) for t in found if t.hosts > 1 and t.scheme == "ours" and t.num_envs == ENVS]
    print(f"{measure.machine()}; {repetitions} repetitions of {updates} updates; milliseconds per update, median\n")
    arms = ["one host", "least possible", "ours", "plain", f"ours / least, at most {PROMISED}", "plain / least"]
    print(measure.table(["hosts x ranks", "round trip", "messages", *arms], rows))
    if args.points:
        kept = [point(trial, middle_of(results)) for trial, results in found.items() if trial.scheme == "ours"]
        args.points.write_text(json.dumps({"points": kept}, indent=1) + "\n")


if __name__ == "__main__":
    main()
