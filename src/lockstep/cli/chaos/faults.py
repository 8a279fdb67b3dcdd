"""Inject faults into one rank of a run, for `lockstep chaos` and the tests.

    python -m lockstep.cli.chaos.faults '{"fault": "kill", "rank": 1, "update": 8}' train cartpole --ranks 2
    --max-restarts 3

is `lockstep train cartpole --ranks 2 --max-restarts 3`, but rank 1 is killed after its 8th update. The fault replaces
one function in that rank; the training code has no switch for it.
"""

import errno
import json
import os
import runpy
import signal
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, cast

from lockstep.cli.chaos.backend_faults import check_rewards_on_host, collectives, weight_changer, wrap_advance
from lockstep.errors import ConfigError

KINDS: Mapping[str, str] = {
    "kill": "the rank is killed (SIGKILL) in env.step",
    "raise": "env.step raises an exception",
    "exit": "the rank exits early, with code 0",
    "stall": "env.step does not return",
    "collective": "the rank does not return from a collective",
    "stop": "the rank is stopped (SIGSTOP)",
    "diskfull": "the disk is full while the rank writes checkpoints",
    "weight": "one weight of the rank changes in memory",
    "nan": "an environment of the rank gives a reward that is not a number",
    "corrupt": "a bit of the newest checkpoint flips, then the rank is killed",
    "launcher": "the launcher is killed (SIGKILL)",
}
"""The kinds of faults."""

INJECTED_FILE = Path("logs", "injected_fault.json")
"""Written to the run directory when a fault is injected: the fault, the update, and the Unix time in seconds."""

_FOREVER_S = 86_400.0


@dataclass(frozen=True, slots=True)
class InjectedFault:
    """One fault, with its rank and time."""

    fault: str
    """One of `KINDS`."""
    rank: int
    update: int
    """Number of updates after which the fault is injected."""
    attempt: int = 0
    """The start of the run: 0 is the first, 1 the first restart. Under torchrun: `TORCHELASTIC_RESTART_COUNT`."""
    updates: int = 8
    """`diskfull`: number of updates until the disk has room again."""
    saved: bool = False
    """Wait until there is a checkpoint and none is being written; `corrupt` always does."""

    def __post_init__(self) -> None:
        """Validate the kind."""
        if self.fault not in KINDS:
            raise ConfigError(f"unknown fault {self.fault}; there are {', '.join(KINDS)}")

    @classmethod
    def from_json(cls, text: str) -> "InjectedFault":
        """The inverse of `to_json`."""
        try:
            return cls(**json.loads(text))
        except (json.JSONDecodeError, TypeError) as error:
            example = '{"fault": "kill", "rank": 1, "update": 8}'
            raise ConfigError(f"{text!r} is not a fault ({error}); write {example}") from None

    def to_json(self) -> str:
        """The fault as an argument of a command line."""
        return json.dumps(asdict(self))


class _Trigger:
    def __init__(self, fault: InjectedFault, run_dir: Path | None, framework: str) -> None:
        self.fault, self._run_dir, self.framework = fault, run_dir, framework
        self.updates = -1  # until the first update has ended
        self._fired = False

    @property
    def newest(self) -> Path | None:
        """The newest checkpoint of the run; None if there is none, or while a newer one is being written."""
        from lockstep.record.checkpoint import FOLDER, find
        from lockstep.record.partial_files import REPLACED

        assert self._run_dir is not None, "the folder of checkpoints is not known; give --run-dir"
        found, folder = find(self._run_dir), self._run_dir / FOLDER
        there = [path for name in (".step_*", f"{REPLACED}step_*", "step_*") for path in folder.glob(name)]
        return found[0] if found and len(found) == len(there) else None  # LATEST is written last

    def due(self) -> bool:
        """Whether to inject the fault now; true only once."""
        if self._fired or self.updates < self.fault.update:
            return False
        if (self.fault.saved or self.fault.fault == "corrupt") and self.newest is None:
            return False
        self._fired = True
        if self._run_dir is not None:
            note = asdict(self.fault) | {"at": self.updates, "time_s": time.time()}
            (self._run_dir / INJECTED_FILE).write_text(json.dumps(note) + "\n", encoding="utf-8")
        return True


def inject(fault: InjectedFault, run_dir: Path | None = None, framework: str = "torch") -> None:
    """Prepare a fault in this process, before it trains; `INJECTED_FILE` is written to `run_dir`, if given."""
    from lockstep.distributed.timers import Timers

    trigger, original = _Trigger(fault, run_dir, framework), Timers.updated

    def updated(timers: Timers, updates: int) -> None:
        original(timers, updates)
        trigger.updates = updates

    cast(Any, Timers).updated = updated
    injectors = {"diskfull": _fill_disk, "collective": _stall_collectives, "weight": _change_weight}
    injectors.get(fault.fault, _break_steps)(trigger)


def _break_steps(trigger: _Trigger) -> None:
    """Inject the faults of a whole rank, in `env.step`."""

    def wrap(step: Callable[[Any], Any]) -> Callable[[Any], Any]:
        return lambda action: _apply(trigger, step(action)) if trigger.due() else step(action)

    _wrap_steps(trigger, wrap)


def _wrap_steps(trigger: _Trigger, wrap: Callable[[Callable[[Any], Any]], Callable[[Any], Any]]) -> None:
    """Wrap `step` of every training environment that this process will create."""
    from lockstep.experience.rollout import Collector

    if trigger.framework == "jax":
        wrap_advance(wrap)
    original = Collector.__init__

    def init(collector: Collector, world: Any, envs: Sequence[Any], *args: Any, **kwargs: Any) -> None:
        original(collector, world, envs, *args, **kwargs)
        for env in envs:
            env.step = wrap(env.step)

    cast(Any, Collector).__init__ = init


