"""What `lockstep bench` measures: workloads, and the contenders that do each.

A contender is a library, or a variant of Lockstep, with a script of `contenders/` and its arguments. All contenders of
a workload do the same: the same task, batch sizes, networks and passes over the data, on one core with one thread
unless the contender says otherwise.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple


@dataclass(frozen=True, slots=True, kw_only=True)
class Contender:
    """One way to do a workload."""

    name: str
    """On the command line."""
    title: str
    """In the table."""
    script: str
    """File of `contenders/`."""
    arguments: tuple[str, ...] = ()
    """Arguments of the script, before `--warm-up` and `--measured`."""
    environment: str | None = None
    """The library whose environment runs the script; None: this one."""
    cores: int = 1
    """Cores that its processes share."""
    ranks: int = 1
    """With more than one, warm-up and measured steps are multiplied: weak scaling."""
    one_rank: str | None = None
    """With several ranks: the contender of one rank that they are compared with; None: the workload's first."""
    fraction_of_steps: float = 1.0
    """Of the workload's steps; less than 1 for a library that is much slower than the others."""
    needs_flag: str | None = None
    """The flag of `lockstep bench` without which the contender is skipped, as shown to the user."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """Something that several libraries do."""

    title: str
    contenders: tuple[Contender, ...]
    unit: str = "steps/s"
    """Of the measured value."""
    higher_is_better: bool = True
    warm_up: int = 0
    """Environment steps, gradient steps or calls before the clock starts."""
    measured: int = 1
    """The same while the clock runs."""
    update: int = 1
    """Steps of one update; only whole updates are measured, whatever `--scale`."""
    targets: Mapping[str, float] = field(default_factory=dict[str, float])
    """Ratios that Lockstep aims at, by the name of the contender: Lockstep over a library, several ranks over one."""


class _Variant(NamedTuple):
    """How Lockstep does a workload."""

    name: str
    title: str
    flags: tuple[str, ...] = ()
    ranks: int = 1


_IN_JAX = ("--ml-framework", "jax")
_TORCH = _Variant("lockstep", "Lockstep")
_JAX = _Variant("lockstep", "Lockstep", _IN_JAX)
_ALSO_JAX = _Variant("lockstep_jax", "Lockstep, JAX", _IN_JAX)
_COMPILED = _Variant("lockstep_compiled", "Lockstep, compiled", ("--set", "compile=true"))
_TWO = _Variant("lockstep_2", "Lockstep, 2 ranks on 2 cores", ranks=2)
_TWO_JAX = _Variant("lockstep_2", "Lockstep, 2 ranks on 2 cores", _IN_JAX, ranks=2)


def _ours(target: str, settings: Mapping[str, object], variant: _Variant = _TORCH) -> Contender:
    arguments = [*target.split(), *variant.flags, "--ranks", str(variant.ranks)]
    for name, value in settings.items():
        arguments += ["--set", f"{name}={value}"]
    return Contender(
        name=variant.name,
        title=variant.title,
        script="with_lockstep.py",
        arguments=tuple(arguments),
        cores=variant.ranks,
        ranks=variant.ranks,
    )


def _peer(name: str, title: str, workload: str, script: str, environment: str | None = None) -> Contender:
    return Contender(name=name, title=title, script=script, arguments=(workload,), environment=environment or name)


def _first_update(name: str, title: str, environment: str | None = None) -> Contender:
    return Contender(name=name, title=title, script="first_update.py", arguments=(name,), environment=environment)


def _skrl(framework: str, workload: str) -> Contender:
    in_jax = framework == "jax"
    return Contender(
        name="skrl_jax" if in_jax else "skrl",
        title="skrl, JAX" if in_jax else "skrl",
        script="with_skrl_gymnasium.py",
        arguments=(framework, workload),
        environment="skrl_jax" if in_jax else "robots",
        fraction_of_steps=0.05 if in_jax else 1.0,
    )


def _workflow(library: str, ranks: int) -> Contender:
    """A library on ranks that `lockstep.workflows` connects: by themselves these libraries want GPUs for it."""
    return Contender(
        name=library if ranks == 1 else f"{library}_{ranks}",
        title=library if ranks == 1 else f"{library}, {ranks} ranks on {ranks} cores",
        script="with_workflow.py",
        arguments=(library, "4096", str(ranks)),
        environment="robots",
        cores=ranks,
        ranks=ranks,
        one_rank=None if ranks == 1 else library,
    )


_PLAIN_PPO = {
    "num_minibatches": 4, "num_epochs": 4, "learning_rate": "2.5e-4", "entropy_coef": 0.01,
    "normalize_observation": "false", "normalize_return": "false",
}  # fmt: skip
"""The settings of CleanRL and PureJaxRL for CartPole-v1."""
_CARTPOLE = {"num_envs": 8, "num_steps": 128, **_PLAIN_PPO}
_LSTM = {**_CARTPOLE, "network.recurrent": "lstm", "network.recurrent_size": 64, "env.vectorization": "sync"}
_HOPPER = {
    "num_envs": 4, "num_steps": 512, "num_epochs": 10, "num_minibatches": 32, "learning_rate": "3e-4",
    "entropy_coef": 0, "normalize_observation": "true", "normalize_return": "true",
}  # fmt: skip
_OFF_POLICY = {
    "num_envs": 8, "updates_per_step": 1, "learning_starts": 256, "capacity": 100_000, "batch_size": 256,
    "env.max_episode_steps": 50,
}  # fmt: skip
_PONG = {
    "num_envs": 4, "num_steps": 1, "updates_per_step": 0.25, "batch_size": 32, "learning_starts": 1000,
    "capacity": 20_000, "n_step": 1, "double": "false", "dueling": "false", "target_update_every": 250,
    "epsilon_end": 0.01, "epsilon_steps": 500,
}  # fmt: skip
_WITH_PUREJAXRL = "--purejaxrl DIR"


def _doubled(settings: Mapping[str, object], *names: str) -> dict[str, object]:
    """The settings of 2 ranks that each do the work of one."""
    return {name: int(str(value)) * 2 if name in names else value for name, value in settings.items()}


def _doubled_off_policy(settings: Mapping[str, object]) -> dict[str, object]:
    """The settings of 2 ranks, each of which steps as many environments and learns from as many rows as one."""
    updates = float(str(settings["updates_per_step"])) / 2  # per step of any environment, each of twice the rows
    return _doubled(settings, "num_envs", "batch_size") | {"updates_per_step": updates}


def _gradient_sync(parameters: int, calls: int, target: float) -> Workload:
    schemes = {
        "lockstep": "Lockstep",
        "lockstep_pinned": "Lockstep, pinned shards",
        "ddp": "DistributedDataParallel",
        "ddp_views": "DistributedDataParallel, gradients as bucket views",
        "each": "an all-reduce for each parameter",
        "flat": "one all-reduce of a flat buffer, nothing else",
    }
    contenders = [
        Contender(name=name, title=title, script="gradient_sync.py", arguments=(name, str(parameters)), cores=2)
        for name, title in schemes.items()
    ]
    return Workload(
        title=f"forward, backward and synchronization of {parameters:,} parameters, 2 ranks, gloo",
        unit="us per step",
        higher_is_better=False,
        warm_up=calls // 10,
        measured=calls,
        contenders=tuple(contenders),
        targets={"ddp": target},
    )


WORKLOADS: Mapping[str, Workload] = {
    "cartpole_ppo": Workload(
        title="CartPole-v1, PPO in torch, 8 environments x 128 steps",
        warm_up=20_480,
        measured=81_920,
        update=1024,
        contenders=(
            _ours("CartPole-v1", _CARTPOLE),
            _ours("CartPole-v1", _CARTPOLE, _COMPILED),
            _peer("sb3", "Stable-Baselines3", "cartpole_ppo", "with_sb3.py"),
            _peer("tianshou", "Tianshou", "cartpole_ppo", "with_tianshou.py"),
            _peer("torchrl", "TorchRL", "cartpole_ppo", "with_torchrl.py"),
            _skrl("torch", "cartpole_ppo"),
            _ours("CartPole-v1", _doubled(_CARTPOLE, "num_envs"), _TWO),
        ),
        targets={"sb3": 4.0, "tianshou": 3.5, "torchrl": 3.5, "skrl": 3.5, "lockstep_2": 1.8},
    ),
    "cartpole_ppo_jax": Workload(
        title="CartPole-v1, PPO in JAX, environments on the host, 8 x 128",
        warm_up=20_480,
        measured=204_800,
        update=1024,
        contenders=(
            _ours("CartPole-v1", _CARTPOLE, _JAX),
            _peer("sbx", "sbx", "cartpole_ppo", "with_sb3.py"),
            _skrl("jax", "cartpole_ppo"),
            _ours("CartPole-v1", _doubled(_CARTPOLE, "num_envs"), _TWO_JAX),
        ),
        targets={"sbx": 5.5, "lockstep_2": 1.8},
    ),
    "cartpole_ppo_jax_device": Workload(
        title="CartPole-v1, PPO and environments on the device in JAX, 8 x 128",
        warm_up=102_400,
        measured=512_000,
        update=1024,
        contenders=(
            _ours("jax/CartPole-v1", _CARTPOLE, _JAX),
            Contender(
                name="purejaxrl", title="PureJaxRL", script="with_purejaxrl.py", arguments=("8",),
                environment="purejaxrl", needs_flag=_WITH_PUREJAXRL,
            ),
            _ours("jax/CartPole-v1", _doubled(_CARTPOLE, "num_envs"), _TWO_JAX),
        ),
        targets={"purejaxrl": 1.2, "lockstep_2": 1.8},
    ),
    "cartpole_4096": Workload(
        title="lockstep/Cartpole-v0, PPO, 4096 environments x 16 steps as tensors, Isaac Lab's settings",
        warm_up=131_072,
        measured=1_310_720,
        update=65_536,
        contenders=(
            _ours("cartpole_isaac", {"num_envs": 4096}),
            _ours("cartpole_isaac", {"num_envs": 4096}, _COMPILED),
            _ours("cartpole_isaac", {"num_envs": 4096}, _ALSO_JAX),
            _peer("skrl", "skrl", "4096", "with_skrl.py", "robots"),
            _peer("rl_games", "rl_games", "4096", "with_rl_games.py", "robots"),
            _peer("rsl_rl", "rsl_rl", "4096", "with_rsl_rl.py", "robots"),
            _ours("cartpole_isaac", {"num_envs": 8192}, _TWO),
        ),
        targets={"skrl": 2.5, "rl_games": 2.5, "rsl_rl": 2.5, "lockstep_2": 1.8},
    ),
    "cartpole_4096_ranks": Workload(
        title="lockstep/Cartpole-v0, PPO, 4096 environments x 16 steps on each of one and two ranks",
        warm_up=131_072,
        measured=1_310_720,
        update=65_536,
        contenders=(
            _ours("cartpole_isaac", {"num_envs": 4096}),
            _ours("cartpole_isaac", {"num_envs": 8192}, _TWO),
            *(_workflow(library, ranks) for library in ("skrl", "rl_games", "rsl_rl") for ranks in (1, 2)),
        ),
        targets={"lockstep_2": 1.8},
    ),
    "hopper_ppo": Workload(
        title="Hopper-v5, PPO, 4 environments x 512 steps, 10 epochs of 32 minibatches",
        warm_up=4096,
        measured=16_384,
        update=2048,
        contenders=(
            _ours("Hopper-v5", _HOPPER),
            _ours("Hopper-v5", _HOPPER, _COMPILED),
            _ours("Hopper-v5", _HOPPER, _ALSO_JAX),
            _peer("sb3", "Stable-Baselines3", "hopper_ppo", "with_sb3.py"),
            _peer("tianshou", "Tianshou", "hopper_ppo", "with_tianshou.py"),
            _peer("torchrl", "TorchRL", "hopper_ppo", "with_torchrl.py"),
            _skrl("torch", "hopper_ppo"),
            _peer("sbx", "sbx", "hopper_ppo", "with_sb3.py"),
            _ours("Hopper-v5", _doubled(_HOPPER, "num_envs"), _TWO),
        ),
        targets={"sb3": 2.0, "tianshou": 2.0, "torchrl": 2.0, "skrl": 2.0, "lockstep_2": 1.8},
    ),
    "pong_dqn": Workload(
        title="PongNoFrameskip-v4, DQN, Nature CNN, 32 transitions for every 4 steps",
        warm_up=1200,
        measured=3600,
        contenders=(
            _ours("pong_small", _PONG),
            _peer("sb3", "Stable-Baselines3", "pong_dqn", "with_sb3.py"),
            _ours("pong_small", _doubled_off_policy(_PONG), _TWO),
        ),
        targets={"sb3": 1.7, "lockstep_2": 1.6},
    ),
    "recurrent_ppo": Workload(
        title="CartPole-v1, recurrent PPO, an LSTM of 64 units for actor and critic, 8 x 128",
        warm_up=4096,
        measured=16_384,
        update=1024,
        contenders=(
            _ours("CartPole-v1", _LSTM),
            _ours("CartPole-v1", _LSTM, _ALSO_JAX),
            _peer("sb3", "sb3-contrib", "recurrent_ppo", "with_sb3.py"),
            _ours("CartPole-v1", _doubled(_LSTM, "num_envs"), _TWO),
        ),
        targets={"sb3": 2.0, "lockstep_2": 1.8},
    ),
    **{
        f"halfcheetah_{algo}": Workload(
            title=f"HalfCheetah-v5, {algo.upper()}, networks of 256 x 256, 256 transitions for every step",
            warm_up=512,
            measured=2048,
            contenders=(
                _ours(f"HalfCheetah-v5 --algo {algo}", _OFF_POLICY),
                _ours(f"HalfCheetah-v5 --algo {algo}", _OFF_POLICY, _COMPILED),
                _ours(f"HalfCheetah-v5 --algo {algo}", _OFF_POLICY, _ALSO_JAX),
                _peer("sb3", "Stable-Baselines3", f"halfcheetah_{algo}", "with_sb3.py"),
                _peer("sbx", "sbx", f"halfcheetah_{algo}", "with_sb3.py"),
                _ours(f"HalfCheetah-v5 --algo {algo}", _doubled_off_policy(_OFF_POLICY), _TWO),
            ),
            targets={"sb3": 1.5, "sbx": 1.0, "lockstep_2": 1.8},
        )
        for algo in ("sac", "td3")
    },
    "offline_dqn": Workload(
        title="logged data, DQN on 1024 of 500,000 rows, 16 features, a 128-64 network",
        unit="rows/s",
        warm_up=204_800,
        measured=1_024_000,
        update=1024,
        contenders=(
            Contender(
                name="lockstep", title="Lockstep", script="offline_dqn.py", arguments=("lockstep", "--ranks", "1"),
            ),
            Contender(
                name="lockstep_2", title="Lockstep, 2 ranks on 2 cores, 1024 rows on each", script="offline_dqn.py",
                cores=2, ranks=2, arguments=("lockstep", "--ranks", "2", "--batch-size", "2048"),
            ),
            Contender(
                name="lockstep_2_strong", title="Lockstep, 2 ranks on 2 cores, 512 rows on each",
                script="offline_dqn.py", cores=2, ranks=2, arguments=("lockstep", "--ranks", "2"),
            ),
            Contender(
                name="data_loader", title="a loop with torch's DataLoader", script="offline_dqn.py",
                arguments=("loader",),
            ),
        ),
        targets={"lockstep_2": 1.6, "lockstep_2_strong": 1.6},
    ),
    "gradients_9k": _gradient_sync(9_155, 1000, 3.0),
    "gradients_135k": _gradient_sync(134_659, 300, 2.0),
    "gradients_1.7m": _gradient_sync(1_687_206, 40, 1.2),
    "first_update": Workload(
        title="from the start of the process to the first update of PPO on CartPole-v1",
        unit="s",
        higher_is_better=False,
        measured=1024,
        update=1024,
        contenders=(
            _first_update("lockstep", "Lockstep"),
            _first_update("lockstep_jax", "Lockstep, JAX"),
            _first_update("sb3", "Stable-Baselines3", environment="sb3"),
            _first_update("sbx", "sbx", environment="sbx"),
            _first_update("torch", "`import torch` alone"),
        ),
    ),
}  # fmt: skip
"""By name. The first contender is Lockstep, with which the others are compared unless `one_rank` names another."""

ENVIRONMENTS: Mapping[str, tuple[str, ...]] = {
    "sb3": ("stable-baselines3==2.9.2", "sb3-contrib==2.9.2", "torch", "gymnasium", "mujoco", "packaging", "ale-py",
            "imageio", "opencv-python-headless"),
    "sbx": ("sbx-rl==0.28.0", "torch", "jax", "gymnasium", "mujoco", "packaging", "imageio"),
    "tianshou": ("tianshou==2.0.1", "torch", "gymnasium", "mujoco", "packaging", "imageio"),
    "torchrl": ("torchrl==0.14.1", "torch", "gymnasium", "mujoco", "packaging", "imageio"),
    "robots": ("skrl==2.1.1", "rl-games==1.6.5", "rsl-rl-lib==5.5.1", "gym==0.23.1", "torch", "gymnasium", "mujoco",
               "packaging", "imageio", "lazy_loader", "msgspec", "psutil==5.9.8", "pyyaml", "rich", "safetensors",
               "tensorboard", "threadpoolctl"),
    "skrl_jax": ("skrl==2.1.1", "flax==0.12.8", "jax", "optax", "gymnasium"),
    "purejaxrl": ("flax==0.12.8", "distrax==0.1.9", "chex==0.1.92", "six==1.17.0", "gymnax==1.0.1", "jax", "optax"),
}  # fmt: skip
"""Packages of each environment. Those without a version get the version that Lockstep runs on. Gymnasium imports
packaging for MuJoCo and does not require it; rl_games imports gym and does not require it either, and wants a psutil
below 6."""
