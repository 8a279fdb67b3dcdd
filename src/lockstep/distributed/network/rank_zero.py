"""How rank 0 tells where its store is, and how the others find it: an address, a shared file, or torchrun's agent.

The store of torchrun's agent outlives the ranks, and what those of an earlier start left in it would end the next. So
the agent's store only holds where that of rank 0 is, as an `init_file` does.
"""

import contextlib
import json
import os
import socket
import time
from collections.abc import Callable
from pathlib import Path

from lockstep.distributed.network import init_file, interfaces
from lockstep.distributed.network.init_file import PublishedEndpoint
from lockstep.distributed.network.interfaces import (
    endpoint,
    is_local,
    is_loopback,
    reachable_addresses,
    resolve,
    towards,
)
from lockstep.distributed.network.membership_check import CompleteError, Store, check_membership
from lockstep.distributed.network.routes import several_hosts
from lockstep.distributed.network.stores import Kind, Met, lives, serve, visit
from lockstep.distributed.network.torchrun import Torchrun, around, loopback_cure, means_this_host
from lockstep.errors import ConfigError, PeerError
from lockstep.world import World

_FOUND_S = 20.0  # machines start and names appear within it, or they are mistaken
_POLL_S = 0.05
_NOTE = "lockstep/loopback"
_GONE = (OSError, RuntimeError)  # TimeoutError is an OSError


def uses_agent_store(world: World) -> bool:
    """Whether torchrun's agent holds a store at the address for all starts of its ranks."""
    return world.launcher == "torchrun" and os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True"


# -- rank 0 ------------------------------------------------------------------------------------------------------------


def host(kind: Kind, world: World) -> tuple[Met, Callable[[], None]]:
    """Open the store that this world meets at, and tell where it is; with what to do now and then while waiting."""
    bind, port, reported = _where_to_listen(world)
    try:
        listener = interfaces.listening_socket(bind, port, "MASTER_PORT")
    except ConfigError:
        if port:
            _tell_the_other(kind, world, bind or "127.0.0.1", "")
        raise
    port = listener.getsockname()[1]
    met = serve(kind, listener, bind, world.token)
    met.address = reported[0]
    if world.init_file:
        path = Path(world.init_file)
        alive = _alive(kind)
        place = init_file.publish(path, reported, port, met.nonce, alive=alive)
        return met, lambda: init_file.keep(path, place, alive=alive)
    if uses_agent_store(world):
        _tell_agent(kind, world, json.dumps({"addresses": reported, "port": port, "nonce": met.nonce}))
        return met, _look_for_note(kind, world)
    elif reported == _resolved(world) and not is_local(reported[0]):
        _check_that_it_is_here(kind, world, reported, met.nonce)
    return met, lambda: None


def _look_for_note(kind: Kind, world: World) -> Callable[[], None]:
    """What raises the cure if a node on another host has found out that `localhost` is not one place."""
    store: Store | None = None
    command = around() if several_hosts(world) and means_this_host(world.address) else None
    if command is not None:
        with contextlib.suppress(*_GONE):
            store = _rendezvous_store(kind, command)

    def look() -> None:
        if store is not None:
            _check_note(world, store)

    return look


def _check_note(world: World, store: Store) -> None:
    if several_hosts(world) and means_this_host(world.address) and store.check([_NOTE]):
        node, address = json.loads(store.get(_NOTE))
        raise loopback_cure(world, (node, address))


def leave_note(kind: Kind, command: Torchrun, text: str) -> None:
    """Tell the ranks of the main node."""
    store = _rendezvous_store(kind, command)
    if store is not None:
        store.set(_NOTE, text)


def _rendezvous_store(kind: Kind, command: Torchrun) -> Store | None:
    if command.endpoint is None:
        return None
    name, port = command.endpoint
    return kind.reach(resolve(name)[0], port)


def withdraw(world: World, met: Met) -> None:
    """All have come: nobody else shall read where this start was met."""
    if world.init_file and world.rank == 0:
        init_file.withdraw(Path(world.init_file), met.nonce)


