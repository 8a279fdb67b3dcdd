"""A vectorized class of the user steps choices counted from 0; one that says otherwise is refused."""

import numpy as np
import pytest

from lockstep.envs.make import make_vector_env
from lockstep.envs.spec import ActionSpec, EnvSpec
from lockstep.errors import ConfigError
from lockstep.run import EnvConfig


class Choices:
    """Follows `VectorEnv` as far as it is made."""

    def __init__(self, num_envs, start=(), shape=None):
        self.num_envs = num_envs
        self.spec = EnvSpec(1, ActionSpec("discrete", (3,), start=tuple(start), shape=shape), "same_step", True)

    def reset(self, seeds):
        return np.zeros((self.num_envs, 1), np.float32)

    def step(self, action):
        raise AssertionError("not stepped")

    def close(self):
        """Nothing to free."""


class TensorChoices(Choices):
    on_tensors = True

    def __init__(self, num_envs, device, **numbers):
        super().__init__(num_envs, **numbers)
        self.device = device


@pytest.mark.parametrize("change", [{"start": (-1,)}, {"shape": (1,)}])
@pytest.mark.parametrize("kind", ["Choices", "TensorChoices"])
def test_other_numbers_of_actions_are_refused(kind, change):
    task = f"{__file__}:{kind}"

    def make(config):
        if kind == "Choices":
            return make_vector_env(task, config, 2)
        torch = pytest.importorskip("torch")
        from lockstep.torch.envs.make import make_tensor_env

        return make_tensor_env(task, config, 2, torch.device("cpu"))

    (name,) = change
    assert make(EnvConfig()).spec.action.start == ()
    with pytest.raises(
        ConfigError, match=rf"spec.action has {name}=.*leave {name} out, and convert the action in step"
    ):
        make(EnvConfig(kwargs=change))
