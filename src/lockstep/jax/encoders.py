"""Encoders from observations to features: linear layers for vectors, convolutions for images.

Networks are stateless; parameters are arguments. Their names, shapes and layouts are those of torch: weights [out, in],
kernels [channels out, channels in, height, width].

Shapes: N rows, O numbers of a vector, C channels, H height and W width of an image, F features.
"""

import math
from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax

from lockstep.config.network import NetworkConfig
from lockstep.envs.spec import EnvSpec, ImagePart, number_columns
from lockstep.jax.flat import Params, subtree, with_prefix
from lockstep.session.encoder_choice import CONVOLUTIONS, check_encoder, encoder_of
from lockstep.world import stream

InitStreams = Callable[[str], np.random.Generator]
"""Returns the random stream for a parameter's initial values, by its name."""


@jax.custom_jvp
def _elu(x: Array) -> Array:
    return jnp.maximum(x, jnp.exp(jnp.minimum(x, 0)) - 1)


_elu.defjvps(lambda tangent, y, _: tangent * jnp.where(y > 0, 1, y + 1))


def elu(x: Array) -> Array:
    """max(x, 0) + exp(min(x, 0)) - 1. `jax.nn.elu` spends a third of a small network's time on a CPU in expm1.

    The difference is below 1e-7 in float32. bfloat16 would lose small numbers, and keeps `jax.nn.elu`.
    """
    return _elu(x) if x.dtype == jnp.float32 else jax.nn.elu(x)


ACTIVATIONS: dict[str, Callable[[Array], Array]] = {
    "tanh": jnp.tanh,
    "relu": jax.nn.relu,
    "elu": elu,
    "silu": jax.nn.silu,
}


class Mlp:
    """Linear layers with an activation between them, and after the last one if `activate_last`."""

    def __init__(
        self,
        sizes: tuple[int, ...],
        activation: str,
        *,
        last_gain: float,
        activate_last: bool = False,
        orthogonal: bool = True,
    ) -> None:
        self.shapes = [(b, a) for a, b in pairwise(sizes)]
        self.activation, self.last_gain, self.activate_last = activation, last_gain, activate_last
        self.num_features = sizes[-1]
        self._orthogonal = orthogonal

    def initialize(self, draws: InitStreams) -> dict[str, np.ndarray]:
        """Orthogonal weights (Saxe et al., 2014) with gain sqrt(2), the last layer with `last_gain`; biases 0.

        Without `orthogonal`: weights uniform within 1 / sqrt(fan-in).
        """
        params: dict[str, np.ndarray] = {}
        for i, shape in enumerate(self.shapes):
            gain = self.last_gain if i == len(self.shapes) - 1 else math.sqrt(2)
            if self._orthogonal:
                params |= _orthogonal_layer(f"layers.{i}", shape, gain, draws)
            else:
                params |= uniform_layer(f"layers.{i}", shape, draws)
                params[f"layers.{i}.bias"] = np.zeros(shape[0], np.float32)
        return params

    def apply(self, params: Params, x: Array) -> Array:
        """[N, first size] to [N, last size]; images are flattened. The output is float32 unless `activate_last`."""
        activation, last = ACTIVATIONS[self.activation], len(self.shapes) - 1
        x = as_numbers(x, params)
        kind = x.dtype
        for i in range(len(self.shapes)):
            weight, bias = params[f"layers.{i}.weight"], params[f"layers.{i}.bias"]
            x = _rounded(x @ weight.T, kind) + bias.astype(jnp.float32)[None]
            if i < last or self.activate_last:
                x = _rounded(activation(x), kind).astype(kind)
        return x


class Convolutions:
    """Convolutions with ReLU between them, then one linear layer.

    Args:
        image: C, H and W.
        layers: channels, kernel and stride of each.
        features: F; `None`: no linear layer, and F is the size of the convolutions' output.
        activate_last: ReLU after the linear layer too.
        orthogonal: orthogonal initial weights instead of uniform ones.
    """

    def __init__(
        self,
        image: tuple[int, int, int],
        layers: Sequence[tuple[int, int, int]],
        features: int | None,
        *,
        activate_last: bool,
        orthogonal: bool = True,
    ) -> None:
        channels, height, width = image
        self.shapes: list[tuple[int, ...]] = []
        self._strides, self._orthogonal = [stride for *_, stride in layers], orthogonal
        for out, kernel, stride in layers:
            self.shapes.append((out, channels, kernel, kernel))
            channels, height, width = out, (height - kernel) // stride + 1, (width - kernel) // stride + 1
        size = channels * height * width
        self.linear = None if features is None else (features, size)
        self.num_features, self.activate_last = features or size, activate_last

    def initialize(self, draws: InitStreams) -> dict[str, np.ndarray]:
        """Orthogonal weights with gain sqrt(2), biases 0; or both uniform within 1 / sqrt(fan-in)."""
        params: dict[str, np.ndarray] = {}
        for name, shape in _named(self.shapes, self.linear):
            if self._orthogonal:
                params |= _orthogonal_layer(name, shape, math.sqrt(2), draws)
            else:
                params |= uniform_layer(name, shape, draws)
        return params

    def apply(self, params: Params, x: Array) -> Array:
        """Bytes [N, C, H, W] to [N, F]."""
        x = _scaled(x, params)
        for i, stride in enumerate(self._strides):
            x = jax.nn.relu(_convolution(params, f"layers.{i}", x, stride, "VALID"))
        x = x.reshape(x.shape[0], -1)
        if self.linear is None:
            return x
        x = linear(params, "linear", x)
        return jax.nn.relu(x) if self.activate_last else x


