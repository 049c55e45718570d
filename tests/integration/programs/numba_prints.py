"""A kernel of numba-cuda that prints a line for each of its threads."""

from importlib import import_module
from typing import Any

import numpy as np

cuda: Any = import_module("numba.cuda")


@cuda.jit
def tells(x: Any) -> None:
    i = cuda.grid(1)
    if i % 2:
        print("thread", i, "has", x[i], "of", "it")
    else:
        print("thread", i, "has", x[i], "of")


tells[2, 2](np.arange(4, dtype=np.float32) / 4)
cuda.synchronize()
