"""A network of the user's own: `network.module` in torch."""

from typing import Any, cast

import numpy as np
import torch
from torch import Tensor, nn

from lockstep.envs.load import load_object
from lockstep.envs.spec import EnvSpec
from lockstep.errors import ConfigError


def own_network(path: str, spec: EnvSpec, num_outputs: int, seed: int, *, trains: bool = True) -> tuple[nn.Module, Any]:
    """The user's `network.module`, called as `YourClass(observation_size, num_outputs)`; equal on every rank.

    Args:
        path: names the class.
        spec: of the environments.
        num_outputs: that it is asked for.
        seed: of its initialisation.
        trains: False: the network only acts; it may draw random numbers in training mode, and remember earlier calls.

    Returns:
        The network in evaluation mode, and what it gives for 2 observations of zeros.

    Raises:
        ConfigError: it cannot be made, it fails, it cannot be trained with equal results on any number of ranks, or
            what it gives depends on earlier calls.
    """
    make = load_object(path, "network.module")
    with torch.random.fork_rng(devices=[]):  # the user's initialisation draws from the global generator
        torch.manual_seed(seed)
        try:
            network = make(spec.observation_size, num_outputs)
        except Exception as error:
            raise ConfigError(
                f"network.module={path}({spec.observation_size}, {num_outputs}) failed: {type(error).__name__}: {error}"
            ) from error
        if not isinstance(network, nn.Module):
            raise ConfigError(f"network.module={path} made a {type(network).__name__}, not a torch.nn.Module")
        if not any(parameter.requires_grad for parameter in network.parameters()):
            raise ConfigError(f"network.module={path} has no parameters to train; make its layers in __init__")
        _check_types(path, network)
        observations = torch.from_numpy(np.zeros((2, *spec.observation_shape), spec.observation_dtype))
        try:
            outputs: Any = network.eval()(observations)
            draws = trains and _draws_random_numbers(network, observations)
            remembers = not _same(outputs, _called_again(network, observations))
        except Exception as error:
            raise ConfigError(
                f"network.module={path} failed with observations {list(observations.shape)}: "
                f"{type(error).__name__}: {error}"
            ) from error
    if not _has_gradient(outputs):
        raise ConfigError(
            f"network.module={path} gave outputs without gradients; remove torch.no_grad and detach from its forward"
        )
    if draws:
        raise ConfigError(
            f"network.module={path} draws random numbers in its forward, as dropout does; they would depend on the "
            "number of ranks and be others after a resume: leave its dropout out (the critics of SAC and TD3 have the "
            "setting algorithm.dropout)"
        )
    if remembers and trains:
        raise ConfigError(
            f"network.module={path} gave other outputs for the same observations after a call with others: it keeps "
            "something from call to call, such as the state of a recurrent layer, and that of one environment, episode "
            "or minibatch would reach another; use network.recurrent without a module, or env.frame_stack and layers "
            "that begin anew in each call"
        )
    return network, outputs


def _check_types(path: str, network: nn.Module) -> None:
    """Refuse trained parameters that cannot be views of one tensor whose numbers are summed over ranks."""
    types = {parameter.dtype for parameter in network.parameters() if parameter.requires_grad}
    if len(types) > 1 or min(kind.itemsize for kind in types) < 4:
        names = " and ".join(sorted(str(kind).removeprefix("torch.") for kind in types))
        raise ConfigError(
            f"network.module={path} has trained parameters of {names}; give all of them one type of at least 32 bits"
        )


def _draws_random_numbers(network: nn.Module, observations: Tensor) -> bool:
    """Whether a forward pass in training mode draws from torch's global generator; buffers stay as they are."""
    kept = {name: buffer.clone() for name, buffer in network.named_buffers()}
    before = torch.get_rng_state()
    with torch.no_grad():
        network.train()(observations)
        for name, buffer in network.named_buffers():
            buffer.copy_(kept.get(name, buffer))
    network.eval()
    return not torch.equal(before, torch.get_rng_state())


def _called_again(network: nn.Module, observations: Tensor) -> Any:
    """What a network gives in evaluation mode after a call with other observations.

    What it keeps of this call has no gradient: `deepcopy` refuses tensors with one, and targets and exports are copies.
    """
    with torch.no_grad():
        network(torch.ones_like(observations))
        return network(observations)


def _same(one: Any, other: Any) -> bool:
    """Whether two calls gave the same numbers, up to rounding; True of what is no tensor, which is told elsewhere."""
    if isinstance(one, tuple | list):
        return all(map(_same, cast("list[Any]", one), cast("list[Any]", other)))
    return not isinstance(one, Tensor) or torch.allclose(one, other, rtol=1e-5, atol=1e-6, equal_nan=True)


def _has_gradient(outputs: Any) -> bool:
    """Whether gradients flow through any output; True of what is no tensor, which is told elsewhere."""
    if isinstance(outputs, tuple | list):
        return any(map(_has_gradient, cast("list[Any]", outputs)))
    return not isinstance(outputs, Tensor) or outputs.requires_grad


def described_outputs(outputs: Any) -> str:
    """The shapes of what a network gave, for errors."""
    if isinstance(outputs, Tensor):
        return f"{list(outputs.shape)}"
    if isinstance(outputs, tuple | list):
        return f"({', '.join(described_outputs(one) for one in cast('list[Any]', outputs))})"
    return f"a {type(outputs).__name__}"
