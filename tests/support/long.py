"""Repetitions that `make test` leaves out: `make test-long` runs them."""

import os
from typing import Final, TypeVar

T = TypeVar("T")
IS_LONG: Final = bool(os.environ.get("EGPU_TEST_LONG"))


def or_long(short: T, long: T) -> T:
    """Return the value for this run: `long` under `make test-long`."""
    return long if IS_LONG else short
