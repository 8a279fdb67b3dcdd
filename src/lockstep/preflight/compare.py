"""Compare versions, config and code of all ranks before the first step, and measure the network between hosts.

Every rank names those that differ before anything is written, and a rank of this host that does not answer. On one host
this takes one small message; between hosts, clocks and the network are measured too, for about a second.
"""

import json
import os
import sys
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from lockstep.config.settings import leaves
from lockstep.distributed.comm import Comm
from lockstep.distributed.watch import Observed, Watch
from lockstep.errors import ConfigError, RunError
from lockstep.preflight.cost_model import Layout
from lockstep.preflight.identity import VERSIONS, differences, format_ranks, identity, user_code
from lockstep.preflight.latency import Network, Summing, clock_skews, measure_network
from lockstep.preflight.setting_paths import with_portable_paths
from lockstep.record.journal import Journal
from lockstep.run import AnyRun, dump, to_dict
from lockstep.system.cores import processor, usable_cores
from lockstep.system.files import write_atomically

FILE = "preflight.json"
TAG = "preflight"
Flags = Mapping[str, str]
"""Flags of the command beside the config, with what they ask for."""
NO_FLAGS: Flags = {}
_SKEW_S = 1.0
_NAMED_HOSTS = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class Host:
    """The ranks of one machine."""

    host: str
    ranks: list[int]
    cores: int
    device: str
    processor: str
    interface: str | None
    """The interface of gloo's messages to other hosts, if set."""
    clock_skew_s: float = 0.0
    """Its clock minus that of rank 0's host."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Forecast:
    """The predicted speed of a world of several hosts, as numbers and text."""

    num_parameters: int
    messages_per_update: float
    steps_per_second: float
    one_host_steps_per_second: float
    line: str
    advice: str | None
    """The remedy if one host alone would be faster."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Framework:
    """The framework's part of the measurements."""

    device: str
    """`cpu`, or the name of the GPU."""
    summing: Summing
    """Sums over all ranks, on this rank's device."""


@dataclass(slots=True, kw_only=True)
class Preflight:
    """The results, equal on all ranks except for the forecast, which only rank 0 has."""

    rank: int
    world_size: int
    hosts: list[Host]
    versions: dict[str, str]
    network: Network | None = None
    forecast: Forecast | None = None
    warnings: list[str] = field(default_factory=list[str])
    notes: list[str] = field(default_factory=list[str])

    @property
    def clock_skew_s(self) -> float:
        """The largest, with its sign."""
        return max((host.clock_skew_s for host in self.hosts), key=abs)

    def report(self, journal: Journal) -> None:
        """On rank 0, write `preflight.json` to the run directory and print the line, notes and warnings."""
        if self.rank:
            return
        journal.write_or_warn(lambda: self.write(journal.path / FILE))
        for line in filter(None, (self.line(), *self.notes)):
            journal.say(line)
        for warning in self.warnings:
            journal.warn(warning)

    def line(self) -> str:
        """Layout, network and prediction; empty on one host."""
        if self.network is None or len(self.hosts) == 1:
            return ""
        listed = [f"{format_ranks([f'rank {rank}' for rank in host.ranks])} on {host.host}" for host in self.hosts]
        more = f", {len(listed) - _NAMED_HOSTS} hosts more" if len(listed) > _NAMED_HOSTS else ""
        text = (
            f"{self.world_size} ranks on {len(self.hosts)} hosts ({', '.join(listed[:_NAMED_HOSTS])}{more}); "
            f"{self.network}"
        )
        return f"{text}; {self.forecast.line}" if self.forecast else text

    def to_dict(self) -> dict[str, Any]:
        """The content of `preflight.json`."""
        prediction = self.forecast
        return {
            "world_size": self.world_size,
            "num_hosts": len(self.hosts),
            "hosts": [asdict(host) for host in self.hosts],
            "versions": self.versions,
            "clock_skew_s": self.clock_skew_s,
            **(self.network.to_dict() if self.network else {"small": None, "large": None}),
            "num_parameters": prediction.num_parameters if prediction else None,
            "messages_per_update": prediction.messages_per_update if prediction else None,
            "predicted_steps_per_second": prediction.steps_per_second if prediction else None,
            "predicted_one_host_steps_per_second": prediction.one_host_steps_per_second if prediction else None,
            "warnings": self.warnings,
        }

    def write(self, path: Path) -> None:
        """Write the results as JSON. Raises `RunError` if the file cannot be written."""
        try:
            write_atomically(path, json.dumps(self.to_dict(), indent=2) + "\n")
        except OSError as error:
            raise RunError(f"{path} could not be written ({error.strerror})") from error


