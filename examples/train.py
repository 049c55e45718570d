"""A small network learns, on whatever card it is given: a real one, a slice, a simulated one, one of the pool.

    pip install tinygrad
    egpu run --simulate A100-80G --core 30 --memory 1GiB -- python train.py

128 points of a square, inside or outside a circle; two hidden layers; Adam. The last line is the loss with all of its
bits, to compare: it is the same on this machine, in a slice and over the pool, as long as the cards are of one kind.
"""

import os
import sys

os.environ.setdefault("DEV", "CUDA")  # NVIDIA's driver, which is what slices have
try:
    from tinygrad import Tensor, TinyJit, nn
    from tinygrad.helpers import Context
except ImportError:
    sys.exit("train.py needs tinygrad, which needs nothing else: pip install tinygrad")

STEPS = int(sys.argv[1]) if len(sys.argv) > 1 else 100
POINTS, WIDTH = 128, 16


class Network:
    """From (POINTS, 2) coordinates to (POINTS, 1) logits."""

    def __init__(self) -> None:
        self.layers = [nn.Linear(2, WIDTH), nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, 1)]

    def __call__(self, points: Tensor) -> Tensor:
        first, second, last = self.layers
        return last(second(first(points).relu()).relu())


Tensor.manual_seed(1)
network = Network()
optimiser = nn.optim.Adam(nn.state.get_parameters(network), lr=0.03)
points = Tensor.rand(POINTS, 2) * 2 - 1
distance = (points * points).sum(axis=1, keepdim=True)
inside = (distance < 0.6).float().realize()


@TinyJit
def step() -> Tensor:
    optimiser.zero_grad()
    loss = network(points).binary_crossentropy_logits(inside).backward()
    optimiser.step()
    return loss.realize()


loss = 0.0
with Context(TRAINING=1):
    for number in range(1, STEPS + 1):
        loss = step().item()
        if number % max(1, STEPS // 5) == 0:
            print(f"step {number:4}: loss {loss:.4f}", flush=True)
right = ((network(points) > 0) == (inside > 0)).mean().item()
print(f"{right:.1%} of {POINTS} points on the right side; the last loss is {loss.hex()}")
