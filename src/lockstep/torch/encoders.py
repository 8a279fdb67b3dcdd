"""Encoders of observations: linear layers for vectors, convolutions for images.

Shapes: N rows, O numbers of a vector, C channels, H height and W width of an image, F features.
"""

import math
from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import cast

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn

from lockstep.config.network import NetworkConfig
from lockstep.envs.spec import EnvSpec, ImagePart, number_columns
from lockstep.session.encoder_choice import CONVOLUTIONS, check_encoder, encoder_of
from lockstep.torch.layers import conv2d, elu
from lockstep.torch.products import linear

ACTIVATIONS = {"tanh": torch.tanh, "relu": torch.relu, "elu": F.elu, "silu": F.silu}


class Mlp(nn.Module):
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
        super().__init__()
        layers = nn.ModuleList(nn.Linear(a, b) for a, b in pairwise(sizes))
        self.layers = cast("Sequence[nn.Linear]", layers)  # torch types its items as any module
        self.activation = activation
        self.last_gain = last_gain
        self.activate_last = activate_last
        self.num_features = sizes[-1]
        self._orthogonal = orthogonal

    def initialize(self, generator: torch.Generator) -> None:
        """Orthogonal weights (Saxe et al., 2014) with gain sqrt(2), the last layer with `last_gain`; biases 0.

        Without `orthogonal`: weights uniform within 1 / sqrt(fan-in).
        """
        for i, layer in enumerate(self.layers):
            last = i == len(self.layers) - 1
            if self._orthogonal:
                _initialize(layer, generator, self.last_gain if last else math.sqrt(2))
            else:
                _initialize_uniform(layer, generator)
                nn.init.zeros_(layer.bias)

    def forward(self, x: Tensor) -> Tensor:
        """[N, first size] to [N, last size]; images are flattened."""
        activation = elu if self.activation == "elu" else ACTIVATIONS[self.activation]
        last = len(self.layers) - 1
        x = as_numbers(x)
        for i, layer in enumerate(self.layers):
            x = linear(x, layer.weight, layer.bias)
            if i < last or self.activate_last:
                x = activation(x)
        return x


class Convolutions(nn.Module):
    """Convolutions with ReLU between them, then one linear layer.

    Args:
        image: C, H and W.
        layers: channels, kernel and stride of each.
        features: F; `None` omits the linear layer, and F is the size of the last convolution's output.
        activate_last: ReLU after the linear layer too.
        orthogonal: orthogonal initial weights instead of torch's default.
        channels_last: layout of the images on a GPU.

    Attributes:
        uses: estimated multiplications per row: a convolution uses each weight once per output pixel.
    """

    def __init__(
        self,
        image: tuple[int, int, int],
        layers: Sequence[tuple[int, int, int]],
        features: int | None,
        *,
        activate_last: bool,
        orthogonal: bool = True,
        channels_last: bool = False,
    ) -> None:
        super().__init__()
        channels, height, width = image
        made: list[nn.Conv2d] = []
        self.uses = 0
        self._orthogonal = orthogonal
        self._channels_last = channels_last
        for out, kernel, stride in layers:
            made.append(nn.Conv2d(channels, out, kernel, stride))
            channels, height, width = out, (height - kernel) // stride + 1, (width - kernel) // stride + 1
            self.uses += made[-1].weight.numel() * height * width
        self.layers = cast("Sequence[nn.Conv2d]", nn.ModuleList(made))
        size = channels * height * width
        self.linear = None if features is None else nn.Linear(size, features)
        self.uses += size * (features or 0)
        self.num_features = features or size
        self.activate_last = activate_last

    def initialize(self, generator: torch.Generator) -> None:
        """Orthogonal weights with gain sqrt(2), biases 0; or both uniform within 1 / sqrt(fan-in)."""
        for layer in (*self.layers, self.linear):
            if layer is not None and self._orthogonal:
                _initialize(layer, generator, math.sqrt(2))
            elif layer is not None:
                _initialize_uniform(layer, generator)

    def forward(self, x: Tensor) -> Tensor:
        """Bytes [N, C, H, W] to [N, F]."""
        x = _scaled(x, channels_last=self._channels_last)
        for layer in self.layers:
            x = F.relu(conv2d(x, layer), inplace=True)
        x = x.flatten(1)
        if self.linear is None:
            return x
        x = linear(x, self.linear.weight, self.linear.bias)
        return F.relu(x) if self.activate_last else x


