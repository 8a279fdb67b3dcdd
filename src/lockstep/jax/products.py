"""Products of rows with the weights of linear layers, whose gradients are faster on CPUs than XLA's own.

XLA is slow for the gradient d^T x of a weight if d has more columns than x, or if there are several of them. The same
product takes half of the time if d is transposed in memory first, or if x^T d is transposed afterwards.

Shapes: N rows, I inputs of a layer, H its outputs, C layers.
"""

import jax
from jax import Array, lax


@jax.custom_vjp
def product(x: Array, weight: Array) -> Array:
    """[N, I] and weights [H, I] to x W^T [N, H]."""
    return x @ weight.T


def _product_forward(x: Array, weight: Array) -> tuple[Array, tuple[Array, Array]]:
    return product(x, weight), (x, weight)


def _product_backward(saved: tuple[Array, Array], gradient: Array) -> tuple[Array, Array]:
    x, weight = saved
    outputs, inputs = weight.shape
    of_weight = _in_memory(x.T @ gradient).T if outputs > inputs else _in_memory(gradient.T) @ x
    return gradient @ weight, of_weight


product.defvjp(_product_forward, _product_backward)


@jax.custom_vjp
def batched_product(x: Array, weight: Array) -> Array:
    """[C, N, I] and weights [C, H, I] to x_c W_c^T [C, N, H]."""
    return lax.dot_general(x, weight, (((2,), (2,)), ((0,), (0,))))


def _batched_forward(x: Array, weight: Array) -> tuple[Array, tuple[Array, Array]]:
    return batched_product(x, weight), (x, weight)


def _batched_backward(saved: tuple[Array, Array], gradient: Array) -> tuple[Array, Array]:
    x, weight = saved
    of_x = lax.dot_general(gradient, weight, (((2,), (1,)), ((0,), (0,))))
    transposed = _in_memory(gradient.swapaxes(1, 2))
    return of_x, lax.dot_general(transposed, x, (((2,), (1,)), ((0,), (0,))))


batched_product.defvjp(_batched_forward, _batched_backward)


def _in_memory(x: Array) -> Array:
    """The array itself; the barrier keeps XLA from merging a transposition with the product before or after it."""
    return lax.optimization_barrier(x)
