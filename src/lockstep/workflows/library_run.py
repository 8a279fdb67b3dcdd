"""One rank of a training by another library: what Lockstep does around it, the same for all libraries.

It makes the run directory, gives each rank a seed, compares the data that ranks collect at
the beginning and their parameters at the end, and writes metrics and the summary.
"""

import contextlib
import dataclasses
import os
import re
import time
from collections.abc import Generator, Mapping
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from lockstep.config import settings
from lockstep.distributed.agreement import Gather, check_different, content_digest, dtype_and_shape, mismatch_error
from lockstep.distributed.fingerprint import fingerprint
from lockstep.envs import isaac
from lockstep.envs.make import is_tensor_task
from lockstep.errors import ConfigError, RunError
from lockstep.record.console import Console
from lockstep.record.episodes import RecentReturns
from lockstep.record.failure import record_failure
from lockstep.record.run_dir import RunDir, mark_failed
from lockstep.record.summary import empty_summary, seconds_since_process_start
from lockstep.system.files import shown_path
from lockstep.workflows.library_arguments import DISTRIBUTIONS, ENTRY_POINTS, LibraryRequest, read_agent_file
from lockstep.world import World

if TYPE_CHECKING:
    import torch

    from lockstep.torch.envs.library_env import RecordedEnv

_LOCAL_ADVANTAGES = "advantages are normalized with the moments of each rank alone"


