"""Membership of nodes that may join and leave: torch's rendezvous, driven from here.

Imports torch, and so is itself imported only for `--nnodes MIN:MAX`. torch pickles the state of its rendezvous: every
state is signed with a key that the main node sends to the nodes it admits, so that no other process can make a node
unpickle its data.
"""

import contextlib
import hmac
import json
import logging
import os
import threading
import time
from collections.abc import Callable
from dataclasses import asdict
from datetime import timedelta
from typing import Any, Self

from torch.distributed import (
    TCPStore,  # pyright: ignore[reportPrivateImportUsage]
)
from torch.distributed.elastic.rendezvous.api import (
    RendezvousClosedError,
    RendezvousError,
    RendezvousInfo,
    RendezvousStateError,
    RendezvousTimeoutError,
)
from torch.distributed.elastic.rendezvous.c10d_rendezvous_backend import C10dRendezvousBackend
from torch.distributed.elastic.rendezvous.dynamic_rendezvous import (
    DynamicRendezvousHandler,
    RendezvousBackend,
    RendezvousTimeout,
    Token,
    _RendezvousExitOp,  # pyright: ignore[reportPrivateUsage]
)

from lockstep.errors import ConfigError, RunError
from lockstep.launch.attempt import Attempt, Member, address_of, node_order, placement_of, store_errors
from lockstep.launch.nodes import Nodes
from lockstep.launch.rank_environment import free_port
from lockstep.launch.rendezvous import Cancelled, NodeRendezvous
from lockstep.launch.rendezvous.join import STORE_TIMEOUT_S
from lockstep.system.bounded import bounded

_LAST_CALL_S = 10.0  # once enough nodes are there: how long to wait for more of them
_STOP_S = 1.0
_SIGNATURE_SIZE = 32  # bytes


class ElasticMembership:
    """The membership of nodes that may join and leave, seen from this one, as a context manager."""

    def __init__(self, nodes: Nodes, info: NodeRendezvous) -> None:
        self._nodes, self._info = nodes, info

    def __enter__(self) -> Self:
        """Connect to the main node's store; the main node opens it."""
        # A store that outlives the ranks has the keys of earlier attempts: with gloo, 6 of 7 restarts then fail.
        os.environ["TORCH_DISABLE_SHARE_RDZV_TCP_STORE"] = "1"
        for noisy in ("torch.distributed.elastic", "torch.distributed.elastic.rendezvous.dynamic_rendezvous"):
            logging.getLogger(noisy).setLevel(logging.ERROR)  # the launcher reports the same
        nodes, info = self._nodes, self._info
        listening: dict[str, Any] = {}
        if info.torch_listener is not None:
            listening["master_listen_fd"] = info.torch_listener.detach()
        with store_errors(RendezvousError):
            self._store: TCPStore = TCPStore(
                info.main_address,
                info.torch_port,
                is_master=info.main,
                timeout=timedelta(seconds=STORE_TIMEOUT_S),
                wait_for_workers=False,
                **listening,
            )
        join = timedelta(seconds=nodes.join_timeout_s)
        run_id = nodes.run_id or "lockstep"
        self._backend = _SignedBackend(C10dRendezvousBackend(self._store, run_id), info.key)
        self._handler: DynamicRendezvousHandler = DynamicRendezvousHandler.from_backend(
            run_id,
            self._store,
            self._backend,
            nodes.minimum,
            nodes.maximum,
            local_addr=info.address,
            timeout=RendezvousTimeout(join=join, last_call=timedelta(seconds=_LAST_CALL_S)),
        )
        return self

    def __exit__(self, *_: object) -> None:
        # Not shutdown(): that would end the rendezvous for the other nodes. If the link is cut, the heartbeat thread
        # waits for a reply; it ends with this process.
        with contextlib.suppress(RendezvousError, TimeoutError):
            bounded(self._handler._stop_heartbeats, _STOP_S)  # pyright: ignore[reportPrivateUsage]

    def join(self, failures: int, cancelled: Callable[[], bool]) -> Attempt:
        """Wait until enough nodes are there for another attempt, after `failures` failed ones.

        Polls `cancelled`; raises `Cancelled` once it is true.
        """
        info = self._next_rendezvous(cancelled)  # what torch calls a rank here is a node
        store, index, num_nodes = info.store, info.rank, info.world_size
        mine = Member.of(self._nodes, self._info, failures)
        with store_errors(RendezvousError):
            store.set(f"node/{index}", json.dumps(asdict(mine)))
            members = [Member(**json.loads(store.get(f"node/{i}"))) for i in range(num_nodes)]
            if node_order(members)[0] == index:  # rank 0 will be on this node
                address, restarts = address_of(members, index), self._store.add("lockstep/attempts", 1) - 1
                store.set("first", json.dumps({"address": address, "port": free_port(), "restarts": restarts}))
            first = json.loads(store.get("first"))
        placement = placement_of(
            members, index, address=str(first["address"]), port=int(first["port"]), token=self._info.key.hex()
        )
        by_rank = [members[i] for i in node_order(members)]
        failures = max(member.failures for member in members)
        return Attempt(store, placement, by_rank, failures, int(first["restarts"]))

    def pending_attempt(self) -> None:
        """None: an interrupted node has left the meeting, and the others begin without it."""

    def _next_rendezvous(self, cancelled: Callable[[], bool]) -> RendezvousInfo:
        def check() -> None:
            if cancelled():
                raise Cancelled

        try:
            return bounded(self._handler.next_rendezvous, meanwhile=check)
        except Cancelled:
            self._leave_meeting()
            raise
        except (RuntimeError, RendezvousError) as error:
            raise _explained(error) from error

    def _leave_meeting(self) -> None:
        """Take this node out of the next attempt: the others would begin it, and wait for this node."""

        def leave() -> None:
            self._backend.used_by = threading.get_ident()  # the call that was given up would join again
            executor = self._handler._op_executor  # pyright: ignore[reportPrivateUsage]
            executor.run(_RendezvousExitOp(), time.monotonic() + _STOP_S)

        with contextlib.suppress(RuntimeError, RendezvousError, TimeoutError):
            bounded(leave, _STOP_S)

    def changed(self) -> bool:
        """Whether a node waits to be admitted."""
        with store_errors(RendezvousError):
            return self._handler.num_nodes_waiting() > 0


