"""The replays of a rank: one for each of its shards, made by all ranks together or by none."""

from pathlib import Path

from lockstep.algorithms.dqn import DQNConfig
from lockstep.distributed.comm import Comm
from lockstep.envs.spec import EnvSpec
from lockstep.errors import ConfigError
from lockstep.experience.memory import in_words
from lockstep.experience.replay import Replay
from lockstep.record.journal import Journal
from lockstep.run import Run
from lockstep.session.checks import bytes_of_host, check_host
from lockstep.world import World


def make_replays(run: Run, spec: EnvSpec, comm: Comm) -> list[Replay]:
    """The replay of each local shard; collective.

    Raises:
        ConfigError: on all ranks, if a host has not the memory or the disk for its part.
    """
    c, world = run.algorithm, comm.world
    assert isinstance(c, DQNConfig)
    num_envs, capacity = world.shard_size(run.num_envs, "num_envs"), world.shard_size(c.capacity, "capacity")
    problem = ""
    try:
        check_host(run, spec, world)
    except ConfigError as error:
        problem = str(error)
    # All ask before the first of them takes its part.
    problems: list[str] = comm.gather_object(problem, "replay")
    if any(problems):
        raise ConfigError(next(filter(None, problems)))
    return [
        Replay(
            spec,
            num_envs,
            capacity,
            n_step=c.n_step,
            gamma=c.gamma,
            prioritized=c.prioritized,
            priority_exponent=c.priority_exponent,
            priority_eps=c.priority_eps,
            path=None if c.replay_path is None else Path(c.replay_path) / f"shard_{shard}.frames",
        )
        for shard in world.shards
    ]


def announce(journal: Journal, run: Run, spec: EnvSpec, world: World) -> None:
    """Say at the start what the replay takes, and warn of one that will not be learned from."""
    c = run.algorithm
    assert isinstance(c, DQNConfig)
    memory, whole = bytes_of_host(run, spec, world), bytes_of_host(run, spec, world, mapped=False)
    text = f"replay: {c.capacity} transitions in {world.num_shards} part{'s' * (world.num_shards > 1)}, "
    text += f"{in_words(memory)} of memory on this host"
    if c.checkpoint_replay:
        text += ", as much again for the copy that checkpoints take"
    if c.replay_path is not None:
        text += f", {in_words(whole - memory)} in {c.replay_path}"
    journal.say(text)
    if c.learning_starts > run.total_steps:
        journal.warn(
            f"learning_starts={c.learning_starts} is beyond total_steps={run.total_steps}: nothing will be learned"
        )
