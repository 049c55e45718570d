"""Calls in a process of their own."""

import os

import pytest

from egpu_base.runtime import worker_process


def test_the_answer_comes_from_another_process() -> None:
    assert worker_process.call(divmod, 17, 5) == (3, 2)
    assert worker_process.call(os.getpid) != os.getpid()


def test_what_the_call_raises_is_raised_here() -> None:
    with pytest.raises(ZeroDivisionError):
        worker_process.call(divmod, 1, 0)


def test_a_process_that_ends_without_an_answer_is_an_error() -> None:
    with pytest.raises(RuntimeError, match="_exit: its worker process failed with exit code 3"):
        worker_process.call(os._exit, 3)
