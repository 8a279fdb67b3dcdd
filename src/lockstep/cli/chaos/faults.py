"""Faults on purpose: what `lockstep chaos` and the fault tests put into one rank of a run.

    python -m lockstep.cli.chaos.faults '{"fault": "kill", "rank": 1, "update": 8}' train cartpole --ranks 2
    --max-restarts 3

is `lockstep train cartpole --ranks 2 --max-restarts 3`, but rank 1 is killed after its 8th update. The code under trial
knows nothing of it: one function is replaced from outside, and only in the rank that is meant.
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

from lockstep.cli.chaos.backend_faults import collectives, refuse_rewards, weight_changer, wrap_advance
from lockstep.errors import ConfigError

KINDS: Mapping[str, str] = {
    "kill": "the rank is killed (SIGKILL) in env.step",
    "raise": "env.step raises an exception",
    "exit": "the rank leaves early, with code 0",
    "stall": "env.step does not return",
    "collective": "the rank does not return from a collective",
    "stop": "the rank is stopped (SIGSTOP)",
    "diskfull": "the disk is full while the rank writes checkpoints",
    "weight": "one weight of the rank changes in memory",
    "nan": "an environment of the rank gives a reward that is not a number",
    "corrupt": "a bit of the newest checkpoint flips, then the rank is killed",
    "launcher": "the launcher is killed (SIGKILL)",
}
"""What can be put into a rank, by name."""

NOTE = Path("logs", "struck.json")
"""Where in the run directory a fault that struck leaves a note: the fault, its update, and when (seconds, Unix)."""

_FOREVER_S = 86_400.0


@dataclass(frozen=True, slots=True)
class InjectedFault:
    """One fault and when it strikes."""

    fault: str
    """One of `KINDS`."""
    rank: int
    """Whom."""
    update: int
    """Strikes as soon as so many updates are done."""
    attempt: int = 0
    """In which start of the run: 0 is the first, 1 the first restart. Under torchrun as this node's agent counts."""
    updates: int = 8
    """For how many updates a full disk stays full."""
    saved: bool = False
    """Strikes only when there is a checkpoint to go back to, and none on its way; `corrupt` always waits for that."""

    def __post_init__(self) -> None:
        """Refuse what is no fault."""
        if self.fault not in KINDS:
            raise ConfigError(f"unknown fault {self.fault}; there are {', '.join(KINDS)}")

    @classmethod
    def from_json(cls, text: str) -> "InjectedFault":
        """A fault from what `to_json` wrote."""
        try:
            return cls(**json.loads(text))
        except (json.JSONDecodeError, TypeError) as error:
            example = '{"fault": "kill", "rank": 1, "update": 8}'
            raise ConfigError(f"{text!r} is not a fault ({error}); write {example}") from None

    def to_json(self) -> str:
        """The fault as text for a command line."""
        return json.dumps(asdict(self))


class _Strike:
    """Knows when the moment has come, and notes it down."""

    def __init__(self, fault: InjectedFault, run_dir: Path | None, framework: str) -> None:
        self.fault, self._run_dir, self.framework = fault, run_dir, framework
        self.updates = -1  # none known yet: nothing strikes before the first update ended
        self._struck = False

    @property
    def newest(self) -> Path | None:
        """The newest checkpoint of the run, once there is one and while no newer one is on its way."""
        from lockstep.record.checkpoint import FOLDER, find

        assert self._run_dir is not None, "the folder of checkpoints is not known; give --run-dir"
        found, folder = find(self._run_dir), self._run_dir / FOLDER
        whole = len(found) == len([*folder.glob(".step_*"), *folder.glob("step_*")])  # LATEST says so last
        return found[0] if found and whole else None

    def due(self) -> bool:
        """True exactly once."""
        if self._struck or self.updates < self.fault.update:
            return False
        if (self.fault.saved or self.fault.fault == "corrupt") and self.newest is None:
            return False
        self._struck = True
        if self._run_dir is not None:
            note = asdict(self.fault) | {"at": self.updates, "time_s": time.time()}
            (self._run_dir / NOTE).write_text(json.dumps(note) + "\n", encoding="utf-8")
        return True


def plant(fault: InjectedFault, run_dir: Path | None = None, framework: str = "torch") -> None:
    """Put a fault into this process, which is about to train.

    Args:
        fault: which, and when.
        run_dir: where to leave a note when it strikes; None leaves none.
        framework: what the run computes with, `torch` or `jax`.
    """
    from lockstep.distributed.timers import Timers

    strike, original = _Strike(fault, run_dir, framework), Timers.updated

    def updated(timers: Timers, updates: int) -> None:
        original(timers, updates)
        strike.updates = updates

    cast(Any, Timers).updated = updated
    elsewhere = {"diskfull": _fill_disk, "collective": _stall_collectives, "weight": _change_weight}
    elsewhere.get(fault.fault, _break_steps)(strike)


