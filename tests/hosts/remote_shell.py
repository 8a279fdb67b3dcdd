"""What ssh does, without keys: run a command on another host of the test's network, pass on its input and its output.

`remote_shell.py serve` is the daemon of a host; `remote_shell.py [options] HOST COMMAND...` is the client, known there
as `ssh`.
"""

import contextlib
import json
import os
import socket
import socketserver
import subprocess
import sys
import threading
from typing import IO

PORT = 22
_TAKES_A_VALUE = ("-o", "-p", "-i", "-l", "-F", "-S")


class Session(socketserver.StreamRequestHandler):
    """One command; its input ends when the client's does, and when the client is gone."""

    def handle(self) -> None:
        command = json.loads(self.rfile.readline())
        process = subprocess.Popen(
            ["sh", "-c", command], stdin=subprocess.PIPE, stdout=self.connection, stderr=self.connection
        )
        threading.Thread(target=self._pass_on, args=(process.stdin,), daemon=True).start()
        code = process.wait()
        with contextlib.suppress(OSError):  # nobody listens any more
            self.connection.sendall(b"\0%d\n" % code)

    def _pass_on(self, to: IO[bytes]) -> None:
        with contextlib.suppress(OSError, ValueError), to:
            while received := self.rfile.read1():
                to.write(received)
                to.flush()


class Daemon(socketserver.ThreadingTCPServer):
    """Serves any number of commands at once."""

    allow_reuse_address = True
    daemon_threads = True


def pass_on(connection: socket.socket) -> None:
    """Our standard input, and its end."""
    with contextlib.suppress(OSError):
        while typed := os.read(0, 4096):
            connection.sendall(typed)
        connection.shutdown(socket.SHUT_WR)


def client(arguments: list[str]) -> int:
    words = list(arguments)
    while words and words[0].startswith("-"):
        option = words.pop(0)
        if option in _TAKES_A_VALUE:
            words.pop(0)
    host = words.pop(0).rpartition("@")[2]
    if words and words[0] == "--":
        words.pop(0)
    with socket.create_connection((host, PORT), timeout=20) as connection:
        connection.settimeout(None)
        connection.sendall(json.dumps(" ".join(words)).encode() + b"\n")
        threading.Thread(target=pass_on, args=(connection,), daemon=True).start()
        output = b""
        while received := connection.recv(65536):
            output += received
            text, mark, code = output.partition(b"\0")
            sys.stdout.buffer.write(text)
            sys.stdout.buffer.flush()
            output = mark + code
            if code.endswith(b"\n"):
                return int(code) % 256
    print(f"ssh: {host} hung up", file=sys.stderr)
    return 255


if __name__ == "__main__":
    if sys.argv[1:] == ["serve"]:
        with Daemon(("", PORT), Session) as daemon:
            print("serving", flush=True)
            daemon.serve_forever()
    sys.stdout.flush()
    os._exit(client(sys.argv[1:]))
