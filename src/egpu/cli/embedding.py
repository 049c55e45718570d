"""The progress of `up` and `demo` on a terminal."""

import contextlib
from collections.abc import Callable, Generator

from egpu.cli.output import errors, note


@contextlib.contextmanager
def steps() -> Generator[Callable[[str], None], None, None]:
    """Yield a function that reports the current step: a spinner on a terminal, else a line for each step."""
    if not errors.is_terminal:
        yield lambda step: note(f"… {step}")
        return
    with errors.status("starting") as status:
        yield lambda step: status.update(f"{step} …")
