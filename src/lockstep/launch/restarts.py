"""Ranks that a launcher started again find the run that they trained before.

torchrun starts the same command anew after a failure and whenever nodes come or go, and so does our own launcher. No
name says which run that command began: rendezvous ids are copied from documentation, and a count of restarts differs
between nodes. So each node keeps a memo: a small file that belongs to the launcher's process on that node and means
nothing without it. The ranks tell each other what their memos say, and nodes that are new follow.
"""

import json
import os
import secrets
import socket
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, cast

from lockstep.errors import ConfigError
from lockstep.record.partial_files import written_at
from lockstep.record.run_dir import RUN_FILE, write_atomically
from lockstep.run import AnyRun
from lockstep.session.resume import Resumption, go_on
from lockstep.system.processes import TORCHRUN, identity, private_folder, torchrun_agent
from lockstep.world import World

MEMO_VARIABLE = "LOCKSTEP_MEMO"
_SEEN_S = 5.0  # how long another node may need to see what rank 0's node wrote to a shared disk
_LATEST = Path("checkpoints", "LATEST")

Gather = Callable[[Any, str], list[Any]]
"""JSON-able values of all ranks, in rank order; collective."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Trained:
    """What a memo says of one run."""

    run_dir: str
    """Absolute."""
    starts: int
    """How often ranks began to train it."""
    checkpoint: str | None = None
    """The one that the user named to begin from: it need not be the newest, as long as this run has written none."""
    latest: int | None = None
    """When `LATEST` was written, as of the start that this was noted in."""

    @property
    def source(self) -> Path:
        """What to resume: the run, or the checkpoint that the user named while nothing newer is there."""
        untouched = self.checkpoint is not None and written_at(Path(self.run_dir) / _LATEST) == self.latest
        return Path(self.checkpoint) if self.checkpoint and untouched else Path(self.run_dir)


@dataclass(frozen=True, slots=True)
class StartRecord:
    """The memo of this node's launcher, whether it has been written or not.

    Attributes:
        path: the file.
        number: which run of this process is meant, from 0: a script may train several, one after another.
    """

    path: Path
    number: int = 0

    def read(self) -> Trained | None:
        """What an earlier start of these ranks wrote; None if there was none, or it did not come that far."""
        found = dict(enumerate(_noted(self.path))).get(self.number)
        return Trained(**found) if found else None

    def write(self, trained: Trained) -> None:
        """Note which run is trained, for the next start; other runs of this process stay noted."""
        noted = dict(enumerate(_noted(self.path))) | {self.number: asdict(trained)}
        listed = [noted.get(number) for number in range(max(noted) + 1)]  # a node that came late knows no earlier ones
        write_atomically(self.path, json.dumps(listed) + "\n")


@dataclass(frozen=True, slots=True)
class Restart:
    """A start that is not the first of its run."""

    resumption: Resumption
    restarts: int
    """How often ranks began to train this run before."""


def restarts_ranks(world: World, environment: Mapping[str, str] = os.environ) -> bool:
    """Whether the launcher of this rank may start the same command again by itself."""
    return world.launcher != "none" and (MEMO_VARIABLE in environment or TORCHRUN in environment)


def find_start_record(number: int, environment: Mapping[str, str] = os.environ) -> StartRecord:
    """The memo of the launcher that started this rank.

    Args:
        number: how many runs this process has trained before.
        environment: the variables of this process.

    Raises:
        ConfigError: the launcher cannot be told, or there is no private place for a memo.
    """
    if given := environment.get(MEMO_VARIABLE):
        return StartRecord(Path(given), number)
    launcher = torchrun_agent(environment)
    if launcher is None:
        raise ConfigError("the process of the launcher cannot be found in /proc")
    return StartRecord(private_folder() / f"{identity(launcher)}.json", number)


def new_start_record() -> Path:
    """A place for the memo of a launch by this process, for `LOCKSTEP_MEMO` of the ranks of all its starts.

    Remove the file when the launch ends. If this process is killed, somebody's next start does.
    """
    return private_folder() / f"{identity(os.getpid())}.{secrets.token_hex(4)}.json"


def again(memo: StartRecord | None, run: AnyRun, world: World, gather: Gather) -> Restart | None:
    """What this start goes on with, the same on all ranks; None if it is the first. Collective.

    Args:
        memo: of this node's launcher, if it can have one.
        run: the config of this start.
        world: who takes part.
        gather: tells all ranks.

    Raises:
        ConfigError: nodes trained different runs before, a node does not see the run, or the config contradicts it.
    """
    found = memo.read() if memo is not None else None
    where = f"node {world.node_rank} ({socket.gethostname()})"
    gathered = cast("list[dict[str, Any]]", gather({"where": where, "trained": found and asdict(found)}, "elastic"))
    trained = agreed({one["where"]: Trained(**one["trained"]) for one in gathered if one["trained"]})
    if trained is None:
        return None
    _refuse(gather("" if _sees(Path(trained.run_dir)) else where, "elastic"), trained.run_dir)
    # Rank 0 decides what there is to go on with: others may see a shared disk as it was a moment ago.
    mine = _plan(trained, run) if world.rank == 0 else {}
    plan: dict[str, Any] = gather(mine, "elastic")[0]
    if "error" in plan:
        raise ConfigError(plan["error"])
    exact = Path(plan["exact"]) if plan["exact"] else None
    run_dir, size, shards, step = Path(trained.run_dir), plan["world_size"], plan["num_shards"], plan["step"]
    if shards is not None and shards < world.size:
        raise ConfigError(
            f"num_shards={shards} of the run in {run_dir} is fewer than the {world.size} ranks of this start; a run "
            f"whose launcher may add ranks begins with --set num_shards={world.size} or more"
        )
    return Restart(Resumption(run, run_dir, size, shards, step, exact, plan["notes"]), trained.starts)


def agreed(known: Mapping[str, Trained]) -> Trained | None:
    """What the nodes trained before, by node; raises `ConfigError` if that was not one run."""
    by_run = {trained.run_dir: where for where, trained in known.items()}
    if len(by_run) > 1:
        listed = ", ".join(f"{where} {run_dir}" for run_dir, where in sorted(by_run.items(), key=lambda item: item[1]))
        raise ConfigError(
            f"the nodes of this start trained different runs before: {listed}; end the launchers of all nodes and "
            "start them anew with --resume of the run to go on with"
        )
    return max(known.values(), key=lambda trained: trained.starts, default=None)


def note(memo: StartRecord, run_dir: Path, earlier: Restart | None, resume: Path | None) -> None:
    """Note on this node, once, that ranks begin to train. A disk that is full costs a warning.

    Args:
        memo: of this node's launcher.
        run_dir: of the run.
        earlier: the starts before, if this is not the first.
        resume: what the user said to resume.
    """
    chosen = earlier.resumption.exact if earlier is not None else resume
    exact = str(chosen.absolute()) if chosen is not None and chosen.name.startswith("step_") else None
    latest = written_at(run_dir / _LATEST)
    starts = 1 + (earlier.restarts if earlier is not None else 0)
    try:
        memo.write(Trained(run_dir=str(run_dir.absolute()), starts=starts, checkpoint=exact, latest=latest))
    except OSError as error:
        warn(f"{memo.path} cannot be written ({error.strerror})")


def warn(problem: str) -> None:
    """Say, on the node that has the problem, what it costs."""
    print(f"lockstep: warning: {problem}: a restart of all nodes would begin a new run", file=sys.stderr, flush=True)


def _plan(trained: Trained, run: AnyRun) -> dict[str, Any]:
    """What rank 0 finds, for the others."""
    try:
        found = go_on(trained.source, run)
    except ConfigError as error:
        return {"error": str(error)}
    exact = str(found.exact) if found.exact is not None else None
    counts = {"world_size": found.world_size, "num_shards": found.num_shards, "step": found.step}
    return {"exact": exact, **counts, "notes": found.notes}


def _sees(run_dir: Path) -> bool:
    until = time.monotonic() + _SEEN_S
    while not (run_dir / RUN_FILE).is_file():
        if time.monotonic() > until:
            return False
        time.sleep(0.1)
        with suppress(OSError):
            os.listdir(run_dir.parent)  # NFS remembers what was not there until somebody lists the directory
    return True


def _refuse(blind: Sequence[str], run_dir: str) -> None:
    nodes = list(dict.fromkeys(filter(None, blind)))
    if nodes:
        raise ConfigError(
            f"{', '.join(nodes)} cannot see {run_dir}/{RUN_FILE}, the run to go on with; ranks that are started again "
            "on several nodes need a --run-dir on a disk that all of them see"
        )


def _noted(path: Path) -> list[dict[str, Any] | None]:
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return []
