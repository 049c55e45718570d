"""Test JAX on a card, in small steps, each of them passed or failed by name.

    jax_steps.py MODEL MEMORY_MIB

MODEL and MEMORY_MIB are the expected values of the card. Each step prints `step NAME: passed`, or the reason; the next
one follows in the same process. Imports nothing but JAX and numpy: its interpreter has none of our packages.
"""

import sys
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

Step = Callable[[], None]
MODEL, MEMORY_BYTES = sys.argv[1], int(sys.argv[2]) << 20
STEPS: list[Step] = []
CPU = jax.devices("cpu")[0]
# XLA may multiply single precision by tensor cores (TF32), which is far from the processor's numbers.
jax.config.update("jax_default_matmul_precision", "highest")


def step(function: Step) -> Step:
    """Register a step; a false assertion or any error in it fails it."""
    STEPS.append(function)
    return function


def numbers(*shape: int, seed: int = 0) -> np.ndarray[Any, np.dtype[np.float32]]:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def same(compute: Callable[..., Any], *inputs: Any, within: float = 1e-4) -> None:
    """Check that card and processor compute the same."""
    with jax.default_device(CPU):
        expected = jax.tree.map(np.asarray, compute(*map(jnp.asarray, inputs)))
    found = compute(*map(jnp.asarray, inputs))
    leaf = jax.tree.leaves(found)[0]
    assert {each.platform for each in leaf.devices()} == {"gpu"}, leaf.devices()
    for one, two in zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True):
        here, there = np.asarray(one, np.float64), np.asarray(two, np.float64)
        assert np.allclose(here, there, rtol=within, atol=within), f"{np.max(np.abs(here - there))} off"


@step
def available() -> None:
    assert jax.default_backend() == "gpu"
    assert len(jax.devices()) == 1


@step
def properties() -> None:
    (card,) = jax.devices()
    assert card.device_kind == MODEL, card.device_kind
    stats = card.memory_stats()
    assert 0 < stats["bytes_limit"] < MEMORY_BYTES


@step
def elementwise() -> None:
    same(lambda x: jnp.tanh(x) * jnp.sin(x) + jnp.exp(-x * x), numbers(1000))


@step
def reductions() -> None:
    same(lambda x: (x.sum(axis=0), x.max(axis=1), x.argmax(axis=1), x.std()), numbers(64, 33))


@step
def sorting() -> None:
    same(lambda x: (jnp.sort(x, axis=1), jnp.argsort(x, axis=1), jax.lax.top_k(x, 5)), numbers(16, 65))


@step
def scans() -> None:
    same(lambda x: (jnp.cumsum(x, axis=0), jax.lax.associative_scan(jnp.maximum, x)), numbers(50, 7))


@step
def loops() -> None:
    same(lambda x: jax.lax.fori_loop(0, 5, lambda _, y: y * 0.5 + 1, x), numbers(9))
    same(lambda x: jax.lax.while_loop(lambda y: y[0] < 100, lambda y: (y[0] * 2, y[1] + 1), (x, 0)), np.float32(3))
    same(lambda xs: jax.lax.scan(lambda c, x: (c * 0.5 + x, c), jnp.zeros(7), xs), numbers(20, 7))


@step
def branches() -> None:
    for x in (-1.0, 1.0):
        same(jax.jit(lambda y: jax.lax.cond(y > 0, jnp.sin, jnp.cos, y)), np.float32(x))


@step
def gathers() -> None:
    index = np.array([3, 1, 3, 0])
    same(lambda x, i: (x[i], jnp.zeros(8).at[i].add(x[:4, 0])), numbers(9, 5), index)


@step
def random_numbers() -> None:
    same(lambda: jax.random.normal(jax.random.key(7), (100,)))
    same(lambda: jax.random.permutation(jax.random.key(7), 50))


@step
def products() -> None:
    same(lambda a, b: a @ b, numbers(64, 32), numbers(32, 16, seed=1))
    same(lambda a, b: jnp.einsum("bij,bjk->bik", a, b), numbers(3, 8, 16), numbers(3, 16, 4, seed=1))


