"""The command line of torchrun that started this rank, and a corrected one where its host name means loopback.

torchrun sets MASTER_ADDR to the host name of one node. Where that name is `localhost`, each node looks for the others
on itself; only torchrun's own `--local-addr` helps.
"""

import ipaddress
import os
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import psutil

from lockstep.distributed.network.interfaces import is_local, reachable_addresses, resolve, towards
from lockstep.errors import ConfigError
from lockstep.system.processes import torchrun_agent
from lockstep.world import World

_MODULES = ("torch.distributed.run", "torch.distributed.launch")
_WITHOUT_VALUE = ("-m", "--module", "--standalone", "--no-python", "--run-path", "--virtual-local-rank", "--use-env")
_PORT = 29400  # torchrun's, where an endpoint names none
_UNKNOWN = "ADDRESS"  # placeholder for an address that this node cannot determine


@dataclass(frozen=True, slots=True)
class Torchrun:
    """A command line of torchrun."""

    words: tuple[str, ...]
    """The whole command line."""
    first: int
    """Index of torchrun's first own flag."""
    flags: Mapping[str, str]
    """torchrun's flags that have a value, spelled with hyphens."""

    @property
    def endpoint(self) -> tuple[str, int] | None:
        """Host and port of torchrun's rendezvous; None unless it is a c10d store."""
        host, _, port = self.flags.get("--rdzv-endpoint", "").rpartition(":")
        if self.flags.get("--rdzv-backend") != "c10d" or not (host or port):
            return None
        if not host or not port.isdecimal():
            host, port = self.flags["--rdzv-endpoint"], str(_PORT)
        return host.strip("[]"), int(port)

    def with_flags(self, changes: Mapping[str, str]) -> str:
        """The command with other values of flags; flags that it does not have are added in front."""
        words, changes = list(self.words), dict(changes)
        for position in range(self.first, len(words)):
            flag, equals, _ = words[position].partition("=")
            name = flag.replace("_", "-")
            if name not in changes or name not in self.flags:
                continue
            if equals:
                words[position] = f"{flag}={changes.pop(name)}"
            else:
                words[position + 1] = changes.pop(name)
        words[self.first : self.first] = [f"{name}={value}" for name, value in changes.items()]
        return shlex.join(words)


def torchrun_command(environment: Mapping[str, str] = os.environ) -> Torchrun | None:
    """The command line of the torchrun that started this rank, with flags that it took from variables; None if unknown.

    torchrun reads defaults from `PET_NNODES` and the like, as operators of Kubernetes set them; its ranks inherit them.
    """
    agent = torchrun_agent(environment)
    if agent is None:
        return None
    try:
        command = parse(psutil.Process(agent).cmdline())
    except psutil.Error:
        return None
    if command is None:
        return None
    names = {name: "--" + name.removeprefix("PET_").lower().replace("_", "-") for name in environment}
    defaults = {flag: environment[name] for name, flag in names.items() if name.startswith("PET_")}
    return replace(command, flags=defaults | dict(command.flags))


def parse(words: Sequence[str]) -> Torchrun | None:
    """Parse a command line; None if it is not torchrun's."""
    starts = [i for i, word in enumerate(words) if word in _MODULES or Path(word).name == "torchrun"]
    if not starts:
        return None
    position, flags = starts[0] + 1, dict[str, str]()
    while position < len(words) and words[position].startswith("-"):  # up to the script and its flags
        flag, equals, value = words[position].partition("=")
        name = flag.replace("_", "-") if flag.startswith("--") else flag
        position += 1
        if name in _WITHOUT_VALUE:
            continue
        if not equals and position < len(words):
            value = words[position]
            position += 1
        flags[name] = value
    return Torchrun(tuple(words), starts[0] + 1, flags)


def means_this_host(name: str) -> bool:
    """Whether a host name or address is loopback on every machine, as `localhost` is and `127.0.0.1`."""
    try:
        return ipaddress.ip_address(name).is_loopback
    except ValueError:
        return name == "localhost" or name.startswith(("localhost.", "localhost4", "localhost6", "ip6-l"))


def is_main_node(command: Torchrun) -> bool:
    """Whether torchrun's rendezvous is on this host, as far as the command shows."""
    return command.endpoint is None or any(is_local(address) for address in resolve(command.endpoint[0]))


def address_of_this_node(command: Torchrun) -> str:
    """This host's address towards the main node; on the main node, the one that others most likely use."""
    if not is_main_node(command) and command.endpoint is not None:
        return towards(resolve(command.endpoint[0])[0], command.endpoint[1])
    return next(iter(reachable_addresses()), _UNKNOWN)


def loopback_error(world: World, other: tuple[str, str] | None = None) -> ConfigError:
    """The error for ranks on several hosts that each look for rank 0 on their own host.

    `other`: node rank and address of another node that reported them.
    """
    what = (
        f"MASTER_ADDR={world.address} is loopback: on each host it means that host, and only {world.local_size} of the "
        f"{world.size} ranks are on this one"
    )
    command = torchrun_command()
    if command is None or command.endpoint is None:
        here = ", ".join(reachable_addresses()) or "none but loopback"
        return ConfigError(f"{what}; set it to the address of rank 0's host on all ranks (this host has {here})")
    known = dict([other] if other else [])
    main, mine = is_main_node(command), address_of_this_node(command)
    node = command.flags.get("--node-rank", "0" if main else "1")
    known[node] = mine
    if not main:
        known.setdefault("0", resolve(command.endpoint[0])[0])
    port = command.endpoint[1]
    lines: list[str] = []
    for index in range(_num_nodes(command, world)):
        rank = str(index)
        changes = {"--local-addr": known.get(rank, _UNKNOWN)}
        if rank != node:
            host = "localhost" if rank == "0" else known.get("0", _UNKNOWN)
            changes["--rdzv-endpoint"] = f"{host}:{port}"
            if "--node-rank" in command.flags:
                changes["--node-rank"] = rank
        lines.append(f"  node {rank}: {command.with_flags(changes)}")
    unknown = f"\n  ({_UNKNOWN}: that node's own address, as the others reach it)" if _UNKNOWN in "".join(lines) else ""
    return ConfigError(
        f"{what}, because torchrun takes the name of a host, and here that is {world.address}; "
        "start each node so:\n\n" + "\n".join(lines) + unknown
    )


def _num_nodes(command: Torchrun, world: World) -> int:
    text = command.flags.get("--nnodes", "").rpartition(":")[2]
    return int(text) if text.isdecimal() else -(-world.size // world.local_size)
