"""How rank 0 publishes where its store is, and how other ranks find it: an address, a shared file, torchrun's agent.

The store of torchrun's agent outlives the ranks, and keys that an earlier start left there would break the next one. So
the agent's store only holds the address of rank 0's own, as an init file does.
"""

import contextlib
import json
import os
import socket
import time
from collections.abc import Callable, Sequence
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
from lockstep.distributed.network.membership_check import CompleteError, check_membership
from lockstep.distributed.network.rank_store import RankStore, StoreBackend, connect, is_alive, serve
from lockstep.distributed.network.routes import several_hosts
from lockstep.distributed.network.store import Store
from lockstep.distributed.network.torchrun import Torchrun, loopback_error, means_this_host, torchrun_command
from lockstep.errors import ConfigError, PeerError
from lockstep.world import World

_PATIENCE_S = 20.0  # machines start, and names resolve, within it; later it is a mistake
_POLL_S = 0.05
_LOOPBACK_NOTE = "lockstep/loopback"
_UNREACHABLE = (OSError, RuntimeError)  # TimeoutError is an OSError


def uses_agent_store(world: World) -> bool:
    """Whether torchrun's agent serves a store at the address, for all starts of its ranks."""
    return world.launcher == "torchrun" and os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True"


def host(backend: StoreBackend, world: World) -> tuple[RankStore, Callable[[], None]]:
    """Serve the store of this world and publish where; also returns what to call now and then while waiting."""
    bind, port, addresses = _where_to_listen(world)
    try:
        listener = interfaces.listening_socket(bind, port, "MASTER_PORT")
    except ConfigError:
        if port:
            _report_to_other_rank_0(backend, world, interfaces.here(bind), "")
        raise
    port = listener.getsockname()[1]
    opened = serve(backend, listener, bind, world.token)
    opened.address = addresses[0]
    if world.init_file:
        path = Path(world.init_file)
        alive = _is_alive_with(backend)
        published = init_file.publish(path, addresses, port, opened.nonce, alive=alive)
        return opened, lambda: init_file.keep(path, published, alive=alive)
    if uses_agent_store(world):
        _publish_at_agent(backend, world, json.dumps({"addresses": addresses, "port": port, "nonce": opened.nonce}))
        return opened, _loopback_note_check(backend, world)
    if addresses == _resolved(world) and not is_local(addresses[0]):
        _check_that_it_is_here(backend, world, addresses, opened.nonce)
    return opened, lambda: None


def _loopback_note_check(backend: StoreBackend, world: World) -> Callable[[], None]:
    """A check that raises once a node on another host has reported that `localhost` is not the same host there."""
    store: Store | None = None
    command = torchrun_command() if several_hosts(world) and means_this_host(world.address) else None
    if command is not None:
        with contextlib.suppress(*_UNREACHABLE):
            store = _rendezvous_store(backend, command)

    def check() -> None:
        if store is not None:
            _check_loopback_note(world, store)

    return check


def _check_loopback_note(world: World, store: Store) -> None:
    if several_hosts(world) and means_this_host(world.address) and store.check([_LOOPBACK_NOTE]):
        node, address = json.loads(store.get(_LOOPBACK_NOTE))
        raise loopback_error(world, (node, address))


def leave_loopback_note(backend: StoreBackend, command: Torchrun, text: str) -> None:
    """Report to the ranks of the main node that this node is another host."""
    store = _rendezvous_store(backend, command)
    if store is not None:
        store.set(_LOOPBACK_NOTE, text)


def _rendezvous_store(backend: StoreBackend, command: Torchrun) -> Store | None:
    if command.endpoint is None:
        return None
    name, port = command.endpoint
    return backend.connect(resolve(name)[0], port)


def withdraw(world: World, opened: RankStore) -> None:
    """Remove the init file once all ranks have come: no later start must find this one."""
    if world.init_file and world.rank == 0:
        init_file.withdraw(Path(world.init_file), opened.nonce)


