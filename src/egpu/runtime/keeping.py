"""What a process reads once and keeps as long as it runs."""

import ctypes
import gc
from collections.abc import Generator
from contextlib import contextmanager
from typing import Final

OLD_AFTER: Final = 100
"""How often the collector has to have gone through what is neither new nor old until it goes through what is old;
Python's own number is 10."""


@contextmanager
def kept_for_good() -> Generator[None]:
    """What is made inside stays, so the collector of cycles leaves it alone, while it is made and afterwards: going
    through a large cluster again and again took half of the time that it takes to list it. What is left over of the
    making goes back to the system."""
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
    """Until the end, the collector of cycles leaves alone what is there already, and goes through what gets old a tenth
    as often: of a server that keeps trees of objects all of it is reachable, and searching it took more time than
    answering. Most of what any of our processes has is its modules."""
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
    """Memory that is free within the C library's heap. Libraries that have no such call keep it."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(ctypes.c_size_t(0))
