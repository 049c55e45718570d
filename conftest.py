"""Shared by all tests, of the product and of the simulator. `support` is the package in `tests`.

No example is held to a time: on a busy machine any of them can take long.
"""

import gc
import signal
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import Phase, settings

from support import kept_memory, sanitizers
from support.waiting import within_the_deadline

kept_memory.keep_nothing()
gc.disable()  # until the tests are collected: they stay

# A shell starts what is in its background with Ctrl-C ignored, and that is inherited: tests press it.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

settings.register_profile("patient", deadline=None)
# For `make mutants`: the same examples every time, and no search for the smallest one that fails.
settings.register_profile("mutants", deadline=None, derandomize=True, database=None, phases=[Phase.generate])
# For `make test-pythons`: another Python changes no rule.
settings.register_profile("few", deadline=None, max_examples=20)
settings.load_profile("patient")


_unfreeze = gc.unfreeze
_is_thawed = threading.Event()


def _thaw() -> None:
    _unfreeze()
    _is_thawed.set()


def pytest_collection_finish() -> None:
    gc.freeze()
    gc.enable()
    gc.unfreeze = _thaw


def pytest_runtest_teardown() -> None:
    """Keep thousands of tests out of the garbage collector again, after `seldom_searched` gave back what was frozen.
    Each collection of the oldest objects would search them all, as would `gc.get_freeze_count`."""
    if _is_thawed.is_set():
        _is_thawed.clear()
        gc.freeze()


@pytest.fixture(scope="session", autouse=bool(sanitizers.KIND))
def sanitizer_reports(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where sanitizers report."""
    folder = tmp_path_factory.mktemp("sanitizer")
    sanitizers.use(folder)
    return folder


@pytest.fixture(autouse=bool(sanitizers.KIND))
def no_sanitizer_report(sanitizer_reports: Path) -> Iterator[None]:
    """Fails the test during which a sanitizer found something."""
    yield
    found = list(sanitizers.reported(sanitizer_reports))
    assert not found, "\n".join(found)


@pytest.fixture
def impatient() -> Iterator[None]:
    """Fails the test when a call blocks: for what must never wait."""
    with within_the_deadline():
        yield
