"""What `egpu selftest` makes of what programs say, where a busy machine or a context has a part in it."""

from types import SimpleNamespace
from typing import Any, cast

import pytest

from egpu.cli.findings import Finding, State
from egpu.cli.selfchecks import CHECKS
from egpu.cli.trial import MEMORY_MIB, Trial


def judged(check: str, *, sliced: list[dict[str, Any]], bare: list[dict[str, Any]]) -> Finding:
    """By programs that say this, one after the other."""
    said = SimpleNamespace(
        bare=lambda *_: bare.pop(0), sliced=lambda *_, core: sliced.pop(0), card=SimpleNamespace(uuid="GPU-1")
    )
    found = CHECKS[check](cast("Trial", said))
    assert (sliced, bare) == ([], [])
    return found


def spun(*percents: float) -> list[dict[str, Any]]:
    return [{"kernels": 10 * percent, "kernel_us": 1000.0, "seconds": 1.0} for percent in percents]


@pytest.mark.parametrize(
    ("sliced", "bare", "state"),
    [
        ((30, 30, 30), (100, 100, 100), State.OK),
        ((30, 12, 20), (40, 100, 60), State.OK),
        ((100, 100, 100), (100, 100, 100), State.WRONG),
        ((30, 90, 25), (100, 100, 100), State.WRONG),
        ((25, 25, 80), (100, 80, 100), State.WRONG),
        ((36, 36, 36), (100, 100, 100), State.WRONG),
        ((10, 10, 10), (100, 100, 100), State.WRONG),
    ],
)
def test_a_share_is_the_best_of_what_was_had(sliced: tuple[float, ...], bare: tuple[float, ...], state: State) -> None:
    """A slice that holds nothing is not believed because a busy machine slowed it down to its share once."""
    assert judged("compute limit", sliced=spun(*sliced), bare=spun(*bare)).state is state


@pytest.mark.parametrize(
    ("given_mib", "context_mib", "state"),
    [
        (MEMORY_MIB, 0, State.OK),
        (MEMORY_MIB, 447, State.OK),
        (MEMORY_MIB - 447, 447, State.OK),
        (MEMORY_MIB - 448, 447, State.WRONG),
        (MEMORY_MIB - 1, 0, State.WRONG),
        (MEMORY_MIB + 1, 447, State.WRONG),
    ],
)
def test_what_a_context_takes_may_be_missing(given_mib: int, context_mib: int, state: State) -> None:
    said = {"given_bytes": given_mib << 20, "error": "CUDA_ERROR_OUT_OF_MEMORY"}
    found = judged("memory limit", sliced=[said], bare=[{"bytes": context_mib << 20}])
    assert found.state is state
