"""What the first weights of SAC and TD3 are, by `network.initialization`, on plain arrays."""

import math

import numpy as np


def check_first_weights(parameters: dict[str, np.ndarray], initialization: str | None) -> None:
    """Check each layer of the actor, `actor.layers.I.weight` [H, I], and of the critics, `critics...` [C, H, I]."""
    for network in ("actor", "critics"):
        last = max(int(name.split(".")[2]) for name in parameters if name.startswith(f"{network}.layers."))
        for i in range(last + 1):
            weights, biases = (parameters[f"{network}.layers.{i}.{kind}"] for kind in ("weight", "bias"))
            of_critics = weights if weights.ndim == 3 else weights[None]
            if initialization == "orthogonal":
                gain = 1.0 if i == last else math.sqrt(2)
                for weight in of_critics:
                    wide = weight if weight.shape[0] <= weight.shape[1] else weight.T
                    np.testing.assert_allclose(wide @ wide.T, gain**2 * np.eye(len(wide)), atol=1e-5)
                assert not biases.any()
            else:
                bound = 1 / math.sqrt(weights.shape[-1])
                assert 0.5 * bound < np.abs(weights).max() <= bound
                assert 0 < np.abs(biases).max() <= bound
            assert len(of_critics) == 1 or not np.array_equal(of_critics[0], of_critics[1])