class Impala:
    """Three blocks of a convolution, a max pool and two residual units, then one linear layer (Espeholt et al., 2018).

    Args:
        image: C, H and W.
        features: F; `None`: no linear layer, and F is the size of the blocks' output.
    """

    def __init__(self, image: tuple[int, int, int], features: int | None) -> None:
        channels, height, width = image
        self.shapes: list[tuple[int, ...]] = []
        for out in (16, 32, 32):
            self.shapes += [(out, channels, 3, 3)] + 4 * [(out, out, 3, 3)]
            channels, height, width = out, (height + 1) // 2, (width + 1) // 2
        size = channels * height * width
        self.linear = None if features is None else (features, size)
        self.num_features = features or size

    def initialize(self, draws: InitStreams) -> dict[str, np.ndarray]:
        """Orthogonal weights with gain sqrt(2), biases 0."""
        params: dict[str, np.ndarray] = {}
        for name, shape in _named(self.shapes, self.linear):
            params |= _orthogonal_layer(name, shape, math.sqrt(2), draws)
        return params

    def apply(self, params: Params, x: Array) -> Array:
        """Bytes [N, C, H, W] to [N, F]."""

        def convolution(i: int, y: Array) -> Array:
            return _convolution(params, f"layers.{i}", y, 1, "SAME")

        x = _scaled(x, params)
        for first in range(0, len(self.shapes), 5):
            x = _max_pool(convolution(first, x))
            for i in (first + 1, first + 3):
                x = x + convolution(i + 1, jax.nn.relu(convolution(i, jax.nn.relu(x))))
        x = jax.nn.relu(x).reshape(x.shape[0], -1)
        return x if self.linear is None else jax.nn.relu(linear(params, "linear", x))


class ImagesAndNumbers:
    """An encoder for each image among the numbers of an observation; the other numbers follow the features as they are.

    Args:
        parts: the images.
        encoders: of these, in their order.
        size: O.
    """

    def __init__(self, parts: Sequence[ImagePart], encoders: Sequence[Convolutions | Impala], size: int) -> None:
        self.parts, self.encoders = parts, encoders
        self._numbers = number_columns(parts, size)
        numbers = sum(columns.stop - columns.start for columns in self._numbers)
        self.num_features = sum(encoder.num_features for encoder in encoders) + numbers

    def initialize(self, draws: InitStreams) -> dict[str, np.ndarray]:
        """Those of the encoders."""
        params: dict[str, np.ndarray] = {}
        for i, encoder in enumerate(self.encoders):
            name = f"encoders.{i}"
            params |= with_prefix(name, encoder.initialize(lambda key, name=name: draws(f"{name}.{key}")))
        return params

    def apply(self, params: Params, x: Array) -> Array:
        """[N, O] to [N, F]."""
        features = [
            encoder.apply(subtree(params, f"encoders.{i}"), x[:, part.columns].reshape(-1, *part.shape))
            for i, (encoder, part) in enumerate(zip(self.encoders, self.parts, strict=True))
        ]
        numbers = [x[:, columns].astype(features[0].dtype) for columns in self._numbers]
        return jnp.concatenate([*features, *numbers], 1)


Encoder = Mlp | Convolutions | Impala | ImagesAndNumbers


def make_encoder(spec: EnvSpec, config: NetworkConfig, *, last: bool = True) -> Encoder:
    """The encoder that the config names, or the default for the observations.

    Args:
        spec: of the environments.
        config: of the network.
        last: False leaves the last hidden layer to the heads. The last layer of `wide` stays, because no activation
            follows it.
    """
    check_encoder(config, spec)
    kind = encoder_of(config, spec)
    if kind == "mlp" or not spec.has_images:
        sizes = (spec.observation_size, *(config.hidden if last else config.hidden[:-1]))
        orthogonal = config.initialization != "uniform"
        return Mlp(sizes, config.activation, last_gain=math.sqrt(2), activate_last=True, orthogonal=orthogonal)
    if spec.image is None:
        return _images_and_numbers(kind, spec.image_parts, spec.observation_size, config, last=last)
    return _image_encoder(kind, spec.image, config, last=last)


def make_critic_encoder(spec: EnvSpec, config: NetworkConfig) -> ImagesAndNumbers | None:
    """The encoder of the value network's own observation; None if it has no images, or `mlp` is to take them."""
    kind = encoder_of(config, spec)
    if kind == "mlp" or not spec.critic_image_parts:
        return None
    return _images_and_numbers(kind, spec.critic_image_parts, spec.critic_size or 0, config)


