"""Python processes that start in 0.1 s, not 2: forked from a server that has imported torch or JAX.

`ForkedPopen` takes the place of `subprocess.Popen` in the tests' processes, and in the processes that they start. A
command of this interpreter (`python -c`, `python -m`, `python FILE`) is forked from the server; any other starts as
usual, as do those of tests that are marked `real_start`. The server has imported libraries only, never lockstep, and
has used none of them: no threads, no JAX backend.

A forked process is a child of the process that asked for it, as if it had started it itself: the server forks with
CLONE_PARENT. So waiting for it, its signals and the end of its parent work as they do for any other process.
"""

import atexit
import builtins
import contextlib
import ctypes
import fcntl
import gc
import importlib
import os
import pickle
import runpy
import signal
import socket
import subprocess
import sys
import threading
import warnings
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NoReturn

_LIBRARIES = {
    "torch": ("torch", "torch.distributed", "torch.utils.tensorboard", "numpy", "gymnasium", "yaml"),
    "jax": ("jax", "jax.numpy", "numpy", "gymnasium", "yaml"),
}
_INHERITED = "inherited"
_CLONE_PARENT = 0x8000
_SYS_CLONE = {"x86_64": 56, "aarch64": 220}
# Variables that a library or the interpreter reads when it is imported, which is before the fork.
_READ_BY_IMPORTS = ("PYTHON", "LD_", "MKL_", "KMP_", "GOMP_", "TORCH_CPP_", "JAX_")
_APPLIED_AFTER_THE_FORK = ("PYTHONPATH", "PYTHONUNBUFFERED", "PYTHONFAULTHANDLER", "PYTHONDONTWRITEBYTECODE")
_READ_BY_LOCKSTEP = (
    "JAX_RANK",
    "JAX_WORLD_SIZE",
    "JAX_LOCAL_RANK",
    "JAX_LOCAL_WORLD_SIZE",
    "JAX_NODE_RANK",
    "JAX_COORDINATOR_ADDR",
    "JAX_COORDINATOR_PORT",
)

_RealPopen = subprocess.Popen
_lock = threading.Lock()
_servers: dict[str, socket.socket] = {}
_processes: list[subprocess.Popen[bytes]] = []
_backend: str | None = None  # whose server is asked; None: processes start as usual


class ForkedPopen(_RealPopen):
    """`subprocess.Popen` that forks what it can from the server."""

    def _execute_child(self, args: Any, executable: Any, preexec_fn: Any, close_fds: Any, *rest: Any) -> None:
        pass_fds, cwd, env, _, _, shell, *pipes, _, gid, gids, uid, umask, new_session, process_group = rest
        p2cread, p2cwrite, c2pread, c2pwrite, errread, errwrite = pipes
        environment = dict(os.environ if env is None else env)
        unusual = executable or preexec_fn or shell or not close_fds or process_group != -1 or umask != -1
        unusual = unusual or any(value is not None for value in (gid, gids, uid))
        listed = not isinstance(args, str | bytes | os.PathLike)
        words = [os.fsdecode(word) for word in args] if listed else []
        pid = None
        if not unusual and words and _can_be_forked(words, environment):
            standard = [given if given != -1 else number for number, given in enumerate((p2cread, c2pwrite, errwrite))]
            request = {
                "words": words[1:],
                "environment": environment,
                "cwd": os.path.abspath(cwd) if cwd is not None else os.getcwd(),
                "new_session": new_session,
                "descriptors": [0, 1, 2, *pass_fds],
            }
            pid = _ask(request, [*standard, *pass_fds])
        if pid is None:
            super()._execute_child(args, executable, preexec_fn, close_fds, *rest)
            return
        self.pid = pid
        self._child_created = True
        self._close_pipe_fds(p2cread, p2cwrite, c2pread, c2pwrite, errread, errwrite)


def use(backend: str | None) -> None:
    """Have processes forked from a server that has imported the libraries of `backend`; None: start them as usual.

    A process that was forked itself has a server already, with the libraries that it was forked with.
    """
    global _backend
    _backend = _INHERITED if backend is not None and _INHERITED in _servers else backend
    subprocess.Popen = _RealPopen if backend is None else ForkedPopen


def stop() -> None:
    """End the servers of this process."""
    use(None)
    for server in _servers.values():
        server.close()
    for process in _processes:
        process.wait()
    _servers.clear()
    _processes.clear()


