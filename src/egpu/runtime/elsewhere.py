"""A slow call in a process of its own, so that it never holds this one's interpreter.

A thread is not enough for arithmetic in Python: whoever waits for an answer meanwhile waits until the thread lets go.
The process ends with the call, and its memory with it; it is less important than whatever else there is to do.
"""

import os
import pickle
import subprocess
import sys
from collections.abc import Callable
from typing import Final, ParamSpec, TypeVar

P = ParamSpec("P")
R = TypeVar("R")

NICENESS: Final = 10


def call(function: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
    """`function(*args, **kwargs)`, worked out elsewhere; blocks until it is. All of them must be picklable, and
    `function` importable. Raises what it raises, and RuntimeError when the process came to nothing."""
    asked = pickle.dumps((function, args, kwargs))
    command = [sys.executable, "-m", __name__]
    done = subprocess.run(command, input=asked, stdout=subprocess.PIPE, check=False)
    if done.returncode:
        raise RuntimeError(f"{function.__qualname__}: its process ended with {done.returncode}")
    answer, error = pickle.loads(done.stdout)
    if error is not None:
        raise error
    return answer


def _answer() -> None:
    os.nice(NICENESS)
    function, args, kwargs = pickle.load(sys.stdin.buffer)
    try:
        answer = function(*args, **kwargs), None
    except Exception as error:
        answer = None, error
    sys.stdout.buffer.write(pickle.dumps(answer))


if __name__ == "__main__":
    _answer()
