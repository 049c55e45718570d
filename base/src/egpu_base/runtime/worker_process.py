"""A slow call in its own process, so that it never holds this process's interpreter.

A thread is not enough for arithmetic in Python: other threads wait until it releases the interpreter. The process and
its memory end with the call. It has a low priority.
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
    """Return `function(*args, **kwargs)`, computed in another process; block until then. All of them must be picklable,
    and `function` importable. Raises what it raises, or RuntimeError when the process fails."""
    asked = pickle.dumps((function, args, kwargs))
    command = [sys.executable, "-m", __name__]
    done = subprocess.run(command, input=asked, stdout=subprocess.PIPE, check=False)
    if done.returncode:
        raise RuntimeError(f"{function.__qualname__}: its worker process failed with exit code {done.returncode}")
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