def _can_be_forked(words: list[str], environment: dict[str, str]) -> bool:
    if words[0] != sys.executable:
        return False
    words = words[1:]
    while len(words) > 2 and words[0] == "-W":
        words = words[2:]
    if not words or (words[0].startswith("-") and (words[0] not in ("-c", "-m") or len(words) < 2)):
        return False  # another flag of the interpreter: isolated, unbuffered ...
    if words[0] == "-c" and "sys.modules" in words[1]:
        return False  # it asks what has been imported
    names = {name for name in {*environment, *os.environ} if name.startswith(_READ_BY_IMPORTS)}
    names -= {*_APPLIED_AFTER_THE_FORK, *_READ_BY_LOCKSTEP}
    return all(environment.get(name) == os.environ.get(name) for name in names)


def _ask(request: dict[str, Any], descriptors: list[int]) -> int | None:
    """The process id of a new process that does what is asked; None if the server has ended.

    Returns when the process has its own command line and working directory, as after `exec`.
    """
    body = pickle.dumps(request)
    answer, ready = os.pipe()
    with open(answer, "rb") as pipe:
        try:
            with _lock:
                server = _server()
                socket.send_fds(server, [len(body).to_bytes(8, "little")], [ready, *descriptors])
                server.sendall(body)
        except OSError:
            return None
        finally:
            os.close(ready)
        pid = pipe.read(8)
    return int.from_bytes(pid, "little") if pid else None


def _server() -> socket.socket:
    assert _backend is not None
    if _backend not in _servers:
        _servers[_backend], its = socket.socketpair()
        with its:
            room = " " * 4096  # for the command lines of the forked processes
            command = [sys.executable, __file__, str(its.fileno()), *_LIBRARIES[_backend], room]
            # One thread: a pool of OpenMP that exists already does not survive a fork.
            environment = {**os.environ, "OMP_NUM_THREADS": "1"}
            descriptors = {"stdin": subprocess.DEVNULL, "pass_fds": [its.fileno()]}
            _processes.append(_RealPopen(command, env=environment, **descriptors))
    return _servers[_backend]


def _serve(connection: socket.socket) -> dict[str, Any]:
    """Fork a process for each request; returns in each of them, with the request. The server itself ends here."""
    libc = ctypes.PyDLL(None, use_errno=True)
    clone = _SYS_CLONE[os.uname().machine]
    while True:
        try:
            header, descriptors, _, _ = socket.recv_fds(connection, 8, 253)
        except KeyboardInterrupt:  # from the terminal, to all of them
            header = b""
        if not header:
            os._exit(0)
        length = int.from_bytes(header, "little")
        body = b""
        while len(body) < length:
            body += connection.recv(length - len(body))
        ctypes.pythonapi.PyOS_BeforeFork()
        pid = libc.syscall(clone, _CLONE_PARENT | signal.SIGCHLD, 0, 0, 0, 0)
        if pid == 0:
            ctypes.pythonapi.PyOS_AfterFork_Child()
            connection.close()
            ready, *received = descriptors
            return {**pickle.loads(body), "ready": ready, "received": received}
        ctypes.pythonapi.PyOS_AfterFork_Parent()
        for descriptor in descriptors:
            os.close(descriptor)


def _become(request: dict[str, Any], search_path: list[str]) -> list[str]:
    """Take over the descriptors, variables and arguments of a request; returns the words behind `python`."""
    if request["new_session"]:
        os.setsid()
    ready = fcntl.fcntl(request["ready"], fcntl.F_DUPFD_CLOEXEC, 1 + max([*request["descriptors"], 255]))
    os.close(request["ready"])
    _take_descriptors(request["received"], request["descriptors"])
    environment = request["environment"]
    os.environ.clear()
    os.environ.update(environment)
    os.chdir(request["cwd"])
    unbuffered = bool(environment.get("PYTHONUNBUFFERED"))
    for name, number, mode in (("stdin", 0, "r"), ("stdout", 1, "w"), ("stderr", 2, "w")):
        lines = mode == "w" and (number == 2 or os.isatty(number))
        file = open(number, mode, buffering=1 if lines else -1, closefd=False)  # noqa: SIM115 - open to the end
        if mode == "w" and unbuffered:
            file.reconfigure(write_through=True)
        if number == 2:
            file.reconfigure(errors="backslashreplace")
        setattr(sys, name, file)
        setattr(sys, f"__{name}__", file)
    if environment.get("PYTHONFAULTHANDLER"):
        importlib.import_module("faulthandler").enable()
    sys.dont_write_bytecode = bool(environment.get("PYTHONDONTWRITEBYTECODE"))
    added = [entry for entry in environment.get("PYTHONPATH", "").split(os.pathsep) if entry]
    sys.path[:] = added + search_path
    if "torch" in sys.modules:
        threads = environment.get("OMP_NUM_THREADS") or len(os.sched_getaffinity(0))
        sys.modules["torch"].set_num_threads(int(threads))
    words = request["words"]
    _set_command_line([sys.executable, *words])
    os.write(ready, os.getpid().to_bytes(8, "little"))
    os.close(ready)
    while words[0] == "-W":
        sys.warnoptions.append(words[1])
        warnings._processoptions([words[1]])
        words = words[2:]
    if "RANK" not in environment and "JAX_RANK" not in environment:  # it may start ranks, or be a launcher
        _start_server_of_this_process()
    return words


