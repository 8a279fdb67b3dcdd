"""What the tests of seams are made of, whatever the framework: hand-made rollouts, and worlds to try them in."""

import dataclasses
import os
import traceback
from collections.abc import Callable, Sequence
from importlib import import_module
from typing import Any

import numpy as np

from lockstep import World, spawn, stream
from lockstep.envs.spec import ActionSpec, EnvSpec
from lockstep.experience.rollout import Rollout
from lockstep.launch.rank_environment import free_port
from lockstep.record.progress import Progress

STEPS, ENVS, SIZE = 16, 4, 3  # of one shard; SIZE numbers in an observation
SPEC = EnvSpec(SIZE, ActionSpec("discrete", (3,)), "next_step", True)
BOUND_S = 5.0
FAR = 123_456.7  # squares of such numbers lose the digits of a variance


def make_rollout(shard: int, unlike: float = 1.0, far: float = 0.0) -> Rollout:
    """A hand-made rollout; those of shard 1 see larger numbers, are paid otherwise, and have more rows of weight 0.

    Observations are `far` from 0, and if they are, their second number is always the same.
    """
    draw = stream(0, "seam", shard)
    ended = draw.random((STEPS, ENVS)) < (0.1 if shard == 0 else 0.4)
    weight = np.ones((STEPS, ENVS), np.float32)
    weight[1:][ended[:-1]] = 0.0
    observation = draw.standard_normal((STEPS + 1, ENVS, SIZE), dtype=np.float32) * np.float32(1 + unlike * shard)
    if far:
        observation += np.float32(far)
        observation[..., 1] = far
    reward = draw.standard_normal((STEPS, ENVS)).astype(np.float32) * np.float32(1 + 9 * unlike * shard) + 3 * shard
    terminated = ended & (draw.random((STEPS, ENVS)) < 0.7)
    action = draw.integers(0, 3, (STEPS, ENVS))
    return Rollout(observation, action, reward * weight, terminated, ended, weight, [])


def run_listed(seams: Sequence[Any], rank: int, ports: dict[str, int], folder: str, *arguments: Any) -> dict[str, Any]:
    """Call `seam(*arguments, world, folder)` for each seam that `ports` names, each in a world of its own.

    So a broken one spoils no other; an error is returned as text.
    """
    found: dict[str, Any] = {}
    for seam in seams:
        name = seam.__name__
        if name in ports:
            world = World(rank=rank, size=int(os.environ["WORLD_SIZE"]), address="127.0.0.1", port=ports[name])
            place = os.path.join(folder, name)
            os.makedirs(place, exist_ok=True)
            try:
                found[name] = seam(*arguments, world, os.path.join(place, "run"))
            except Exception as error:
                traceback.print_exc()
                found[name] = f"{type(error).__name__}: {error}"
    return found


class SeamResults(dict[str, list[Any]]):
    """What each rank saw, by seam; and the backend that they ran on."""

    def __init__(self, backend: Any, of_ranks: list[dict[str, Any]]) -> None:
        super().__init__({name: [rank[name] for rank in of_ranks] for name in of_ranks[0]})
        self.backend = backend

    def __missing__(self, name: str) -> list[Any]:
        raise AssertionError(f"no seam is called {name}")


def run_selected(request: Any, run_seams: Any, run_of: dict[str, str], folder: str) -> SeamResults:
    """Run the seams that the selected tests of a module want on 2 ranks of the backend `request.param`.

    Args:
        request: of a fixture that is called `seam`.
        run_seams: called in each rank with the backend's name, a port for each seam, and the folder.
        run_of: for a test that uses the run of another test's seam, that seam.
        folder: where the runs go.
    """
    import pytest

    # Without torch, `import torch` finds the folder tests/unit/torch.
    pytest.importorskip("torch.distributed" if request.param == "torch" else "jax")
    items = [item for item in request.session.items if item.module is request.module]
    wanted = {
        item.originalname.removeprefix("test_") for item in items if item.callspec.params["seam"] == request.param
    }
    ports = {name: free_port() for name in sorted({run_of.get(name, name) for name in wanted})}
    found = spawn(run_seams, 2, (request.param, ports, folder), timeout_s=600)
    return SeamResults(import_module(f"{request.param}_seams"), found)


def same(a: dict[str, Any], b: dict[str, Any]) -> bool:
    return a.keys() == b.keys() and all(np.array_equal(a[name], b[name]) for name in a)


def first_gradient_step(
    learner: Any, world: World, make: Callable[[int], Rollout], drawn: list[dict[str, np.ndarray]], *, priorities: bool
) -> None:
    """Update a learner with a replay on hand-made rollouts of each shard until it takes its first gradient step.

    Args:
        learner: its replays are watched.
        world: of this rank.
        make: the rollout of a shard.
        drawn: receives what each local shard's replay returned, for each gradient step.
        priorities: some transitions of shard 1 have far larger priorities than others, those of shard 0 similar ones.
    """
    rows = 2 * ENVS * STEPS
    for k, shard in enumerate(world.shards):
        replay, draw = learner.replays.buffers[k], learner.replays.buffers[k].sample
        errors = np.random.default_rng(shard)

        def sample(rows: int, generator: Any, replay=replay, draw=draw, shard=shard, errors=errors) -> Any:
            if priorities and not drawn:
                index = np.unique(draw(2000, np.random.default_rng(0)).index)
                similar = errors.uniform(1, 1.1, len(index))
                replay.update_priorities(index, errors.exponential(1.0, len(index)) ** 3 if shard else similar)
            got = draw(rows, generator)
            drawn.append({f.name: np.array(getattr(got, f.name)) for f in dataclasses.fields(got)})
            return got

        replay.sample = sample
    progress = Progress(100 * rows)
    while not drawn:
        assert progress.updates < 3, "no gradient step was taken"
        learner.update([make(shard) for shard in world.shards], np.zeros((len(world.shards), 1)), progress)
        progress.env_steps += rows
        progress.updates += 1


def whole_batch(ranks) -> dict[str, np.ndarray]:
    """What both ranks drew for the first gradient step, together."""
    return {name: np.concatenate([rank["drawn"][0][name] for rank in ranks]) for name in ranks[0]["drawn"][0]}


def plain_weights(run, ranks) -> np.ndarray:
    """(N P(i))^-beta over its largest value, where a shard is drawn from as often as the other (beta is 1)."""
    if not run.algorithm.prioritized:
        return np.ones(run.algorithm.batch_size)
    probability = np.concatenate([rank["drawn"][0]["probability"] for rank in ranks]) / 2
    weight = (sum(rank["size"] for rank in ranks) * probability) ** -1.0
    return weight / weight.max()
