"""The parts of fault injection that depend on the backend; each function imports only the backend of the run."""

from collections.abc import Callable
from typing import Any, TypeVar, cast

from lockstep.errors import ConfigError

_T = TypeVar("_T")

_CHANGE = 1e-3


def wrap_advance(wrap: Callable[[Callable[[Any], Any]], Callable[[Any], Any]]) -> None:
    """Wrap the update call of on-device training, which has no `env.step` on the host."""
    from lockstep.jax.ppo_on_device import PPODeviceLoop

    original = PPODeviceLoop.__init__

    def init(loop: PPODeviceLoop, *args: Any, **kwargs: Any) -> None:
        original(loop, *args, **kwargs)
        cast(Any, loop).run_until_due = wrap(loop.run_until_due)

    cast(Any, PPODeviceLoop).__init__ = init


def check_rewards_on_host(result: Any) -> None:
    """Raise `ConfigError` for environments on the device, whose rewards cannot be changed."""
    if not isinstance(result, tuple):
        raise ConfigError("fault nan: the environments of this run are on the device; take another fault")


def collectives(framework: str) -> list[tuple[type, str]]:
    """The collectives of a backend, as classes and names of their methods."""
    from lockstep.distributed.network.hosts import Hosts

    if framework == "jax":
        return [(Hosts, "exchange"), (Hosts, "gather")]
    from lockstep.torch.collectives.group import Group

    return [(Hosts, "exchange"), (Group, "gather"), (Group, "sum")]


def weight_changer(framework: str) -> Callable[[], None]:
    """A function that changes one weight of the learner that this process will create."""
    if framework == "torch":
        from lockstep.torch.flat import FlatParameters

        networks = _created(FlatParameters)

        def change() -> None:
            networks[0].params.detach()[0] += _CHANGE

        return change
    from lockstep.jax.actor_critic import ActorCritic
    from lockstep.jax.dqn import DQN
    from lockstep.jax.ppo import PPO

    learners: list[PPO | DQN | ActorCritic[Any]] = _created(PPO, DQN, ActorCritic)

    def change_in_jax() -> None:
        learner = learners[0]
        name, array = next((n, a) for n, a in sorted(learner.shared_arrays().items()) if n.startswith("policy."))
        array = array.copy()
        array.flat[0] += _CHANGE
        learner.load_shared({name: array})

    return change_in_jax


def _created(*classes: type[_T]) -> list[_T]:
    """A list of the instances of these classes; each is added when it is created."""
    instances: list[_T] = []

    def collect(cls: type[_T]) -> None:
        original = cls.__init__

        def init(self: _T, *args: Any, **kwargs: Any) -> None:
            original(self, *args, **kwargs)
            instances.append(self)

        cast(Any, cls).__init__ = init

    for cls in classes:
        collect(cls)
    return instances