class Impala(nn.Module):
    """Three blocks of a convolution, a max pool and two residual units, then one linear layer (Espeholt et al., 2018).

    Args:
        image: C, H and W.
        features: F; `None` omits the linear layer, and F is the size of the last block's output.
        channels_last: layout of the images on a GPU.

    Attributes:
        uses: estimated multiplications per row, as in `Convolutions`.
    """

    def __init__(self, image: tuple[int, int, int], features: int | None, *, channels_last: bool = False) -> None:
        super().__init__()
        channels, height, width = image
        self._channels_last = channels_last
        made: list[nn.Conv2d] = []
        self.uses = 0
        for out in (16, 32, 32):
            made += [nn.Conv2d(channels, out, 3, padding=1)] + [nn.Conv2d(out, out, 3, padding=1) for _ in range(4)]
            self.uses += made[-5].weight.numel() * height * width
            channels, height, width = out, (height + 1) // 2, (width + 1) // 2
            self.uses += sum(layer.weight.numel() for layer in made[-4:]) * height * width
        self.layers = cast("Sequence[nn.Conv2d]", nn.ModuleList(made))
        size = channels * height * width
        self.linear = None if features is None else nn.Linear(size, features)
        self.uses += size * (features or 0)
        self.num_features = features or size

    def initialize(self, generator: torch.Generator) -> None:
        """Orthogonal weights with gain sqrt(2), biases 0."""
        for layer in (*self.layers, self.linear):
            if layer is not None:
                _initialize(layer, generator, math.sqrt(2))

    def forward(self, x: Tensor) -> Tensor:
        """Bytes [N, C, H, W] to [N, F]."""
        x = _scaled(x, channels_last=self._channels_last)
        for first in range(0, len(self.layers), 5):
            entry, *residual = (self._convolution(i) for i in range(first, first + 5))
            x = F.max_pool2d(entry(x), 3, 2, 1)
            for a, b in (residual[:2], residual[2:]):
                x = x + b(F.relu(a(F.relu(x))))
        x = F.relu(x).flatten(1)
        return x if self.linear is None else F.relu(linear(x, self.linear.weight, self.linear.bias))

    def _convolution(self, i: int) -> Callable[[Tensor], Tensor]:
        layer = self.layers[i]
        return lambda x: F.conv2d(x, layer.weight, layer.bias, padding=1)


class ImagesAndNumbers(nn.Module):
    """An encoder for each image among the numbers of an observation; the other numbers follow the features as they are.

    Args:
        parts: the images.
        encoders: of these, in their order.
        size: O.
    """

    def __init__(self, parts: Sequence[ImagePart], encoders: Sequence[Convolutions | Impala], size: int) -> None:
        super().__init__()
        self.encoders = nn.ModuleList(encoders)
        self._parts = parts
        self._numbers = number_columns(parts, size)
        numbers = sum(columns.stop - columns.start for columns in self._numbers)
        self.num_features = sum(encoder.num_features for encoder in encoders) + numbers

    def forward(self, x: Tensor) -> Tensor:
        """[N, O] to [N, F]."""
        pairs = zip(self.encoders, self._parts, strict=True)
        features = [encoder(x[:, part.columns].unflatten(1, part.shape)) for encoder, part in pairs]
        return torch.cat([*features, *(x[:, columns] for columns in self._numbers)], 1)


Encoder = Mlp | Convolutions | Impala | ImagesAndNumbers


def make_encoder(spec: EnvSpec, config: NetworkConfig, *, last: bool = True) -> Encoder:
    """The encoder of the config; `auto` chooses by the observations.

    Args:
        spec: of the environments.
        config: of the network.
        last: False leaves the last hidden layer to the heads, except for `wide`, whose last layer has no activation.
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
        return Impala(image, features, channels_last=config.channels_last)
    # The reference implementation of `wide` has torch's default weights and no last activation.
    plain = kind != "wide"
    return Convolutions(
        image,
        CONVOLUTIONS[kind],
        features,
        activate_last=plain,
        orthogonal=plain,
        channels_last=config.channels_last,
    )


def as_numbers(x: Tensor) -> Tensor:
    """[N, *O] to [N, O]: uint8 images as numbers in [0, 1], vectors as they are."""
    return x.flatten(1).float().div_(255) if x.ndim > 2 else x


def _scaled(x: Tensor, *, channels_last: bool) -> Tensor:
    """Convert bytes to [0, 1]; on a CPU always to the channels-last layout, in which its convolutions are fastest."""
    if x.dtype != torch.uint8:
        return x.contiguous(memory_format=torch.channels_last) if channels_last or x.device.type == "cpu" else x
    if x.device.type == "cpu":  # stacking bytes takes a third of the time of `to(memory_format=channels_last)`
        x = torch.stack(x.unbind(1), -1).permute(0, 3, 1, 2)
    elif channels_last:
        x = x.contiguous(memory_format=torch.channels_last)
    return x.float().div_(255)


def _initialize(layer: nn.Linear | nn.Conv2d, generator: torch.Generator, gain: float) -> None:
    nn.init.orthogonal_(layer.weight, gain, generator=generator)
    nn.init.zeros_(cast(Tensor, layer.bias))


def _initialize_uniform(layer: nn.Linear | nn.Conv2d, generator: torch.Generator) -> None:
    """Weight and bias within 1 / sqrt(fan-in), as torch initializes its layers."""
    bound = 1 / math.sqrt(layer.weight[0].numel())
    for parameter in layer.parameters():
        nn.init.uniform_(parameter, -bound, bound, generator=generator)