def _where_to_listen(world: World) -> tuple[str, int, list[str]]:
    """At which own address ("" is all) and port, and which addresses the others come to."""
    if world.init_file and not several_hosts(world):
        return "127.0.0.1", 0, ["127.0.0.1"]
    everywhere = reachable_addresses() or ["127.0.0.1"]
    if world.init_file:
        return "", 0, everywhere
    agent = uses_agent_store(world)
    port = 0 if agent else world.port
    resolved = _resolved(world)
    own = [address for address in resolved if is_local(address)]
    real = [address for address in own if not is_loopback(address)]
    if several_hosts(world) and not means_this_host(world.address):
        if own and not real:  # a name that is loopback here, by the hosts file, may be a real address elsewhere
            return "", port, everywhere
        if not own and agent:
            real = [towards(resolved[0], world.port)]
        if len(real) > 1:  # which of them the others can reach, they know
            return "", port, real
        own = real
    return (own[0], port, own) if own else ("", port, resolved)


def _resolved(world: World) -> list[str]:
    """All addresses that rank 0 may have; some launchers list several."""
    return [address for name in world.address.split(",") for address in resolve(name)]


def _tell_the_other(kind: Kind, world: World, address: str, nonce: str) -> None:
    """If another rank 0 of our world listens at our port, its ranks hear of this one."""
    with contextlib.suppress(*_GONE):
        met = visit(kind, world, address, world.port)
        if met.nonce != nonce:
            with contextlib.suppress(CompleteError):
                check_membership(met.part(world.token, 0), world, time.monotonic() + _FOUND_S, _FOUND_S)


def _check_that_it_is_here(kind: Kind, world: World, reported: list[str], nonce: str) -> None:
    """An address that is not this machine's may forward to it, as that of a service does; or rank 0 is elsewhere."""
    until = time.monotonic() + _FOUND_S / 2
    while time.monotonic() < until:
        for address in reported:
            with contextlib.suppress(*_GONE):
                if visit(kind, world, address, world.port).nonce == nonce:
                    return
            _tell_the_other(kind, world, address, nonce)
        time.sleep(_POLL_S)
    raise ConfigError(
        f"MASTER_ADDR={world.address} ({', '.join(reported)}) is not an address of host {socket.gethostname()}, where "
        f"rank 0 runs; it has {', '.join(reachable_addresses()) or 'none but loopback'}; give all ranks the right one "
        "(--master-addr, MASTER_ADDR), or a shared --init-file"
    )


def _tell_agent(kind: Kind, world: World, text: str) -> None:
    """Write where rank 0 is into the store of its own agent, and into that of the rendezvous if there is one."""
    until = time.monotonic() + _FOUND_S
    while True:
        try:
            kind.reach(_resolved(world)[0], world.port).set(_key(world), text)
            break
        except _GONE as error:
            if time.monotonic() > until:
                raise PeerError(
                    f"rank 0 cannot reach the store of torchrun's agent at {world.address}:{world.port}: {error}"
                ) from error
            time.sleep(_POLL_S)
    command = around()
    if command is not None:
        with contextlib.suppress(*_GONE, ConfigError):
            store = _rendezvous_store(kind, command)
            if store is not None:
                store.set(_key(world), text)


def _key(world: World) -> str:
    return f"lockstep/place/{os.environ.get('TORCHELASTIC_RUN_ID', '')}/{world.token}"


def _alive(kind: Kind) -> Callable[[PublishedEndpoint], bool]:
    """Tells whether rank 0 of some world still answers where a file says so."""
    return lambda place: any(lives(kind, address, place.port, place.nonce) for address in place.addresses)


# -- the others --------------------------------------------------------------------------------------------------------


