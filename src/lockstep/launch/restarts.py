"""Find the run to continue when a launcher restarts its ranks.

torchrun runs the same command again after a failure and whenever nodes join or leave, and so does our own launcher. No
name identifies the run: rendezvous ids are copied from documentation, and restart counts differ between nodes. So each
node keeps a start record: a small file that belongs to the launcher's process on that node. The ranks gather their
records; new nodes take those of the others.
"""

import json
import os
import secrets
import socket
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from functools import cache
from pathlib import Path
from typing import Any, cast

from lockstep.distributed.agreement import Gather
from lockstep.errors import ConfigError
from lockstep.record.latest import latest_written, source_of_restart
from lockstep.record.run_dir import RUN_FILE
from lockstep.run import AnyRun
from lockstep.session.resume import Resumption, load_resumption
from lockstep.system.files import write_atomically
from lockstep.system.processes import (
    TORCHRUN,
    identity,
    private_folder,
    runs_here,
    started_process,
    torchrun_agent,
)
from lockstep.world import World

START_RECORD_VARIABLE = "LOCKSTEP_START_RECORD"
_SEEN_S = 5.0  # until another node sees what rank 0's node wrote to a shared disk


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainedRun:
    """A run in a start record."""

    run_dir: str
    """Absolute."""
    starts: int
    """Number of starts so far, the first included."""
    checkpoint: str | None = None
    """The checkpoint to start from that the user named, if any; used until the run has written one of its own."""
    latest: int | None = None
    """`latest_written` when this was recorded."""
    started: str = ""
    """The `identity` of what the launcher started; while it runs, a later training within it is another run."""

    @property
    def source(self) -> Path:
        """What to resume."""
        named = None if self.checkpoint is None else Path(self.checkpoint)
        return source_of_restart(Path(self.run_dir), named, self.latest)


@dataclass(frozen=True, slots=True)
class StartRecord:
    """The start record of this node's launcher; its file need not exist yet.

    `number` is the index of the run in what the launcher started, from 0: a script may train several. `started` is the
    `identity` of that process.
    """

    path: Path
    number: int = 0
    started: str = field(default="", compare=False)

    def read(self) -> TrainedRun | None:
        """The run that an earlier start of these ranks recorded; None if there is none."""
        record = dict(enumerate(_read_records(self.path))).get(self.number)
        return TrainedRun(**record) if record else None

    def write(self, trained: TrainedRun) -> None:
        """Record the run for the next start; other runs of this script are kept."""
        records = dict(enumerate(_read_records(self.path))) | {self.number: asdict(trained)}
        listed = [records.get(number) for number in range(max(records) + 1)]  # a new node has no earlier runs
        write_atomically(self.path, json.dumps(listed) + "\n")


@dataclass(frozen=True, slots=True)
class Restart:
    """A start that is not the first of its run."""

    resumption: Resumption
    restarts: int
    """Number of earlier starts of this run."""


def may_restart_ranks(world: World, environment: Mapping[str, str] = os.environ) -> bool:
    """Whether the launcher of this rank may restart the same command by itself."""
    return world.launcher != "none" and (START_RECORD_VARIABLE in environment or TORCHRUN in environment)


def find_start_record(number: int, environment: Mapping[str, str] = os.environ) -> StartRecord:
    """The start record of the launcher that started this rank; `number` of runs that this process trained before.

    Raises:
        ConfigError: the launcher cannot be identified, or there is no private folder for a record.
    """
    if given := environment.get(START_RECORD_VARIABLE):
        path, variable = Path(given), START_RECORD_VARIABLE
    elif (launcher := torchrun_agent(environment)) is not None:
        path, variable = private_folder() / f"{identity(launcher)}.json", TORCHRUN
    else:
        raise ConfigError("the process of the launcher cannot be found in /proc")
    return StartRecord(path, _runs_before(path) + number, identity(started_process(variable, environment)))


@cache  # as this process found them: its own runs, which rank 0 adds, are counted by their numbers
def _runs_before(path: Path) -> int:
    """How many runs other processes of this start have trained, as in a shell script with several commands."""
    records = _read_records(path)
    return next(
        (n for n, record in enumerate(records) if not runs_here((record or {}).get("started", ""))), len(records)
    )


def recorded_run(path: Path) -> Path | None:
    """The directory of the first run in a start record, once a rank has begun it."""
    trained = StartRecord(path).read()
    return None if trained is None else Path(trained.run_dir)


def new_start_record() -> Path:
    """The path of a start record for a launch by this process, for `LOCKSTEP_START_RECORD` of its ranks.

    Remove the file when the launch ends. If this process is killed, a later start removes it.
    """
    return private_folder() / f"{identity(os.getpid())}.{secrets.token_hex(4)}.json"