def _where_to_listen(world: World) -> tuple[str, int, list[str]]:
    """Own address to bind ("" and "::" are all) and port, and the addresses that other ranks connect to."""
    if world.init_file and not several_hosts(world):
        return "127.0.0.1", 0, ["127.0.0.1"]
    reachable = reachable_addresses() or ["127.0.0.1"]
    if world.init_file:
        return _every_interface(reachable), 0, reachable
    agent = uses_agent_store(world)
    port = 0 if agent else world.port
    resolved = _resolved(world)
    own = [address for address in resolved if is_local(address)]
    real = [address for address in own if not is_loopback(address)]
    if several_hosts(world) and not means_this_host(world.address):
        if own and not real:  # the hosts file may make a name loopback here that is a real address elsewhere
            return _every_interface(reachable), port, reachable
        if not own and agent:
            real = [towards(resolved[0], world.port)]
        if len(real) > 1:  # which of them can be reached depends on the other host
            return _every_interface(real), port, real
        own = real
    return (own[0], port, own) if own else (_every_interface(resolved), port, resolved)


def _every_interface(published: Sequence[str]) -> str:
    """What binds all own addresses: those of IPv6 too, if others may connect to one and this machine has IPv6."""
    return "::" if any(":" in address for address in published) and is_local("::") else ""


def _resolved(world: World) -> list[str]:
    """All addresses that rank 0 may have; some launchers list several."""
    return [address for name in world.address.split(",") for address in resolve(name)]


def _report_to_other_rank_0(backend: StoreBackend, world: World, address: str, nonce: str) -> None:
    """If another rank 0 of our world listens at our port, make the membership check fail there, too."""
    with contextlib.suppress(*_UNREACHABLE):
        other = connect(backend, world, address, world.port)
        if other.nonce != nonce:
            with contextlib.suppress(CompleteError):
                deadline = time.monotonic() + _PATIENCE_S
                check_membership(other.for_rendezvous(world.token, 0), world, deadline, _PATIENCE_S)


def _check_that_it_is_here(backend: StoreBackend, world: World, addresses: list[str], nonce: str) -> None:
    """Check that an address which is not this machine's leads here, as that of a Kubernetes service does."""
    deadline = time.monotonic() + _PATIENCE_S / 2
    while time.monotonic() < deadline:
        for address in addresses:
            with contextlib.suppress(*_UNREACHABLE):
                if connect(backend, world, address, world.port).nonce == nonce:
                    return
            _report_to_other_rank_0(backend, world, address, nonce)
        time.sleep(_POLL_S)
    raise ConfigError(
        f"MASTER_ADDR={world.address} ({', '.join(addresses)}) is not an address of host {socket.gethostname()}, where "
        f"rank 0 runs; it has {', '.join(reachable_addresses()) or 'none but loopback'}; give all ranks the right one "
        "(--master-addr, MASTER_ADDR), or a shared --init-file"
    )


def _publish_at_agent(backend: StoreBackend, world: World, text: str) -> None:
    """Write the address of rank 0's store into that of its own agent, and into that of torchrun's rendezvous."""
    deadline = time.monotonic() + _PATIENCE_S
    while True:
        try:
            backend.connect(_resolved(world)[0], world.port).set(_agent_key(world), text)
            break
        except _UNREACHABLE as error:
            if time.monotonic() > deadline:
                raise PeerError(
                    f"rank 0 cannot reach the store of torchrun's agent at {world.address}:{world.port}: {error}"
                ) from error
            time.sleep(_POLL_S)
    command = torchrun_command()
    if command is not None:
        with contextlib.suppress(*_UNREACHABLE, ConfigError):
            store = _rendezvous_store(backend, command)
            if store is not None:
                store.set(_agent_key(world), text)


def _agent_key(world: World) -> str:
    return f"lockstep/place/{os.environ.get('TORCHELASTIC_RUN_ID', '')}/{world.token}"


def _is_alive_with(backend: StoreBackend) -> Callable[[PublishedEndpoint], bool]:
    """Whether the rank 0 that published an endpoint still serves its store there."""

    def alive(published: PublishedEndpoint) -> bool:
        return any(is_alive(backend, address, published.port, published.nonce) for address in published.addresses)

    return alive


