"""Numbers that go off on rank 1 alone, as broken memory would have it. `test_proof.py` judges what comes of it."""

import dataclasses
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import dqn_seams
import numpy as np
import torch
from ppo_seams import config
from running import Job, small, train_one
from seam_world import make_rollout
from torch import nn
from torch_seams import dqn_learner, ppo_learner

from lockstep import World
from lockstep.errors import MismatchError
from lockstep.record.progress import Progress
from lockstep.session.run_state import RunState
from lockstep.torch.comm import Comm
from lockstep.torch.ppo import PPO
from lockstep.torch.state import LearnerState

OFF_AT = 5  # the update with which a weight goes off


def arrays(thing: Any, path: str = "") -> Iterator[tuple[str, np.ndarray]]:
    """Every array and tensor that an object of ours holds, however deep, by its path; they share its memory."""
    if isinstance(thing, torch.Tensor):
        yield path, thing.detach().numpy()
    elif isinstance(thing, np.ndarray):
        yield path, thing
    elif isinstance(thing, list | tuple):
        for number, item in enumerate(thing):
            yield from arrays(item, f"{path}.{number}")
    elif isinstance(thing, dict | nn.Module) or (
        type(thing).__module__.startswith("lockstep.") and hasattr(thing, "__dict__")
    ):
        held = thing.state_dict() if isinstance(thing, nn.Module) else thing if isinstance(thing, dict) else vars(thing)
        for name, item in held.items():
            if not isinstance(item, Comm):
                yield from arrays(item, f"{path}.{name}" if path else name)


def flip(array: np.ndarray) -> None:
    """The lowest bit of its first number."""
    array.reshape(-1).view(np.uint8)[0] ^= 1


def compared(world: World) -> dict[str, str]:
    """For whatever an update of PPO changes: what the proof says when it differs on rank 1."""
    schedule = {"learning_rate_schedule": "linear", "normalize_observation": True, "normalize_return": True}
    with ppo_learner(world, config(**schedule)) as ppo:
        return asked(world, ppo)


def compared_with_replay(world: World) -> dict[str, str]:
    """The same for DQN, whose target network moves in every gradient step."""
    changes = {"learning_rate_schedule": "linear", "prioritized": True, "target_rate": 0.1, "updates_per_step": 0.05}
    with dqn_learner(world, dqn_seams.config(**changes)) as dqn:
        return asked(world, dqn)


def asked(world: World, algorithm: Any) -> dict[str, str]:
    """What the proof says of each thing that one update changes."""
    progress, found, comm = Progress(100, 50, 2, 3), dict[str, str](), algorithm.comm
    state = RunState(world, LearnerState(algorithm), None, None, progress)  # what belongs to a shard is not asked for
    before = {path: array.copy() for path, array in arrays(algorithm)}
    algorithm.update([make_rollout(shard) for shard in world.shards], np.zeros((len(world.shards), 1)), progress)
    after = dict(arrays(algorithm))
    changed = [path for path in after if path not in before or before[path].tobytes() != after[path].tobytes()]
    for path in comm.broadcast_object(changed):
        found[path] = said(comm, state, lambda path=path: flip(after[path]))
    for name in ("env_steps", "updates", "episodes"):
        found[name] = said(comm, state, lambda name=name: setattr(progress, name, getattr(progress, name) ^ 1))
    comm.check_equal(state.tensors())  # and nothing is amiss now
    return found


def said(comm: Comm, state: RunState, spoil: Any) -> str:
    """What the ranks are told; `spoil`, done twice, changes nothing."""
    if comm.world.rank == 1:
        spoil()
    try:
        comm.check_equal(state.tensors())
        return "nothing"
    except MismatchError as error:
        return str(error)
    finally:
        if comm.world.rank == 1:
            spoil()


def goes_off(world: World, port: int, folder: Path, **changes: Any) -> str:
    """A run in which a weight of rank 1 changes in update `OFF_AT`; returns how it ends."""
    update = PPO.update

    def spoiling(self: PPO, *args: Any) -> Any:
        told = update(self, *args)
        if world.rank == 1 and args[-1].updates + 1 == OFF_AT:
            flip(next(self.policy.parameters()).detach().numpy())
        return told

    run = small("lockstep/Corridor-v0", **changes)
    with mock.patch.object(PPO, "update", spoiling):
        return train_one(world.rank, Job(run, str(folder), port)).error


def spoil_all(rank: int, ports: list[int], folder: str) -> dict[str, Any]:
    """Everything above, in one pair of processes."""
    world = World(rank=rank, size=2, address="127.0.0.1", port=ports[0])
    return {
        "compared": compared(world),
        "compared with replay": compared_with_replay(dataclasses.replace(world, port=ports[3])),
        "proved": goes_off(world, ports[1], Path(folder, "proved"), check_every=4, checkpoint_every=None),
        "saved": goes_off(world, ports[2], Path(folder, "saved"), check_every=1000, checkpoint_every=4 * 128),
    }