def start_flags(*, resumed: Path | None, initialized: bool, profile: int | None) -> Flags:
    """The flags that must agree, since they change what a rank does.

    Of a run to resume the name counts: machines may have it in different places. Any policy will do on ranks other
    than 0, which take that of rank 0.
    """
    given = {
        "--resume": None if resumed is None else resumed.name,
        "--init-from": "a policy" if initialized else None,
        "--profile": None if profile is None else str(profile),
    }
    return {name: value for name, value in given.items() if value is not None}


def preflight(
    comm: Comm, run: AnyRun, framework: Framework, *, flags: Flags = NO_FLAGS, measure: bool | None = None
) -> Preflight:
    """Compare all ranks, and measure the network between their hosts; *collective*.

    Args:
        comm: of all ranks.
        run: the config.
        framework: what is measured with.
        flags: those of `start_flags`, compared as the config is.
        measure: whether to measure the network; default: if there are several hosts.

    Raises:
        ConfigError: on all ranks, naming those that differ in versions, config, flags or code.
    """
    if comm.world.size == 1:
        return _compare(comm, run, framework, flags, measure=False)
    bound = min(run.timeout_s, run.startup_timeout_s)
    watch = Watch(comm.observe, _stalled, lambda: None, timeout_s=bound, startup_timeout_s=bound)
    try:
        return _compare(comm, run, framework, flags, measure=measure)
    finally:
        watch.close()


def _stalled(_: Observed, report: str) -> None:
    print(f"lockstep: error: {report}", file=sys.stderr, flush=True)


def _compare(comm: Comm, run: AnyRun, framework: Framework, flags: Flags, *, measure: bool | None) -> Preflight:
    world = comm.world
    portable = with_portable_paths(run)
    config = dump(portable) + json.dumps(flags, sort_keys=True)
    own = identity(config, user_code(run.user_code), run.ml_framework) | {
        "node": world.rank - world.local_rank,
        "local_size": world.local_size,
        "cores": usable_cores(),
        "device": framework.device,
        "processor": processor(),
        "interface": os.environ.get("GLOO_SOCKET_IFNAME"),
    }
    identities: list[dict[str, Any]] = on_nodes(comm.gather_object(own, TAG))
    if any(one["config"] != identities[0]["config"] for one in identities):
        values = {name: str(value) for name, value in {**leaves(to_dict(portable)), **flags}.items()}
        gathered: list[Any] = comm.gather_object(values, TAG)
        identities = [one | {"settings": settings} for one, settings in zip(identities, gathered, strict=True)]
    if error := differences(labelled(identities)):
        raise ConfigError(error if world.local_rank == 0 else error.partition("\n\n")[0])
    several = world.local_size < world.size
    skews = clock_skews(comm, TAG) if several else [0.0] * world.size
    found = Preflight(
        rank=world.rank,
        world_size=world.size,
        hosts=_hosts(identities, skews),
        versions={name: identities[0][name] for name in VERSIONS if name in identities[0]},
    )
    if several if measure is None else measure:
        found.network = measure_network(comm, framework.summing, len(found.hosts), TAG)
    found.warnings = host_warnings(found, pinned=world.pinned)
    return found