@step
def half_products() -> None:
    def product(a: Any, b: Any) -> Any:
        return (a.astype(jnp.bfloat16) @ b.astype(jnp.bfloat16)).astype(jnp.float32)

    same(product, numbers(32, 32), numbers(32, 32, seed=1), within=5e-2)


@step
def convolutions() -> None:
    def convolve(x: Any, w: Any) -> Any:
        return jax.lax.conv_general_dilated(x, w, (1, 1), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC"))

    def loss(x: Any, w: Any) -> Any:
        return (convolve(x, w) ** 2).mean()

    same(jax.value_and_grad(loss, argnums=(0, 1)), numbers(2, 8, 8, 3), numbers(3, 3, 3, 4, seed=1))


@step
def transforms() -> None:
    same(lambda x: (jnp.fft.fft(x).real, jnp.fft.rfft2(x).imag), numbers(8, 30), within=1e-3)


@step
def linear_algebra() -> None:
    a, b = numbers(6, 6), numbers(6, 2, seed=1)
    definite = a @ a.T + 6 * np.eye(6, dtype=np.float32)
    same(lambda x: (jnp.linalg.cholesky(x), jnp.linalg.eigh(x)[0], jnp.linalg.eigvalsh(x)), definite)
    same(lambda x: (jnp.linalg.svd(x, compute_uv=False), jnp.linalg.qr(x), jnp.linalg.det(x)), a)
    same(lambda x, y: jnp.linalg.lstsq(x, y)[0], numbers(9, 4), numbers(9, 2, seed=1), within=1e-2)
    same(lambda x, y: jax.scipy.linalg.cho_solve((jnp.linalg.cholesky(x), True), y), definite, b)
    same(lambda x: jnp.sort(jnp.abs(jnp.linalg.eigvals(x))), a)


@step
def linear_systems() -> None:
    same(jnp.linalg.solve, numbers(6, 6), numbers(6, 2, seed=1))


@step
def training() -> None:
    def loss(weights: Any, x: Any, y: Any) -> Any:
        hidden = jnp.tanh(x @ weights[0] + weights[1])
        return -jnp.mean(jnp.sum(jax.nn.log_softmax(hidden @ weights[2]) * y, axis=1))

    @jax.jit
    def train(weights: Any, x: Any, y: Any) -> Any:
        for _ in range(3):
            weights = jax.tree.map(lambda w, g: w - 0.5 * g, weights, jax.grad(loss)(weights, x, y))
        return loss(weights, x, y), weights

    weights = [numbers(16, 32) * 0.1, numbers(32, seed=1) * 0, numbers(32, 10, seed=2) * 0.1]
    x, y = numbers(64, 16, seed=3), np.eye(10, dtype=np.float32)[np.arange(64) % 10]
    same(lambda x, y, *w: train(list(w), x, y), x, y, *weights)


@step
def attention() -> None:
    def attend(q: Any, k: Any, v: Any) -> Any:
        scores = jnp.einsum("bqhd,bkhd->bhqk", q, k) / jnp.sqrt(q.shape[-1])
        mask = jnp.tril(jnp.ones(scores.shape[-2:], bool))
        return jnp.einsum("bhqk,bkhd->bqhd", jax.nn.softmax(jnp.where(mask, scores, -jnp.inf)), v)

    same(jax.jit(attend), *(numbers(2, 8, 2, 16, seed=seed) for seed in range(3)))


@step
def out_of_memory() -> None:
    said = "nothing: twice the slice was given"
    try:
        jnp.zeros(MEMORY_BYTES // 2, jnp.float32).block_until_ready()
    except jax.errors.JaxRuntimeError as error:
        said = str(error)
    assert "RESOURCE_EXHAUSTED" in said, said
    same(lambda x: x + 1, numbers(10))


for each in STEPS:
    name = each.__name__.replace("_", " ")
    try:
        each()
        print(f"step {name}: passed", flush=True)
    except Exception as error:
        print(f"step {name}: {type(error).__name__}: {(str(error) or 'no reason').splitlines()[0]}", flush=True)
