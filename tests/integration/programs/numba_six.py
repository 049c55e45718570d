"""Six kernels of numba-cuda, of the kinds that people write first. Prints which of them are right, as JSON."""

import json
import math
from importlib import import_module
from typing import Any

import numpy as np

numba: Any = import_module("numba")
cuda: Any = import_module("numba.cuda")
random: Any = import_module("numba.cuda.random")

N, TILE, SIDE = 2000, 8, 16
generator = np.random.default_rng(1)
right: dict[str, bool] = {}


@cuda.jit
def saxpy(a: Any, x: Any, y: Any) -> None:
    i = cuda.grid(1)
    if i < x.size:
        y[i] = a * x[i] + y[i]


x, y = np.arange(N, dtype=np.float32), np.ones(N, np.float32)
saxpy[8, 256](2, x, y)
right["arrays"] = bool((y == 2 * x + 1).all())


@cuda.jit
def matmul(a: Any, b: Any, c: Any) -> None:
    of_a = cuda.shared.array((TILE, TILE), numba.float32)
    of_b = cuda.shared.array((TILE, TILE), numba.float32)
    i, j = cuda.grid(2)
    row, column = cuda.threadIdx.x, cuda.threadIdx.y
    total = numba.float32(0)
    for tile in range(SIDE // TILE):
        of_a[row, column] = a[i, column + tile * TILE]
        of_b[row, column] = b[row + tile * TILE, j]
        cuda.syncthreads()
        for k in range(TILE):
            total += of_a[row, k] * of_b[k, column]
        cuda.syncthreads()
    c[i, j] = total


a, b = generator.integers(0, 9, (2, SIDE, SIDE)).astype(np.float32)
c = np.zeros((SIDE, SIDE), np.float32)
matmul[(SIDE // TILE, SIDE // TILE), (TILE, TILE)](a, b, c)
right["shared memory"] = bool((c == a @ b).all())


@cuda.jit
def histogram(values: Any, bins: Any) -> None:
    i = cuda.grid(1)
    if i < values.size:
        cuda.atomic.add(bins, values[i], 1)


values, bins = generator.integers(0, 10, N).astype(np.int32), np.zeros(10, np.int32)
histogram[8, 256](values, bins)
right["atomics"] = bool((bins == np.bincount(values, minlength=10)).all())

total = cuda.reduce(lambda left, right: left + right)
right["reduce"] = bool(total(np.arange(N, dtype=np.float64)) == N * (N - 1) / 2)


@numba.vectorize(["float32(float32, float32)"], target="cuda")
def hypotenuse(p: Any, q: Any) -> Any:
    return math.sqrt(p * p + q * q)


right["vectorize"] = bool(np.allclose(hypotenuse(x, x), math.sqrt(2) * x))


@cuda.jit
def estimate_pi(states: Any, out: Any) -> None:
    i = cuda.grid(1)
    inside = 0
    for _ in range(50):
        p = random.xoroshiro128p_uniform_float32(states, i)
        q = random.xoroshiro128p_uniform_float32(states, i)
        if p * p + q * q <= 1:
            inside += 1
    out[i] = 4.0 * inside / 50


estimates = np.zeros(128, np.float32)
estimate_pi[2, 64](random.create_xoroshiro128p_states(128, seed=1), estimates)
right["random numbers"] = bool(abs(estimates.mean() - math.pi) < 0.1)
print(json.dumps(right))
