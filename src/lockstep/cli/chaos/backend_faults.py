"""What `lockstep.cli.chaos.faults` replaces in a backend: each function imports the one that the run computes with."""

from collections.abc import Callable
from typing import Any, cast

from lockstep.errors import ConfigError

_CHANGE = 1e-3


def wrap_advance(wrap: Callable[[Callable[[Any], Any]], Callable[[Any], Any]]) -> None:
    """Where environments are on the device there is no step to replace: the call that makes updates stands for it."""
    from lockstep.jax.on_device import DeviceCollector

    original = DeviceCollector.__init__

    def init(collector: DeviceCollector, *args: Any, **kwargs: Any) -> None:
        original(collector, *args, **kwargs)
        cast(Any, collector).advance = wrap(collector.advance)

    cast(Any, DeviceCollector).__init__ = init


def refuse_rewards(result: Any) -> None:
    """A reward on the device cannot be reached from outside."""
    if not isinstance(result, tuple):
        raise ConfigError("fault nan: the environments of this run are on the device; take another fault")


def collectives(framework: str) -> list[tuple[type, str]]:
    """Where a rank comes to when it has to send something to others: classes and their functions."""
    from lockstep.distributed.network.hosts import Hosts

    if framework == "jax":
        return [(Hosts, "exchange"), (Hosts, "gather")]
    from lockstep.torch.collectives.group import Group

    return [(Hosts, "exchange"), (Group, "gather"), (Group, "sum")]


def weight_changer(framework: str) -> Callable[[], None]:
    """What changes one weight of the learner that this process is going to make."""
    made: list[Any] = []

    def keep(kind: type) -> None:
        original = kind.__init__

        def init(one: Any, *args: Any, **kwargs: Any) -> None:
            original(one, *args, **kwargs)
            made.append(one)

        cast(Any, kind).__init__ = init

    if framework == "torch":
        from lockstep.torch.flat import FlatParameters

        keep(FlatParameters)

        def change() -> None:
            made[0].values.detach()[0] += _CHANGE

        return change
    from lockstep.jax.dqn import DQN
    from lockstep.jax.ppo import PPO

    for kind in (PPO, DQN):
        keep(kind)

    def change_in_jax() -> None:
        name, array = next((n, a) for n, a in sorted(made[0].shared_arrays().items()) if n.startswith("policy."))
        array = array.copy()
        array.flat[0] += _CHANGE
        made[0].load_shared({name: array})

    return change_in_jax