class LibraryRun:
    """One rank of a run.

    Attributes:
        request: the command line.
        world: all ranks.
        device: of this rank's environments, and of its networks in torch.
        path: the run directory.
        seed: of this rank; set by `open_env`.
        num_envs: of this rank; set by `open_env`.
        finished: whether the summary is written.
    """

    def __init__(self, request: LibraryRequest, world: World, gather: Gather, device: "torch.device") -> None:
        self.request, self.world, self.device = request, world, device
        self.seed = self.num_envs = 0
        self._base_seed = 0
        self._gather = gather
        self._console = Console()
        self._writer: RunDir | None = None
        self.path = self._make_run_dir()
        self._env: RecordedEnv | None = None
        self._rollout = 1
        self._total_steps = 0
        self._started_at = self._startup_s = 0.0
        self._untimed_steps = 0
        """Steps of all ranks before the clock of training began."""
        self._logged: tuple[int, float] = (0, 0.0)
        self._recent = RecentReturns()
        self._episodes = 0.0
        self._updates = 0
        self._first_steps: str | None = None
        """Digest of the data that this rank collected first."""
        self._summary: dict[str, Any] = {}
        self._notes = list(request.notes)
        self.finished = False

    def say(self, line: str) -> None:
        """Print a line to the user, on rank 0."""
        if self.world.rank == 0:
            self._console.line(f"lockstep: {line}")

    def note(self, line: str) -> None:
        """Print a line and keep it in the summary."""
        self._notes.append(line)
        self.say(f"note: {line}")

    @contextlib.contextmanager
    def open_env(self) -> Generator[tuple["RecordedEnv", Any]]:
        """The environments of this rank, and the library's settings: a dict, or a config object of Isaac Lab.

        Sets `seed` and `num_envs`.
        """
        from lockstep.torch.envs.library_env import HostTaskEnv, RecordedEnv, TensorTaskEnv

        request = self.request
        for line in request.notes:
            self.say(line)
        with contextlib.ExitStack() as stack:
            if isaac.is_isaac(request.task):
                env, agent = self._open_isaac(stack)
            else:
                agent = read_agent_file(request.agent, needs_seed=request.seed is None)
                self._set_seed(agent)
                assert request.num_envs is not None
                kind = TensorTaskEnv if is_tensor_task(request.task) else HostTaskEnv
                env = cast("Any", kind(request.task, request.num_envs, self.device, self.seed))
            stack.callback(env.close)
            self.num_envs = int(env.unwrapped.num_envs)
            self._env = RecordedEnv(env, self.num_envs, self._compare_first_steps, self._after_step)
            yield self._env, agent

    def begin(self, agent: Mapping[str, Any], rollout: int, iterations: int) -> None:
        """Write the config; called before the library builds its agent.

        Args:
            agent: the library's settings, as it gets them.
            rollout: steps of all environments between two updates.
            iterations: number of rollouts.
        """
        self._rollout = rollout
        self._total_steps = rollout * iterations * self.num_envs * self.world.size
        request = self.request
        config = {
            "task": request.task,
            "algo": request.library,
            "ml_framework": request.ml_framework,
            "seed": self._base_seed,
            "num_envs": self.num_envs * self.world.size,
            "num_envs_per_rank": self.num_envs,
            "ranks": self.world.size,
            "overrides": list(request.overrides),
            "agent": plain(agent),
        }
        self._summary = empty_summary(config) | {"num_shards": self.world.size}
        if self._writer is not None:
            (self.path / "run.yaml").write_text(settings.to_yaml(config), encoding="utf-8")
        ranks = f"{self.world.size} rank{'s' * (self.world.size > 1)}"
        self.say(
            f"{request.task}, {request.library} {self._library_version()} ({request.ml_framework}), {ranks} on "
            f"{self.device.type}, {self.num_envs} environments each, run directory {shown_path(self.path)}"
        )

    def finish(self, parameters: Mapping[str, np.ndarray], state: Mapping[str, np.ndarray]) -> None:
        """Compare the ranks and write the summary; *collective*.

        Args:
            parameters: of the networks, which must be equal on all ranks.
            state: other tensors of the agent, such as the moments of normalizers. Those that differ are reported.

        Raises:
            MismatchError: ranks hold different parameters.
            RunError: no step was made, or ranks collected the same data.
        """
        env = self._env
        assert env is not None
        if not env.steps:
            raise RunError(f"{self.request.library} made no step: nothing was trained")
        if self._first_steps is None:
            self._compare_first_steps(env.first_steps())
        if env.steps % self._rollout:
            self._log()
        elapsed = time.monotonic() - self._started_at if self._started_at else 0.0
        check_equal(self._gather, parameters)
        held: list[dict[str, list[str]]] = self._gather(_digests(state), "state")
        differing = sorted(name for name, digest in held[0].items() if any(one.get(name) != digest for one in held))
        if self.world.size > 1:
            self.note(f"left by {self.request.library}: {_LOCAL_ADVANTAGES}")
            if differing:
                self.note(f"left by {self.request.library}: each rank has its own {', '.join(differing)}")
        mine: dict[str, Any] = {
            "rank": self.world.rank,
            "host": os.uname().nodename,
            "device": str(self.device),
            "seed": self.seed,
            "params_fingerprint": fingerprint(parameters),
            "first_rollout_fingerprint": self._first_steps,
            "env_steps": env.steps * self.num_envs,
        }
        ranks = self._gather(mine, "summary")
        env_s: list[float] = self._gather(env.env_s, "phases")
        if self._writer is not None:
            self._write_summary(elapsed, ranks, differing, sum(env_s) / len(env_s))
        equal = f"are equal on all {self.world.size} ranks" if self.world.size > 1 else "have the fingerprint"
        self.say(f"parameters {equal}: {mine['params_fingerprint'][:8]}")
        self.finished = True

    def fail(self, message: str, status: str, code: int = 1) -> None:
        """Record why this rank ends early; `code` is its exit code if the status is "failed"."""
        if status == "failed":
            record_failure(self.path, rank=self.world.rank, message=message, code=code)
        if self.world.rank == 0:
            mark_failed(self.path, message, status, self.world.size)

    def close(self) -> None:
        """Close the files."""
        if self._writer is not None:
            self._writer.close()
        self._console.close()

    def _make_run_dir(self) -> Path:
        """The run directory, which rank 0 makes unless the launcher did; *collective*."""
        request, error = self.request, ""
        if self.world.rank == 0:
            try:
                if request.started_by_lockstep and request.run_dir is not None:
                    self._writer = RunDir.join(request.run_dir)
                else:
                    self._writer = RunDir.create(request.run_dir, {}, run_name(request))
            except ConfigError as refused:
                error = str(refused)
        mine = None if self._writer is None else str(self._writer.path.absolute())
        path, error = cast("tuple[str, str]", self._gather((mine, error), "run_dir")[0])
        if error:
            raise ConfigError(error)
        return Path(path)

    def _open_isaac(self, stack: contextlib.ExitStack) -> tuple[Any, Any]:
        from lockstep.torch.envs.isaac_launch import open_task

        request = self.request
        file = request.agent.endswith((".yaml", ".yml"))
        entry_point = ENTRY_POINTS[request.library] if file else request.agent
        task = stack.enter_context(
            open_task(request.task, str(self.device), None if file else entry_point, request.overrides)
        )
        agent = read_agent_file(request.agent, needs_seed=request.seed is None) if file else task.agent_cfg
        if agent is None:
            raise ConfigError(
                f"task={request.task} publishes no {entry_point}; give the library's own config file: --agent FILE.yaml"
            )
        self._set_seed(agent)
        env = task.make(num_envs=request.num_envs, seed=self.seed)
        return env, agent

    def _set_seed(self, agent: Any) -> None:
        """The seed of this rank, from the command line or from the library's settings."""
        from lockstep.torch.envs.isaac_launch import rank_seed

        seed = self.request.seed
        if seed is None:
            found: Any = cast("dict[str, Any]", agent) if isinstance(agent, dict) else {"seed": agent.seed}
            seed = int(found.get("params", found).get("seed") or 0)
        self._base_seed, self.seed = seed, rank_seed(seed, self.world.rank)

    def _compare_first_steps(self, digest: str) -> None:
        """Check that ranks collect different data, once the first steps are made; *collective*."""
        check_different(self._gather, digest, "first_steps")
        self._first_steps = digest
        assert self._env is not None
        self._env.env_s = 0.0  # the clock of training begins here
        self._untimed_steps = self._env.steps * self.num_envs * self.world.size
        self._logged = (self._untimed_steps, 0.0)
        self._started_at = time.monotonic()
        self._startup_s = seconds_since_process_start()

    def _after_step(self) -> None:
        assert self._env is not None
        if self._env.steps % self._rollout == 0:
            self._updates += 1
            self._log()

    def _log(self) -> None:
        """Add the sums of all ranks to the metrics; *collective*."""
        assert self._env is not None
        gathered = self._gather(self._env.episodes.take(), "metrics")
        total_return, total_length, count = (sum(column) for column in zip(*gathered, strict=True))
        step = self._env.steps * self.num_envs * self.world.size
        now = time.monotonic() - self._started_at if self._started_at else 0.0
        before, then = self._logged
        self._logged = step, now
        self._episodes += count
        metrics: dict[str, float] = {"progress/episodes": self._episodes, "progress/updates": float(self._updates)}
        if count:
            self._recent.add(count, total_return)
            metrics |= {
                "episode/return_mean": total_return / count,
                "episode/length_mean": total_length / count,
                "episode/count": count,
            }
        if (recent := self._recent.mean()) is not None:
            metrics["episode/return_mean_100"] = recent
        if now > then and step > before:
            metrics["time/steps_per_second"] = (step - before) / (now - then)
        if self._writer is not None:
            self._writer.write_metrics(step, now, metrics)
            self._console.progress(
                steps=step,
                total_steps=max(step, self._total_steps),
                steps_per_second=metrics.get("time/steps_per_second", 0.0),
                return_mean=recent,
            )

    def _write_summary(self, elapsed: float, ranks: list[dict[str, Any]], differing: list[str], env_s: float) -> None:
        assert self._writer is not None
        steps = sum(one["env_steps"] for one in ranks)
        library = self.request.library
        on_gpu = self.device.type == "cuda"
        self._summary |= {
            "status": "finished",
            "world_size": self.world.size,
            "backend": "nccl" if on_gpu else "gloo",
            "devices": [one["device"] for one in ranks],
            "env_steps": steps,
            "updates": self._updates,
            "episodes": int(self._episodes),
            "wall_time_s": elapsed,
            "phases_s": self._summary["phases_s"] | {"env": env_s, "other": max(elapsed - env_s, 0.0)},
            "startup_s": self._startup_s,
            "steps_per_second": (steps - self._untimed_steps) / elapsed if elapsed else 0.0,
            "return_mean_100": self._recent.mean(),
            "params_fingerprint": ranks[0]["params_fingerprint"],
            "ranks": ranks,
            "versions": self._summary["versions"] | {library: self._library_version()},
            "notes": self._notes,
            "different_per_rank": differing,
        }
        self._writer.write_summary(self._summary)

    def _library_version(self) -> str:
        return version(DISTRIBUTIONS[self.request.library])