def _break_steps(strike: _Strike) -> None:
    """Whatever happens to a rank as a whole happens in env.step."""
    _wrap_steps(strike, lambda step: lambda action: _act(strike, step(action)) if strike.due() else step(action))


def _wrap_steps(strike: _Strike, wrap: Callable[[Callable[[Any], Any]], Callable[[Any], Any]]) -> None:
    """Replace `step` of every training environment that this process is going to make."""
    from lockstep.experience.rollout import Collector

    if strike.framework == "jax":
        wrap_advance(wrap)
    original = Collector.__init__

    def init(collector: Collector, world: Any, envs: Sequence[Any], *args: Any, **kwargs: Any) -> None:
        original(collector, world, envs, *args, **kwargs)
        for env in envs:
            env.step = wrap(env.step)

    cast(Any, Collector).__init__ = init


def _act(strike: _Strike, result: tuple[Any, ...]) -> tuple[Any, ...]:
    match strike.fault.fault:
        case "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        case "corrupt":
            _flip_bit(strike)
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
            refuse_rewards(result)
            observation, reward, *rest = result
            reward = reward.copy()
            reward[0] = float("nan")
            return (observation, reward, *rest)
    return result


def _flip_bit(strike: _Strike) -> None:
    """Change one bit in the middle of one file, whose turn the number of the update decides."""
    assert strike.newest is not None
    files = sorted(strike.newest.glob("*.safetensors"))
    path = files[strike.fault.update % len(files)]
    with path.open("r+b") as file:
        file.seek(path.stat().st_size // 2)
        byte = file.read(1)[0]
        file.seek(-1, os.SEEK_CUR)
        file.write(bytes([byte ^ 1]))


def _stall_collectives(strike: _Strike) -> None:
    """A rank that came to a collective does not do its part, in memory and in messages alike."""

    def stalled(original: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            if strike.due():
                time.sleep(_FOREVER_S)
            return original(*args, **kwargs)

        return call

    for kind, name in collectives(strike.framework):
        setattr(kind, name, stalled(getattr(kind, name)))


def _change_weight(strike: _Strike) -> None:
    """What a bit that flips in memory does: this rank's parameters are no longer those of the others."""
    change = weight_changer(strike.framework)

    def changing(step: Callable[[Any], Any]) -> Callable[[Any], Any]:
        def faulty(action: Any) -> Any:
            if strike.due():
                change()
            return step(action)

        return faulty

    _wrap_steps(strike, changing)


def _fill_disk(strike: _Strike) -> None:
    """Files below `checkpoints/` cannot be written to their end, as on a disk that has no room."""
    original = os.fsync

    def fsync(file: int) -> None:
        path, first = Path(os.readlink(f"/proc/self/fd/{file}")), strike.fault.update
        if "checkpoints" in path.parts and first <= strike.updates < first + strike.fault.updates:
            strike.due()
            if path.is_file():
                os.truncate(path, path.stat().st_size // 2)
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        original(file)

    cast(Any, os).fsync = fsync


def _run_dir(arguments: Sequence[str]) -> Path | None:
    """The run directory that a rank's command line names."""
    for name in ("--run-dir", "--resume"):
        for index, word in enumerate(arguments):
            value = arguments[index + 1] if word == name else word.partition("=")[2]
            if word.partition("=")[0] == name:
                path = Path(value)
                return path.parents[1] if path.parent.name == "checkpoints" else path
    return None


def _framework(arguments: Sequence[str]) -> str:
    """What the arguments, or else the files that they name, say that the run computes with."""
    said = " ".join(arguments).replace("_", "-").replace("=", " ")
    if found := [framework for framework in ("torch", "jax") if f"ml-framework {framework}" in said]:
        return found[0]
    files = [Path(word) for word in arguments if word.endswith((".yaml", ".yml"))]
    files.append((_run_dir(arguments) or Path()) / "run.yaml")
    texts = [file.read_text(encoding="utf-8") for file in files if file.is_file()]
    return "jax" if any("ml_framework: jax" in text for text in texts) else "torch"


def _redirect_ranks(fault: InjectedFault) -> None:
    """Let the launcher in this process start its ranks through this module."""
    from lockstep.launch.supervise import RankGroup

    original = RankGroup.start

    def start(group: RankGroup, command: Sequence[str], *args: Any, **kwargs: Any) -> None:
        words = list(command)
        place = words.index("lockstep.train")
        words[place : place + 1] = ["lockstep.cli.chaos.faults", fault.to_json()]
        original(group, words, *args, **kwargs)

    cast(Any, RankGroup).start = start


def main() -> None:
    """The command line; ends the process as `python -m lockstep.train` and `lockstep` do."""
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
        plant(fault, _run_dir(arguments), _framework(arguments))
    sys.argv = ["lockstep.train", *(arguments[1:] if arguments[:1] == ["train"] else arguments)]
    runpy.run_module("lockstep.train", run_name="__main__")


if __name__ == "__main__":
    main()
