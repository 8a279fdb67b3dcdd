"""Nodes that join a rendezvous, as threads; the fixtures that start them are in conftest.py."""

import contextlib
import socket
import threading
import time

from lockstep.errors import ConfigError
from lockstep.launch.nodes import Nodes
from lockstep.launch.rendezvous import rendezvous

OUTER_S = 60.0  # no test waits longer
IDENTITY = {"config": "one"}


class Node(threading.Thread):
    """A node that joins others and stays until `leave`."""

    def __init__(self, identity=None, **flags):
        super().__init__(daemon=True)
        self.nodes = Nodes(**{"minimum": 2, "maximum": 2, "join_timeout_s": OUTER_S, **flags})
        self.identity = identity or IDENTITY
        self.info = self.error = None
        self.decided, self.cancel, self.leaving = threading.Event(), threading.Event(), threading.Event()
        self.start()

    def run(self):
        try:
            with rendezvous(self.nodes, self.identity, cancelled=self.cancel.is_set) as self.info:
                self.decided.set()
                self.leaving.wait(OUTER_S)
        except BaseException as error:
            self.error = error
        self.decided.set()

    def leave(self):
        self.leaving.set()
        self.cancel.set()
        self.join(OUTER_S)
        assert not self.is_alive()

    def admitted(self):
        assert self.decided.wait(OUTER_S)
        assert self.error is None, self.error
        assert self.info is not None
        return self.info

    def refused(self, kind=ConfigError):
        assert self.decided.wait(OUTER_S)
        assert isinstance(self.error, kind), (self.error, self.info)
        return str(self.error)


def until(condition):
    deadline = time.monotonic() + OUTER_S
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def listens(address, port):
    with socket.socket() as probe:
        probe.settimeout(OUTER_S)
        return probe.connect_ex((address, port)) == 0


def serve(server, greeting):
    """Accept connections and send a greeting, or close them if it is None; until the socket is closed."""

    def run():
        kept = []
        with contextlib.suppress(OSError):
            while True:
                connection = server.accept()[0]
                if greeting is None:
                    connection.close()
                    continue
                kept.append(connection)
                connection.sendall(greeting)
        for connection in kept:
            connection.close()

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    return thread
