"""Calls in a process of their own."""

import os

import pytest

from egpu.runtime import elsewhere


def test_the_answer_comes_from_another_process() -> None:
    assert elsewhere.call(divmod, 17, 5) == (3, 2)
    assert elsewhere.call(os.getpid) != os.getpid()


def test_what_the_call_raises_is_raised_here() -> None:
    with pytest.raises(ZeroDivisionError):
        elsewhere.call(divmod, 1, 0)


def test_a_process_that_ends_without_an_answer_is_an_error() -> None:
    with pytest.raises(RuntimeError, match="_exit: its process ended with 3"):
        elsewhere.call(os._exit, 3)