def _images_and_numbers(
    kind: str, parts: Sequence[ImagePart], size: int, config: NetworkConfig, *, last: bool = True
) -> ImagesAndNumbers:
    return ImagesAndNumbers(parts, [_image_encoder(kind, part.shape, config, last=last) for part in parts], size)


def _image_encoder(
    kind: str, image: tuple[int, int, int], config: NetworkConfig, *, last: bool
) -> Convolutions | Impala:
    features = config.features if last or kind == "wide" else None
    if kind == "impala":
        return Impala(image, features)
    plain = kind != "wide"  # whose reference has uniform initial weights and no last activation
    return Convolutions(image, CONVOLUTIONS[kind], features, activate_last=plain, orthogonal=plain)


def linear(params: Params, name: str, x: Array) -> Array:
    """[N, I] to x W^T + b [N, O]."""
    return x @ params[f"{name}.weight"].T + params[f"{name}.bias"][None]


def uniform_layer(name: str, shape: Sequence[int], draws: InitStreams) -> dict[str, np.ndarray]:
    """Weight and bias, uniform within 1 / sqrt(fan-in)."""
    bound = 1.0 / math.sqrt(math.prod(shape[1:]))
    shapes = {f"{name}.weight": tuple(shape), f"{name}.bias": (shape[0],)}
    return {key: draws(key).uniform(-bound, bound, size).astype(np.float32) for key, size in shapes.items()}


def init_streams(seed: int) -> InitStreams:
    """Streams keyed by the seed and the parameter's name, independent of order and of other parameters."""
    return lambda name: stream(seed, f"init {name}")


def cast_inputs(params: Params, observation: Array, precision: str) -> tuple[Params, Array]:
    """Parameters and observation in the precision of the computation; images stay bytes until they are scaled."""
    if precision == "float32":
        return params, observation
    low = {name: value.astype(jnp.bfloat16) for name, value in params.items()}
    return low, observation if observation.dtype == jnp.uint8 else observation.astype(jnp.bfloat16)


def _rounded(x: Array, kind: Any) -> Array:
    """`x` in float32, rounded to bfloat16 if that is `kind`; XLA may drop a plain cast in a fused kernel."""
    return lax.reduce_precision(x.astype(jnp.float32), 8, 7) if kind == jnp.bfloat16 else x


def _named(shapes: Sequence[tuple[int, ...]], last: tuple[int, int] | None) -> list[tuple[str, tuple[int, ...]]]:
    named = [(f"layers.{i}", shape) for i, shape in enumerate(shapes)]
    return named if last is None else [*named, ("linear", last)]


def _orthogonal_layer(name: str, shape: tuple[int, ...], gain: float, draws: InitStreams) -> dict[str, np.ndarray]:
    """Orthogonal weights; biases 0."""
    weight = orthogonal(shape, gain, draws(f"{name}.weight"))
    return {f"{name}.weight": weight, f"{name}.bias": np.zeros(shape[0], np.float32)}


def orthogonal(shape: tuple[int, ...], gain: float, generator: np.random.Generator) -> np.ndarray:
    """Orthogonal rows (or columns, where there are fewer) of norm `gain`."""
    rows, columns = shape[0], math.prod(shape[1:])
    drawn = generator.standard_normal((max(rows, columns), min(rows, columns)))
    q, r = np.linalg.qr(drawn)
    q *= np.sign(np.diag(r))  # makes the distribution uniform over orthogonal matrices (Mezzadri, 2007)
    return (gain * (q.T if rows < columns else q).reshape(shape)).astype(np.float32)


def as_numbers(x: Array, params: Params) -> Array:
    """[N, *O] to [N, O]: uint8 images as numbers in [0, 1], in the parameters' dtype; vectors as they are."""
    return _scaled(x, params).reshape(x.shape[0], -1) if x.ndim > 2 else x


def _scaled(x: Array, params: Params) -> Array:
    """Bytes scaled to [0, 1], in the parameters' dtype."""
    if x.dtype != jnp.uint8:
        return x
    scaled = x.astype(jnp.float32) / 255.0
    return scaled.astype(next(iter(params.values())).dtype) if params else scaled


def _convolution(params: Params, name: str, x: Array, stride: int, padding: str) -> Array:
    layout = ("NCHW", "OIHW", "NCHW")
    weight, bias = params[f"{name}.weight"], params[f"{name}.bias"]
    return (
        lax.conv_general_dilated(x, weight, (stride, stride), padding, dimension_numbers=layout)
        + bias[None, :, None, None]
    )


def _max_pool(x: Array) -> Array:
    lowest = np.array(-np.inf, x.dtype)  # a numpy constant, which JAX needs to know the gradient
    return lax.reduce_window(x, lowest, lax.max, (1, 1, 3, 3), (1, 1, 2, 2), [(0, 0), (0, 0), (1, 1), (1, 1)])