def _explained(error: BaseException) -> Exception:
    if isinstance(error, RendezvousTimeoutError):
        return ConfigError("not enough nodes came within --join-timeout; start the others, or ask for fewer: --nnodes")
    if isinstance(error, RendezvousClosedError):
        return RunError("the run has ended on the other nodes")
    return RunError(f"the nodes could not agree who takes part: {error}")


class _SignedBackend(RendezvousBackend):
    """A backend whose states carry a signature.

    Attributes:
        used_by: the only thread that it answers from now on; None: all.
    """

    def __init__(self, backend: RendezvousBackend, key: bytes) -> None:
        self._backend, self._key = backend, key
        self.used_by: int | None = None

    @property
    def name(self) -> str:
        return self._backend.name

    def get_state(self) -> tuple[bytes, Token] | None:
        self._check_thread()
        if (current := self._backend.get_state()) is None:
            return None
        signed, token = current
        return self._verified(signed), token

    def set_state(self, state: bytes, token: Token | None = None) -> tuple[bytes, Token, bool] | None:
        self._check_thread()
        if (current := self._backend.set_state(self._signature(state) + state, token)) is None:
            return None
        signed, token, was_set = current
        return self._verified(signed), token, was_set

    def _check_thread(self) -> None:
        if self.used_by not in (None, threading.get_ident()):
            raise RendezvousStateError("this node leaves")

    def _signature(self, state: bytes) -> bytes:
        return hmac.digest(self._key, state, "sha256")

    def _verified(self, signed: bytes) -> bytes:
        """The state without its signature, which must be that of a node of this run."""
        signature, state = signed[:_SIGNATURE_SIZE], signed[_SIGNATURE_SIZE:]
        if not hmac.compare_digest(self._signature(state), signature):
            raise RendezvousStateError("the state of the rendezvous is not signed by a node of this run")
        return state