def _apply(trigger: _Trigger, result: tuple[Any, ...]) -> tuple[Any, ...]:
    match trigger.fault.fault:
        case "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        case "corrupt":
            _flip_bit(trigger)
            os.kill(os.getpid(), signal.SIGKILL)
        case "launcher":
            os.kill(os.getppid(), signal.SIGKILL)
            time.sleep(_FOREVER_S)  # the kernel ends this rank with it
        case "raise":
            raise RuntimeError("a fault was put in here on purpose")
        case "exit":
            os._exit(0)
        case "stop":
            os.kill(os.getpid(), signal.SIGSTOP)
        case "stall":
            time.sleep(_FOREVER_S)
        case _:  # nan
            check_rewards_on_host(result)
            observation, reward, *rest = result
            reward = reward.copy()
            reward[0] = float("nan")
            return (observation, reward, *rest)
    return result


def _flip_bit(trigger: _Trigger) -> None:
    """Flip one bit in the middle of one file of the newest checkpoint, chosen by the number of the update."""
    assert trigger.newest is not None
    files = sorted(trigger.newest.glob("*.safetensors"))
    path = files[trigger.fault.update % len(files)]
    with path.open("r+b") as file:
        file.seek(path.stat().st_size // 2)
        byte = file.read(1)[0]
        file.seek(-1, os.SEEK_CUR)
        file.write(bytes([byte ^ 1]))


def _stall_collectives(trigger: _Trigger) -> None:
    """Let the rank block in a collective, through shared memory or messages."""

    def stalled(original: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            if trigger.due():
                time.sleep(_FOREVER_S)
            return original(*args, **kwargs)

        return call

    for cls, name in collectives(trigger.framework):
        setattr(cls, name, stalled(getattr(cls, name)))


def _change_weight(trigger: _Trigger) -> None:
    """Change one weight of this rank, as a bit flip in memory does."""
    change = weight_changer(trigger.framework)

    def changing(step: Callable[[Any], Any]) -> Callable[[Any], Any]:
        def faulty(action: Any) -> Any:
            if trigger.due():
                change()
            return step(action)

        return faulty

    _wrap_steps(trigger, changing)


def _fill_disk(trigger: _Trigger) -> None:
    """Let writes below `checkpoints/` fail, as on a full disk."""
    original = os.fsync

    def fsync(file: int) -> None:
        path, first = Path(os.readlink(f"/proc/self/fd/{file}")), trigger.fault.update
        if "checkpoints" in path.parts and first <= trigger.updates < first + trigger.fault.updates:
            trigger.due()
            if path.is_file():
                os.truncate(path, path.stat().st_size // 2)
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        original(file)

    cast(Any, os).fsync = fsync


def _run_dir(arguments: Sequence[str]) -> Path | None:
    for name in ("--run-dir", "--resume"):
        for index, word in enumerate(arguments):
            value = arguments[index + 1] if word == name else word.partition("=")[2]
            if word.partition("=")[0] == name:
                path = Path(value)
                return path.parents[1] if path.parent.name == "checkpoints" else path
    return None


def _framework(arguments: Sequence[str]) -> str:
    """The backend of the run, from its arguments or the config files that they name."""
    flags = " ".join(arguments).replace("_", "-").replace("=", " ")
    if found := [framework for framework in ("torch", "jax") if f"ml-framework {framework}" in flags]:
        return found[0]
    files = [Path(word) for word in arguments if word.endswith((".yaml", ".yml"))]
    files.append((_run_dir(arguments) or Path()) / "run.yaml")
    texts = [file.read_text(encoding="utf-8") for file in files if file.is_file()]
    return "jax" if any("ml_framework: jax" in text for text in texts) else "torch"


def _redirect_ranks(fault: InjectedFault) -> None:
    """Patch the launcher in this process so that it starts its ranks through this module."""
    from lockstep.launch.supervise import RankGroup

    original = RankGroup.start

    def start(group: RankGroup, command: Sequence[str], *args: Any, **kwargs: Any) -> None:
        words = list(command)
        index = words.index("lockstep.train")
        words[index : index + 1] = ["lockstep.cli.chaos.faults", fault.to_json()]
        original(group, words, *args, **kwargs)

    cast(Any, RankGroup).start = start


def main() -> None:
    """Run the command line, as `lockstep` or as one rank; ends the process."""
    try:
        fault = InjectedFault.from_json(sys.argv[1] if len(sys.argv) > 1 else "")
    except ConfigError as error:
        print(f"lockstep: error: {error}", file=sys.stderr)
        sys.exit(error.exit_code)
    arguments = sys.argv[2:]
    if "RANK" not in os.environ:
        _redirect_ranks(fault)
        sys.argv = ["lockstep", *arguments]
        runpy.run_module("lockstep.cli", run_name="__main__")
        return
    from lockstep.launch.child import die_with_launcher

    die_with_launcher()
    attempt = int(os.environ.get("LOCKSTEP_RESTARTS", os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")))
    if int(os.environ["RANK"]) == fault.rank and attempt == fault.attempt:
        inject(fault, _run_dir(arguments), _framework(arguments))
    sys.argv = ["lockstep.train", *(arguments[1:] if arguments[:1] == ["train"] else arguments)]
    runpy.run_module("lockstep.train", run_name="__main__")


if __name__ == "__main__":
    main()
