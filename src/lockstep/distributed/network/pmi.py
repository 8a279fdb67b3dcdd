"""PMI-1, the text protocol through which ranks of MPICH's and Intel's mpiexec exchange small values."""

import os
import socket
from collections.abc import Mapping

from lockstep.errors import PeerError


def broadcast_from_rank_0(text: str | None, timeout_s: float, environment: Mapping[str, str] = os.environ) -> str:
    """Broadcast a text without spaces, at most some hundred characters, from rank 0; *collective*, once per process.

    `text` is None on the other ranks. PMI_FD in `environment` is the descriptor of the connection to mpiexec.
    """
    with socket.socket(fileno=os.dup(int(environment["PMI_FD"]))) as connection:
        connection.settimeout(timeout_s)
        with connection.makefile("rw", newline="\n") as lines:

            def request(command: str) -> dict[str, str]:
                lines.write(command + "\n")
                lines.flush()
                reply = dict(word.split("=", 1) for word in lines.readline().split() if "=" in word)
                if reply.get("rc", "0") != "0" or "cmd" not in reply:
                    raise PeerError(f"mpiexec did not understand {command!r}: {reply}")
                return reply

            try:
                request("cmd=init pmi_version=1 pmi_subversion=1")
                name = request("cmd=get_my_kvsname")["kvsname"]
                if text is not None:
                    request(f"cmd=put kvsname={name} key=lockstep value={text}")
                request("cmd=barrier_in")
                value = request(f"cmd=get kvsname={name} key=lockstep")["value"]
                request("cmd=finalize")  # mpiexec treats a process that ends without it as failed
            except OSError as error:
                raise PeerError(f"the ranks did not meet through mpiexec within {timeout_s:g} s: {error}") from error
    return value
