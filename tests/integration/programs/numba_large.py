"""Arrays that are large enough to leave the card, again and again through kernels of numba. The output has all bits."""

import hashlib
from importlib import import_module
from typing import Any

import numpy as np

numba: Any = import_module("numba")
cuda: Any = import_module("numba.cuda")

N = 600_000
ROUNDS = 6


@cuda.jit
def mix(a: Any, b: Any, factor: Any) -> None:
    i = cuda.grid(1)
    if i < a.size:
        a[i] = a[i] * factor + b[(i * 7) % b.size]


@cuda.jit
def count(values: Any, bins: Any) -> None:
    i = cuda.grid(1)
    if i < values.size:
        cuda.atomic.add(bins, int(values[i]) % bins.size, 1)


chance = np.random.default_rng(5)
held = [cuda.to_device(chance.random(N, dtype=np.float32)) for _ in range(3)]
bins = cuda.to_device(np.zeros(64, np.int32))
for number in range(ROUNDS):
    a, b = held[number % 3], held[(number + 1) % 3]
    mix[-(-N // 256), 256](a, b, numba.float32(1.5))
    count[-(-N // 256), 256](a, bins)
    print(number, hashlib.sha256(bins.copy_to_host().tobytes()).hexdigest(), flush=True)
for one in held:
    print(hashlib.sha256(one.copy_to_host().tobytes()).hexdigest())
