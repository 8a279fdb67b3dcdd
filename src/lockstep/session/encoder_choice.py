"""Which encoder a network has, by its settings and the observations of the task."""

from collections.abc import Mapping

from lockstep.config.network import NetworkConfig
from lockstep.envs.spec import EnvSpec
from lockstep.errors import ConfigError

CONVOLUTIONS: Mapping[str, tuple[tuple[int, int, int], ...]] = {
    "nature": ((32, 8, 4), (64, 4, 2), (64, 3, 1)),
    "wide": ((128, 8, 4), (128, 4, 2), (512, 3, 1)),
    "small": ((16, 8, 4), (32, 4, 2)),
}
"""Channels, kernel and stride of each layer of these encoders."""


def encoder_of(config: NetworkConfig, spec: EnvSpec) -> str:
    """The encoder of a network; `auto` chooses by the observations."""
    if config.encoder != "auto":
        return config.encoder
    images = _images(spec)
    if not images:
        return "mlp"
    smallest = min(min(shape[1:]) for shape in images)
    return "nature" if smallest >= _smallest_image("nature") else "impala"


def only_convolves(config: NetworkConfig, spec: EnvSpec) -> bool:
    """Whether policy and value network have convolutions and no hidden layers: both observe an image alone."""
    return spec.image is not None and spec.critic_size is None and encoder_of(config, spec) != "mlp"


def _images(spec: EnvSpec) -> list[tuple[int, int, int]]:
    """The shapes of all images of the policy and the value network."""
    parts = [part.shape for part in (*spec.image_parts, *spec.critic_image_parts)]
    return parts if spec.image is None else [spec.image, *parts]


def _smallest_image(kind: str) -> int:
    """Height and width of the smallest image that the convolutions of an encoder take."""
    least = 1
    for _, kernel, stride in reversed(CONVOLUTIONS[kind]):
        least = (least - 1) * stride + kernel
    return least


def check_encoder(config: NetworkConfig, spec: EnvSpec) -> None:
    """Raise `ConfigError` for convolutions on observations without images, or images that are too small."""
    images = _images(spec)
    if not images:
        if config.encoder not in ("auto", "mlp"):
            raise ConfigError(
                f"network.encoder={config.encoder} needs images, and this task observes vectors; use mlp, or auto"
            )
        return
    kind = encoder_of(config, spec)
    if config.module is not None or kind not in CONVOLUTIONS:
        return
    least = _smallest_image(kind)
    _, height, width = min(images, key=lambda shape: min(shape[1:]))
    if min(height, width) < least:
        raise ConfigError(
            f"network.encoder={kind} needs images of at least {least} by {least}, and this task observes {height} by "
            f"{width}; use larger images, or network.encoder=impala or mlp, which take any size"
        )