def find(backend: StoreBackend, world: World, began: float, timeout_s: float, refused: set[str]) -> RankStore:
    """Connect to the store of rank 0 as soon as it exists, within `timeout_s` of `began` (`time.monotonic()`).

    `refused`: nonces of earlier starts.
    """
    if world.init_file:
        return _find_by_file(backend, world, began + timeout_s, refused)
    agents: dict[tuple[str, int], Store] = {}
    reason, port_closed = "rank 0 did not come", False
    comes_late = "KUBERNETES_SERVICE_HOST" in os.environ  # a pod's name resolves only once the pod is scheduled
    while time.monotonic() < began + timeout_s:
        try:
            if uses_agent_store(world):
                return _find_by_agent(backend, world, agents, refused)
            return _connect_to_any(backend, world, _resolved(world), world.port, refused)
        except _UNREACHABLE as error:
            reason = str(error).splitlines()[0]
            port_closed = port_closed or isinstance(error, ConnectionRefusedError)
        except ConfigError as error:
            impatient = not comes_late and time.monotonic() > began + _PATIENCE_S
            if "resolved" not in str(error) or impatient:  # a name may resolve late
                raise
            reason = str(error)
        if time.monotonic() > began + _PATIENCE_S:
            _fail_early(world, reason, may_come=port_closed or comes_late, complete=bool(refused) and not port_closed)
        time.sleep(_POLL_S)
    raise PeerError(
        f"rank {world.rank} could not meet all {world.size} ranks at {world.address}:{world.port} within "
        f"startup_timeout_s={timeout_s:g}: {reason}"
    )


def _fail_early(world: World, reason: str, *, may_come: bool, complete: bool) -> None:
    """Raise for what waiting does not change.

    `may_come`: a rank 0 that starts late may yet be reached, as at a closed port; `complete`: the ranks that meet there
    are complete without this process.
    """
    if several_hosts(world) and means_this_host(world.address):
        raise loopback_error(world)
    if uses_agent_store(world):
        return
    if complete:
        raise ConfigError(
            f"the {world.size} ranks that meet at {world.address}:{world.port} are complete without this process, "
            f"which is rank {world.rank}, too; give each process its own RANK, each run its own port"
        )
    if not may_come:
        raise ConfigError(
            f"rank 0 cannot be reached from host {socket.gethostname()} at MASTER_ADDR={world.address}, "
            f"MASTER_PORT={world.port}: {reason}; check the address, and that no firewall closes the port"
        )


def _find_by_file(backend: StoreBackend, world: World, deadline: float, refused: set[str]) -> RankStore:
    connected: list[RankStore] = []

    def alive(published: PublishedEndpoint) -> bool:
        with contextlib.suppress(*_UNREACHABLE):
            addresses = list(published.addresses)
            connected[:] = [_connect_to_any(backend, world, addresses, published.port, refused, published.nonce)]
            return True
        return False

    init_file.find(Path(world.init_file), deadline, refused, alive=alive)
    return connected[0]


def _find_by_agent(
    backend: StoreBackend, world: World, agents: dict[tuple[str, int], Store], refused: set[str]
) -> RankStore:
    """Connect to where rank 0 has published its store at its agent.

    When rank 0 has moved to another node, the agents of other nodes still name the previous one; the store of
    torchrun's rendezvous then has the right one.
    """
    reason: Exception = TimeoutError("rank 0 of this start has not told torchrun's agent where it is")
    command = torchrun_command()
    rendezvous = command.endpoint if command is not None else None
    for name, port in filter(None, ((world.address, world.port), rendezvous)):
        try:
            if (name, port) not in agents:
                agents[name, port] = backend.connect(resolve(name)[0], port)
            _check_loopback_note(world, agents[name, port])
            if not agents[name, port].check([_agent_key(world)]):
                continue
            published = json.loads(agents[name, port].get(_agent_key(world)))
        except _UNREACHABLE as error:
            agents.pop((name, port), None)
            reason = error
            continue
        with contextlib.suppress(*_UNREACHABLE):
            return _connect_to_any(
                backend, world, published["addresses"], published["port"], refused, published["nonce"]
            )
    raise reason


def _connect_to_any(
    backend: StoreBackend, world: World, addresses: list[str], port: int, refused: set[str], nonce: str | None = None
) -> RankStore:
    errors: list[Exception] = []
    for address in addresses:
        try:
            opened = connect(backend, world, address, port, nonce)
        except _UNREACHABLE as error:
            errors.append(error)
            continue
        if opened.nonce not in refused:
            return opened
        errors.append(TimeoutError(f"at {endpoint(address, port)} ranks of an earlier start are met"))
    raise next((error for error in errors if isinstance(error, ConnectionRefusedError)), errors[0])
