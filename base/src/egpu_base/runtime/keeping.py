"""Long-lived objects of a process, and the garbage collector."""

import ctypes
import gc
from collections.abc import Generator
from contextlib import contextmanager
from typing import Final

OLD_AFTER: Final = 100
"""The number of collections of the middle generation before one of the oldest. Python's own number is 10."""


@contextmanager
def kept_for_good() -> Generator[None]:
    """Keep what is made inside out of the garbage collector, during its making and afterwards. Collecting again and
    again took half of the time that listing a large cluster takes. Memory left over from the making goes back to the
    system."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
        gc.collect()
        gc.freeze()
        _give_back()
    finally:
        if was_enabled:
            gc.enable()


@contextmanager
def seldom_searched() -> Generator[None]:
    """Keep existing objects out of the garbage collector, and collect old objects a tenth as often, until the end. In a
    server that keeps trees of objects all of them are reachable; searching them took more time than answering. Most
    objects of our processes belong to their modules."""
    threshold = gc.get_threshold()
    gc.collect()
    gc.freeze()
    gc.set_threshold(threshold[0], threshold[1], OLD_AFTER)
    try:
        yield
    finally:
        gc.set_threshold(*threshold)
        gc.unfreeze()


def _give_back() -> None:
    """Return free memory of the C library's heap to the system. Libraries without such a call keep it."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(ctypes.c_size_t(0))