def find_restart(record: StartRecord | None, run: AnyRun, world: World, gather: Gather) -> Restart | None:
    """The run to continue, the same on all ranks; None if this is the first start. Collective.

    `record` is that of this node's launcher, if it has one; `gather` gathers from all ranks.

    Raises:
        ConfigError: nodes trained different runs before, a node does not see the run, or the config contradicts it.
    """
    own = record.read() if record is not None else None
    where = f"node {world.node_rank} ({socket.gethostname()})"
    gathered = cast("list[dict[str, Any]]", gather({"where": where, "trained": own and asdict(own)}, "elastic"))
    trained = only_run({one["where"]: TrainedRun(**one["trained"]) for one in gathered if one["trained"]})
    if trained is None:
        return None
    _check_visible(gather("" if _is_visible(Path(trained.run_dir)) else where, "elastic"), trained.run_dir)
    # Rank 0 chooses the checkpoint: other nodes may see an older state of a shared disk.
    local = _find_checkpoint(trained, run) if world.rank == 0 else {}
    plan: dict[str, Any] = gather(local, "elastic")[0]
    if "error" in plan:
        raise ConfigError(plan["error"])
    exact = Path(plan["exact"]) if plan["exact"] else None
    run_dir, size, shards, step = Path(trained.run_dir), plan["world_size"], plan["num_shards"], plan["step"]
    if shards is not None and shards < world.size:
        raise ConfigError(
            f"num_shards={shards} of the run in {run_dir} is fewer than the {world.size} ranks of this start; a run "
            f"whose launcher may add ranks begins with --set num_shards={world.size} or more"
        )
    source = Path(plan["init_from"]) if plan["init_from"] else None
    return Restart(Resumption(run, run_dir, size, shards, step, exact, plan["notes"], source), trained.starts)


def only_run(known: Mapping[str, TrainedRun]) -> TrainedRun | None:
    """The run that the nodes trained before, given by node; `ConfigError` if there are several."""
    by_run = {trained.run_dir: where for where, trained in known.items()}
    if len(by_run) > 1:
        listed = ", ".join(f"{where} {run_dir}" for run_dir, where in sorted(by_run.items(), key=lambda item: item[1]))
        raise ConfigError(
            f"the nodes of this start trained different runs before: {listed}; end the launchers of all nodes and "
            "start them anew with --resume of the run to continue"
        )
    return max(known.values(), key=lambda trained: trained.starts, default=None)


def record_start(record: StartRecord, run_dir: Path, earlier: Restart | None, resume: Path | None) -> None:
    """Record on this node that training starts. A full disk is only a warning.

    `earlier` describes the earlier starts, if this is not the first; `resume` is the user's `--resume`.
    """
    chosen = earlier.resumption.exact if earlier is not None else resume
    exact = str(chosen.absolute()) if chosen is not None and chosen.name.startswith("step_") else None
    latest = latest_written(run_dir)
    starts = 1 + (earlier.restarts if earlier is not None else 0)
    try:
        record.write(
            TrainedRun(
                run_dir=str(run_dir.absolute()), starts=starts, checkpoint=exact, latest=latest, started=record.started
            )
        )
    except OSError as error:
        warn_restart(f"{record.path} cannot be written ({error.strerror})")


def warn_restart(problem: str) -> None:
    """Print the problem and its consequence on this node."""
    print(f"lockstep: warning: {problem}: a restart of all nodes would begin a new run", file=sys.stderr, flush=True)


def _find_checkpoint(trained: TrainedRun, run: AnyRun) -> dict[str, Any]:
    """Find the checkpoint on rank 0, as values to broadcast."""
    try:
        resumption = load_resumption(trained.source, run)
    except ConfigError as error:
        return {"error": str(error)}
    exact = str(resumption.exact) if resumption.exact is not None else None
    counts = {"world_size": resumption.world_size, "num_shards": resumption.num_shards, "step": resumption.step}
    source = str(resumption.init_from) if resumption.init_from is not None else None
    return {"exact": exact, **counts, "notes": resumption.notes, "init_from": source}


def _is_visible(run_dir: Path) -> bool:
    until = time.monotonic() + _SEEN_S
    while not (run_dir / RUN_FILE).is_file():
        if time.monotonic() > until:
            return False
        time.sleep(0.1)
        with suppress(OSError):
            os.listdir(run_dir.parent)  # listing the directory drops what NFS caches about missing files
    return True


def _check_visible(hosts: Sequence[str], run_dir: str) -> None:
    nodes = list(dict.fromkeys(filter(None, hosts)))
    if nodes:
        raise ConfigError(
            f"{', '.join(nodes)} cannot see {run_dir}/{RUN_FILE}, the run to continue; ranks that are started again "
            "on several nodes need a --run-dir on a disk that all of them see"
        )


def _read_records(path: Path) -> list[dict[str, Any] | None]:
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return []