def add_forecast(found: Preflight, forecast: Callable[[Layout, float], Forecast | str]) -> None:
    """Predict the speed of several hosts, on rank 0; the other ranks wait in the next collective.

    `forecast` gets the layout and the seconds of a small sum over all ranks; it may return the reason why there is
    none.
    """
    if found.rank or found.network is None or len(found.hosts) == 1:
        return
    cores = min(host.cores for host in found.hosts)
    layout = Layout(ranks=found.world_size, hosts=len(found.hosts), cores=cores, bandwidth=found.network.bytes_per_s)
    prediction = forecast(layout, found.network.small.seconds)
    if isinstance(prediction, str):
        found.notes.append(prediction)
        return
    found.forecast = prediction
    if prediction.advice:
        found.warnings.append(prediction.advice)


def on_nodes(identities: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """The identities with the node of each: its first rank.

    Launchers that place ranks in turn (`srun --distribution=cyclic`, `mpirun --map-by node`) give no blocks of ranks:
    then ranks of equal host names are a node.
    """
    block_sizes = Counter(one["node"] for one in identities)
    if all(block_sizes[one["node"]] == one["local_size"] for one in identities):
        return list(identities)
    first: dict[str, int] = {}
    for rank, one in enumerate(identities):
        first.setdefault(one["host"], rank)
    return [one | {"node": first[one["host"]]} for one in identities]


def labelled(identities: Sequence[Mapping[str, Any]]) -> dict[str, Mapping[str, Any]]:
    """The identities by rank; with the host if there are several."""
    nodes = {one["node"]: one["host"] for one in identities}
    if len(nodes) == 1:
        return {f"rank {rank}": one for rank, one in enumerate(identities)}
    names = _names(nodes)
    return {f"rank {rank} ({names[one['node']]})": one for rank, one in enumerate(identities)}


def host_warnings(found: Preflight, *, pinned: bool) -> list[str]:
    """Warnings about these hosts, one line each."""
    warnings: list[str] = []
    for host in found.hosts:
        if abs(host.clock_skew_s) > _SKEW_S:
            way = "ahead of" if host.clock_skew_s > 0 else "behind"
            warnings.append(
                f"the clock of {host.host} is {abs(host.clock_skew_s):.1f} s {way} that of {found.hosts[0].host}: "
                "times in logs do not compare; let NTP set both"
            )
    for what, kinds in (
        ("devices", {host.device: host.host for host in found.hosts}),
        ("processors", {host.processor: host.host for host in found.hosts}),
    ):
        if len(kinds) < 2 or (what == "processors" and (not pinned or "cpu" not in {h.device for h in found.hosts})):
            continue
        named = ", ".join(f"{kind} on {name}" for kind, name in kinds.items())
        effect = "equal bits are promised for one kind of hardware only" if pinned else "the slowest decides"
        warnings.append(f"different {what} ({named}): {effect}")
    return warnings


def _hosts(identities: Sequence[Mapping[str, Any]], skews: Sequence[float]) -> list[Host]:
    names = _names({one["node"]: one["host"] for one in identities})
    found: list[Host] = []
    for node, name in names.items():
        ranks = [rank for rank, one in enumerate(identities) if one["node"] == node]
        first = identities[ranks[0]]
        devices = sorted({str(identities[rank]["device"]) for rank in ranks})
        found.append(
            Host(
                host=name,
                ranks=ranks,
                cores=first["cores"],
                device=" and ".join(devices),
                processor=first["processor"],
                interface=first["interface"],
                clock_skew_s=min((skews[rank] for rank in ranks), key=abs),
            )
        )
    return found


def _names(nodes: Mapping[int, str]) -> dict[int, str]:
    """A name for each node, by its first rank: its host's, numbered where several have the same."""
    every, ordered = list(nodes.values()), sorted(nodes)
    return {
        node: nodes[node] if every.count(nodes[node]) == 1 else f"node {index} of {nodes[node]}"
        for index, node in enumerate(ordered)
    }
