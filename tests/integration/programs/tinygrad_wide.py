"""A network whose weights are large enough to leave the card learns for some steps. The output has all bits."""

import hashlib
from importlib import import_module
from typing import Any

import numpy as np

tinygrad: Any = import_module("tinygrad")
Tensor: Any = tinygrad.Tensor

WIDTH = 736
POINTS = 2
STEPS = 4

chance = np.random.default_rng(3)
first, second = (Tensor(chance.normal(0, 0.03, (WIDTH, WIDTH)).astype(np.float32)) for _ in range(2))
points, wanted = (Tensor(chance.normal(0, 1, (POINTS, WIDTH)).astype(np.float32)) for _ in range(2))
optimiser = tinygrad.nn.optim.SGD([first, second], lr=0.05)


@tinygrad.TinyJit
def step() -> Any:
    optimiser.zero_grad()
    loss = (((points @ first).relu() @ second - wanted) ** 2).mean().backward()
    optimiser.step()
    return loss.realize()


with tinygrad.Context(TRAINING=1):
    for number in range(STEPS):
        print(number, step().item().hex(), flush=True)
for weights in (first, second):
    print(hashlib.sha256(weights.numpy().tobytes()).hexdigest())
