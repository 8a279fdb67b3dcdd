"""PMI-1, the lines of text by which ranks of MPICH's and Intel's mpiexec tell each other small things."""

import os
import socket
from collections.abc import Mapping

from lockstep.errors import PeerError


def from_rank_0(text: str | None, timeout_s: float, environment: Mapping[str, str] = os.environ) -> str:
    """What rank 0 tells all ranks; *collective*, once in the life of a process.

    Args:
        text: given by rank 0, None by the others; no spaces, at most some hundred characters.
        timeout_s: bound on waiting for the other ranks.
        environment: where mpiexec wrote which file descriptor to ask it through.
    """
    with socket.socket(fileno=os.dup(int(environment["PMI_FD"]))) as link:
        link.settimeout(timeout_s)
        with link.makefile("rw", newline="\n") as lines:

            def ask(request: str) -> dict[str, str]:
                lines.write(request + "\n")
                lines.flush()
                answer = dict(word.split("=", 1) for word in lines.readline().split() if "=" in word)
                if answer.get("rc", "0") != "0" or "cmd" not in answer:
                    raise PeerError(f"mpiexec did not understand {request!r}: {answer}")
                return answer

            try:
                ask("cmd=init pmi_version=1 pmi_subversion=1")
                name = ask("cmd=get_my_kvsname")["kvsname"]
                if text is not None:
                    ask(f"cmd=put kvsname={name} key=lockstep value={text}")
                ask("cmd=barrier_in")
                reported = ask(f"cmd=get kvsname={name} key=lockstep")["value"]
                ask("cmd=finalize")  # mpiexec takes the end of a process that is not final for a failure
            except OSError as error:
                raise PeerError(f"the ranks did not meet through mpiexec within {timeout_s:g} s: {error}") from error
    return reported