def join(kind: Kind, world: World, began: float, timeout_s: float, refused: set[str]) -> Met:
    """Find the store of rank 0.

    Args:
        kind: of store.
        world: ours.
        began: `time.monotonic()` when the search began.
        timeout_s: bound on it.
        refused: nonces of earlier starts.
    """
    if world.init_file:
        return _join_by_file(kind, world, began + timeout_s, refused)
    agents: dict[tuple[str, int], Store] = {}
    why, refusing = "rank 0 did not come", False
    while time.monotonic() < began + timeout_s:
        try:
            if uses_agent_store(world):
                return _join_by_agent(kind, world, agents, refused)
            return _join_any(kind, world, _resolved(world), world.port, refused)
        except _GONE as error:
            why, refusing = str(error).splitlines()[0], refusing or isinstance(error, ConnectionRefusedError)
        except ConfigError as error:
            if "resolved" not in str(error) or time.monotonic() > began + _FOUND_S:  # a name may appear late
                raise
        if time.monotonic() > began + _FOUND_S:
            _give_up_early(world, why, refusing, bool(refused))
        time.sleep(_POLL_S)
    raise PeerError(
        f"rank {world.rank} could not meet all {world.size} ranks at {world.address}:{world.port} within "
        f"startup_timeout_s={timeout_s:g}: {why}"
    )


def _give_up_early(world: World, why: str, refusing: bool, complete: bool) -> None:
    """What will not change is told now, not at the end of the time."""
    if several_hosts(world) and means_this_host(world.address):
        raise loopback_cure(world)
    if uses_agent_store(world):
        return
    if complete and not refusing:
        raise ConfigError(
            f"the {world.size} ranks that meet at {world.address}:{world.port} are complete without this process, "
            f"which is rank {world.rank}, too; give each process its own RANK, each run its own port"
        )
    if not refusing:
        raise ConfigError(
            f"rank 0 cannot be reached from host {socket.gethostname()} at MASTER_ADDR={world.address}, "
            f"MASTER_PORT={world.port}: {why}; check the address, and that no firewall closes the port"
        )


def _join_by_file(kind: Kind, world: World, until: float, refused: set[str]) -> Met:
    found: list[Met] = []

    def alive(place: PublishedEndpoint) -> bool:
        with contextlib.suppress(*_GONE):
            found[:] = [_join_any(kind, world, list(place.addresses), place.port, refused, place.nonce)]
            return True
        return False

    init_file.find(Path(world.init_file), until, refused, alive=alive)
    return found[0]


def _join_by_agent(kind: Kind, world: World, agents: dict[tuple[str, int], Store], refused: set[str]) -> Met:
    """Where rank 0 told its agent that it is.

    When rank 0 has moved to another node, the agents of the others go on naming the one before: there the store of
    the rendezvous knows better.
    """
    why: Exception = TimeoutError("rank 0 of this start has not told torchrun's agent where it is")
    command = around()
    rendezvous = command.endpoint if command is not None else None
    for host, port in filter(None, ((world.address, world.port), rendezvous)):
        try:
            if (host, port) not in agents:
                agents[host, port] = kind.reach(resolve(host)[0], port)
            _check_note(world, agents[host, port])
            if not agents[host, port].check([_key(world)]):
                continue
            place = json.loads(agents[host, port].get(_key(world)))
        except _GONE as error:
            agents.pop((host, port), None)
            why = error
            continue
        with contextlib.suppress(*_GONE):
            return _join_any(kind, world, place["addresses"], place["port"], refused, place["nonce"])
    raise why


def _join_any(
    kind: Kind, world: World, addresses: list[str], port: int, refused: set[str], nonce: str | None = None
) -> Met:
    errors: list[Exception] = []
    for address in addresses:
        try:
            met = visit(kind, world, address, port, nonce)
        except _GONE as error:
            errors.append(error)
            continue
        if met.nonce not in refused:
            return met
        errors.append(TimeoutError(f"at {endpoint(address, port)} ranks of an earlier start are met"))
    raise next((error for error in errors if isinstance(error, ConnectionRefusedError)), errors[0])
