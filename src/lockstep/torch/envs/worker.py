"""A `TensorVectorEnv` in a process of its own, for simulators of which a process can hold only one."""

import contextlib
import os
import signal
import traceback
from collections.abc import Sequence
from multiprocessing.connection import Connection
from multiprocessing.util import Finalize
from typing import Any

import numpy as np
import torch
import torch.multiprocessing
from torch import Tensor

from lockstep.config.env import EnvConfig
from lockstep.envs.spec import EnvSpec
from lockstep.envs.workers import become_worker
from lockstep.errors import ConfigError, RunError
from lockstep.torch.envs.interface import (
    Observation,
    TensorStep,
    TensorVectorEnv,
    can_draw,
    check_observation,
    check_step,
)

_START_S = 600.0
"""Timeout for the start of a simulator, whose first start compiles kernels."""
_CLOSE_S = 10.0


class WorkerEnv:
    """Environments in a worker process. A step copies actions and results through shared memory on the CPU.

    Args:
        task: the task.
        config: of the environments.
        num_envs: B.
        device: of the tensors.
        render: whether the first environment can be drawn.

    Attributes:
        frames_per_second: of a video, if it can be drawn.
    """

    def __init__(
        self, task: str, config: EnvConfig, num_envs: int, device: torch.device, *, render: bool = False
    ) -> None:
        context = torch.multiprocessing.get_context("spawn")
        self._task = task
        self.num_envs = num_envs
        self.device = device
        self._pipe, theirs = context.Pipe()
        self._process = context.Process(
            target=_serve, args=(theirs, os.getpid(), task, config, num_envs, str(device), render), daemon=True
        )
        self._process.start()
        theirs.close()
        self._at_exit = Finalize(self, _kill, (self._process,), exitpriority=10)
        try:
            spec, self.frames_per_second = self._receive(_START_S)
            self.spec = EnvSpec.from_dict(spec)
            self._buffers = _Buffers(self.spec, num_envs)
            self._send("buffers", self._buffers)
        except BaseException:
            self.close()
            raise

    def reset(self, seeds: Sequence[int]) -> Observation:
        """Start new episodes everywhere."""
        self._send("reset", list(seeds))
        return self._on_device(self._buffers.observation)

    def step(self, action: Tensor) -> TensorStep:
        """Step all environments."""
        self._buffers.action.copy_(action)
        has_final = self._send("step")
        buffers = self._buffers
        return TensorStep(
            self._on_device(buffers.observation),
            buffers.reward.to(self.device),
            buffers.terminated.to(self.device),
            buffers.truncated.to(self.device),
            self._on_device(buffers.final) if has_final else None,
        )

    def render(self) -> np.ndarray:
        """A picture of the first environment, if it can be drawn."""
        return self._send("render")

    def close(self) -> None:
        """End the worker."""
        if self._process.is_alive():
            with contextlib.suppress(OSError):
                self._pipe.send(("close", None))
            self._process.join(_CLOSE_S)
        self._at_exit()
        self._pipe.close()

    def _on_device(self, observation: Observation) -> Observation:
        return observation.map(lambda part: part.to(self.device))

    def _send(self, command: str, argument: Any = None) -> Any:
        try:
            self._pipe.send((command, argument))
        except OSError:
            raise self._death() from None
        return self._receive(None)

    def _receive(self, timeout_s: float | None) -> Any:
        try:
            if not self._pipe.poll(timeout_s):
                raise RunError(f"the simulator of task={self._task} did not start within {timeout_s:.0f} s")
            kind, value = self._pipe.recv()
        except (EOFError, OSError):
            raise self._death() from None
        if kind == "refused":
            raise ConfigError(value)
        if kind == "error":
            raise RunError(value)
        return value

    def _death(self) -> RunError:
        self._process.join(_CLOSE_S)
        code = self._process.exitcode or 0
        how = f"was killed by {signal.Signals(-code).name} (signal {-code})" if code < 0 else f"ended with code {code}"
        return RunError(f"the process of a simulator of task={self._task} {how}")


class _Buffers:
    """Shared memory for one step."""

    def __init__(self, spec: EnvSpec, num_envs: int) -> None:
        kind = torch.float32 if spec.image is None else torch.uint8
        width = () if spec.action.kind == "discrete" else (spec.action.width,)
        dtype = torch.float32 if spec.action.kind == "continuous" else torch.int64
        self.action: Tensor = torch.zeros((num_envs, *width), dtype=dtype).share_memory_()
        self.reward = torch.zeros(num_envs).share_memory_()
        self.terminated = torch.zeros(num_envs, dtype=torch.bool).share_memory_()
        self.truncated = torch.zeros(num_envs, dtype=torch.bool).share_memory_()
        self.observation, self.final = (
            Observation(
                torch.zeros((num_envs, *spec.observation_shape), dtype=kind).share_memory_(),
                None if spec.critic_size is None else torch.zeros(num_envs, spec.critic_size).share_memory_(),
            )
            for _ in range(2)
        )


def _serve(
    pipe: Connection, rank_pid: int, task: str, config: EnvConfig, num_envs: int, device: str, render: bool
) -> None:
    """The worker: make the environments, then answer one command after the other."""
    become_worker(rank_pid)
    from lockstep.torch.envs.make import make_tensor_env

    try:
        env = make_tensor_env(task, config, num_envs, torch.device(device), render=render)
        pipe.send(("ok", (env.spec.to_dict(), getattr(env, "frames_per_second", None))))
        _, buffers = pipe.recv()
        pipe.send(("ok", None))
        while _answer(pipe, env, buffers):
            pass
        env.close()
    except ConfigError as error:
        _send_last(pipe, "refused", str(error))
    except Exception as error:
        message = str(error) if isinstance(error, RunError) else f"{type(error).__name__}: {error}"
        if _send_last(pipe, "error", message):
            traceback.print_exc()


def _send_last(pipe: Connection, kind: str, message: str) -> bool:
    """Tell the rank why the worker ends; false if it closed its end, which may be the reason."""
    try:
        pipe.send((kind, message))
    except OSError:
        return False
    return True


@torch.no_grad()
def _answer(pipe: Connection, env: TensorVectorEnv, buffers: _Buffers) -> bool:
    """Answer one command; false to end."""
    command, argument = pipe.recv()
    if command == "close":
        return False
    if command == "reset":
        first = env.reset(argument)
        check_observation(env.spec, env.num_envs, first)
        _copy(buffers.observation, first)
        pipe.send(("ok", None))
        return True
    if command == "render":
        assert can_draw(env)
        pipe.send(("ok", env.render()))
        return True
    step = env.step(buffers.action.to(env.device))
    check_step(env.spec, env.num_envs, step)
    _copy(buffers.observation, step.observation)
    buffers.reward.copy_(step.reward)
    buffers.terminated.copy_(step.terminated)
    buffers.truncated.copy_(step.truncated)
    if step.final is not None:
        _copy(buffers.final, step.final)
    pipe.send(("ok", step.final is not None))
    return True


def _copy(to: Observation, source: Observation) -> None:
    to.policy.copy_(source.policy)
    if to.critic is not None and source.critic is not None:
        to.critic.copy_(source.critic)


def _kill(process: Any) -> None:
    if process.is_alive():
        process.kill()
    process.join()
