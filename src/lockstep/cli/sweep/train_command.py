"""The `lockstep train` command of a run of a sweep: its config file and its arguments."""

import argparse
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lockstep.cli.terminal import shown_setting
from lockstep.errors import ConfigError
from lockstep.launch.train_ranks import PROGRAM

if TYPE_CHECKING:
    from lockstep.run import AnyRun

_OF_ONE_RUN = ("resume", "run_dir", "seed", "seeds", "jobs", "profile", "local_rank")


class TrainCommand:
    """Arguments of `lockstep train` that the runs of a sweep share.

    Attributes:
        ranks: of each run.

    Args:
        words: the arguments.
        where: what errors begin with: `train: ` of a sweep file, or nothing for a command line.
        on_ray: whether the runs train on a Ray cluster, whose machines are not this one.

    Raises:
        ConfigError: an argument is unknown, or belongs to a single run.
    """

    def __init__(self, words: Sequence[str], *, where: str = "", on_ray: bool = False) -> None:
        from lockstep.cli.parser import hyphenated, parser
        from lockstep.cli.request import requested_ranks, set_values
        from lockstep.cli.unknown_arguments import unknown_argument
        from lockstep.engines.ray.arguments import ray_request
        from lockstep.launch.flags import number, policy_source
        from lockstep.launch.node_flags import bounds_of

        top, given = parser({}), ["train", *(hyphenated(word) for word in words)]
        self._args, unknown = top.parse_known_args(given)
        if unknown:
            raise ConfigError(unknown_argument(unknown[0], given, top, ["train", *words]))
        args = self._args
        for flag in _OF_ONE_RUN:
            if getattr(args, flag) is not None:
                shown = f"--{flag.replace('_', '-')} {getattr(args, flag)}"
                if flag in ("seed", "seeds"):
                    raise ConfigError(f"{where}{shown}: write it beside train, as seeds: {getattr(args, flag)}")
                raise ConfigError(f"{where}{shown} is for a single run; leave it out")
        if "seed" in (values := set_values(args.set)):
            raise ConfigError(f"{where}--set seed={values['seed']}: write it beside train, as seeds: {values['seed']}")
        if args.on is not None:
            raise ConfigError(
                f"{where}--on {args.on} is for the sweep: lockstep sweep FILE --on {args.on}; leave it out"
            )
        ray_request(args)  # refuses flags of a rank's actor, which a sweep does not have
        if (flag := _launcher_flag(args)) is not None:
            raise ConfigError(
                f"{where}{flag}: each of several runs has its ranks on this machine; use --ranks N, and leave "
                f"{flag.partition(' ')[0]} out"
            )
        self._words, self._launcher = shlex.join(words), "ray" if on_ray else "none"
        self.ranks = requested_ranks(args.ranks, 1, args.ml_framework or "torch")
        restarts = number(args.max_restarts or "0", "--max-restarts", least=0)
        self._source = source = policy_source(args.init_from)
        self._debug = ["--debug"] if args.debug else []
        self._restarts = ["--max-restarts", str(restarts)] if restarts else []
        self._grace = ["--grace-s", f"{bounds_of(args).grace_s:g}"] if args.grace_s is not None else []
        self._init_from = [] if source is None else ["--init-from", str(source)]

    def run_of(self, settings: Mapping[str, Any], seed: int) -> "AnyRun":
        """The complete config of a run, checked as `lockstep train` checks it.

        Raises:
            ConfigError: the run cannot work; names the settings of its trial.
        """
        from lockstep.cli.request import checked, requested_run, set_values
        from lockstep.config.settings import to_yaml
        from lockstep.launch.world_checks import check_world
        from lockstep.run import Run
        from lockstep.session.env_checks.before_run import check_before_run
        from lockstep.session.start_policy import check_start_policy
        from lockstep.world import World

        args = argparse.Namespace(**vars(self._args))
        args.seed = str(seed)
        values = dict(settings)
        if "task" in values:
            if args.target or args.task:
                raise ConfigError(f"settings.task, but train names a task too: {self._words}; leave one of them out")
            args.target = str(values.pop("task"))
        if both := [name for name in values if name in set_values(args.set)]:
            raise ConfigError(f"settings.{both[0]}, but train sets it too: {self._words}; leave one of them out")
        args.set = [*args.set, *(f"{name}={to_yaml(value, one_line=True)}" for name, value in values.items())]
        try:
            run = checked(args, requested_run(args))
            check_world(run, World(size=self.ranks, launcher=self._launcher))
            if isinstance(run, Run):
                check_before_run(run)
            if self._source is not None:
                check_start_policy(self._source, run)
        except ConfigError as error:
            if not settings:
                raise
            raise ConfigError(f"the run with {shown_settings(settings)} cannot work: {error}") from None
        return run

    def start(self, config: Path, run_dir: Path) -> list[str]:
        """The command that starts a new run."""
        return [*PROGRAM, str(config), "--run-dir", str(run_dir), *self._init_from, *self._common]

    def resume(self, run_dir: Path) -> list[str]:
        """The command that resumes a run from its newest checkpoint."""
        return [*PROGRAM, "--resume", str(run_dir), *self._common]

    @property
    def _common(self) -> list[str]:
        return ["--ranks", str(self.ranks), *self._restarts, *self._grace, *self._debug]


def _launcher_flag(args: argparse.Namespace) -> str | None:
    """The first flag of a launcher of several machines that was given, with its value."""
    from lockstep.cli.flags import flags_of
    from lockstep.launch.node_flags import add_node_arguments

    parser = argparse.ArgumentParser(add_help=False)
    add_node_arguments(parser, restarts=False)
    for flag, dest, default in [*flags_of(parser), ("--distributed", "distributed", False)]:
        if (value := getattr(args, dest)) != default:
            return flag if value is True else f"{flag} {value}"
    return None


def shown_settings(settings: Mapping[str, Any]) -> str:
    """`learning_rate=0.001 num_steps=64`."""
    return " ".join(f"{name}={shown_setting(value)}" for name, value in settings.items())