def _set_command_line(words: list[str]) -> None:
    """Have /proc show `words` as the command line of this process."""
    fields = Path("/proc/self/stat").read_text().rpartition(")")[2].split()
    start, end = int(fields[45]), int(fields[46])  # arg_start and arg_end of proc_pid_stat(5)
    text = b"\0".join(os.fsencode(word) for word in words)[: end - start - 1]
    ctypes.memmove(start, text.ljust(end - start, b"\0"), end - start)


def _take_descriptors(received: list[int], wanted: list[int]) -> None:
    free = 1 + max([*received, *wanted])
    moved = [fcntl.fcntl(descriptor, fcntl.F_DUPFD, free) for descriptor in received]
    for descriptor in received:
        os.close(descriptor)
    for descriptor, number in zip(moved, wanted, strict=True):
        os.dup2(descriptor, number)
        os.close(descriptor)


def _start_server_of_this_process() -> None:
    """Fork a server for what this process starts, before it runs anything of its own."""
    ours, its = socket.socketpair()
    if os.fork() == 0:
        ours.close()
        os.dup2(os.open(os.devnull, os.O_RDWR), 0)
        _set_command_line([sys.executable, __file__])
        _run(_become(_serve(its), _search_path()))
    its.close()
    _servers[_INHERITED] = ours
    use(_INHERITED)


def _search_path() -> list[str]:
    """`sys.path` of a fresh interpreter without PYTHONPATH."""
    added = {entry for entry in os.environ.get("PYTHONPATH", "").split(os.pathsep) if entry}
    return [entry for entry in sys.path if entry not in added]


def _run(words: list[str]) -> NoReturn:
    """Run `python WORDS` in this process, to the end of the process."""
    code = 0
    try:
        _run_main(words)
    except SystemExit as left:
        if left.code is not None and not isinstance(left.code, int):
            print(left.code, file=sys.stderr)
        code = 0 if left.code is None else left.code if isinstance(left.code, int) else 1
    except KeyboardInterrupt:
        code = None
        sys.excepthook(*sys.exc_info())
    except BaseException:
        code = 1
        sys.excepthook(*sys.exc_info())
    threading._shutdown()
    atexit._run_exitfuncs()
    for file in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError):
            file.flush()
    if code is None:  # an interpreter that was interrupted ends by the signal itself
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        os.kill(os.getpid(), signal.SIGINT)
    os._exit(code & 0xFF)  # the interpreter's own end would copy and free all that the libraries have made: 0.6 s


def _run_main(words: list[str]) -> None:
    # Cleared, not replaced: pickle keeps the module that it once looked into.
    main = sys.modules["__main__"].__dict__
    main.clear()
    main.update(__name__="__main__", __builtins__=builtins, __spec__=None, __doc__=None, __package__=None)
    if words[0] == "-m":
        sys.argv = ["-m", *words[2:]]
        sys.path.insert(0, os.getcwd())
        runpy._run_module_as_main(words[1])
    elif words[0] == "-c":
        sys.argv = ["-c", *words[2:]]
        sys.path.insert(0, "")
        exec(compile(words[1], "<string>", "exec"), main)
    else:
        sys.argv = words
        path = Path(words[0])
        sys.path.insert(0, str(path.resolve().parent))
        main["__file__"] = words[0]
        exec(compile(path.read_bytes(), words[0], "exec"), main)


def main() -> None:
    """Import what the arguments name, then serve the connection whose descriptor is the first one."""
    for library in sys.argv[2:-1]:
        if find_spec(library.partition(".")[0]) is not None:
            importlib.import_module(library)
    gc.freeze()  # collections in forked processes leave alone what they share with this one
    search_path = [entry for entry in _search_path() if entry != str(Path(__file__).parent)]
    _run(_become(_serve(socket.socket(fileno=int(sys.argv[1]))), search_path))


if __name__ == "__main__":
    importlib.import_module("fork_server").main()  # a module of its own: `__main__` will be that of the forked process