def check_equal(gather: Gather, arrays: Mapping[str, np.ndarray]) -> None:
    """Raise `MismatchError` on all ranks unless all hold the same arrays, bit for bit; *collective*."""
    gathered: list[dict[str, list[str]]] = gather(_digests(arrays), "parameters")
    if any(one != gathered[0] for one in gathered):
        raise mismatch_error(gathered)


def run_name(request: LibraryRequest) -> str:
    """Task and library as the name of a folder."""
    return re.sub(r"[^\w.-]+", "-", f"{request.task}-{request.library}").strip("-.")


def plain(value: Any) -> Any:
    """A tree of settings as plain values for run.yaml; objects become text."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        value = {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
    if isinstance(value, Mapping):
        return {str(key): plain(one) for key, one in cast("Mapping[Any, Any]", value).items()}
    if isinstance(value, list | tuple):
        return [plain(one) for one in cast("list[Any]", value)]
    return value if value is None or isinstance(value, bool | int | float | str) else str(value)


def tensors_of(networks: Mapping[str, Any], which: str) -> dict[str, np.ndarray]:
    """The `named_parameters` of torch modules, or their `named_buffers`, such as the moments of normalizers."""
    return {
        f"{name}.{key}".replace("_orig_mod.", ""): tensor.detach().cpu().numpy()
        for name, network in networks.items()
        for key, tensor in getattr(network, which)()
    }


def _digests(arrays: Mapping[str, np.ndarray]) -> dict[str, list[str]]:
    return {
        name: [dtype_and_shape(str(array.dtype), array.shape), content_digest(np.ascontiguousarray(array).tobytes())]
        for name, array in arrays.items()
    }
