"""Contexts in a slice: charged when they are made, refused when they do not fit, given back when they end."""

import struct
import textwrap
from collections.abc import Iterator
from pathlib import Path

import pytest

from egpu.adapters import native
from egpu.adapters.slices.pages import DevicePolicy, Mode, create_usage, write_policy
from egpu_sim.machines.machine import Machine
from support.simulated_gpu import Program, machine, run

LIBRARY = "libegpu-interposer.so"
CONTEXT, LIMIT = 200, 1000
CONTEXT_BYTES_OFFSET = 64 + 48
"""In a usage file: the size of the last context on the first card."""

PRELUDE = """
MIB = 1 << 20
n.nvmlInit()
CARD = n.nvmlDeviceGetHandleByIndex(0)
def used():
    left, total = ok(d.cuMemGetInfo())
    assert n.nvmlDeviceGetMemoryInfo(CARD).used == total - left
    return (total - left) // MIB
ok(d.cuInit(0))
"""


class Slice:
    def __init__(self, on: Machine, directory: Path) -> None:
        self._machine = on
        self.usage = directory / "usage"
        directory.mkdir()
        (directory / LIBRARY).symlink_to(native.path(LIBRARY))
        card = on.cards[0]
        line = DevicePolicy(
            uuid=card.uuid, minor=card.minor, mode=Mode.CAP, core_ppm=1_000_000, memory_limit_bytes=LIMIT << 20
        )
        write_policy(directory / "policy", [line])
        create_usage(self.usage)
        self.environment = {"LD_PRELOAD": str(directory / LIBRARY)}

    def run(self, code: str) -> object:
        return run(self._machine, PRELUDE + textwrap.dedent(code), self.environment)

    def program(self, code: str) -> Program:
        return Program(self._machine, PRELUDE + textwrap.dedent(code), self.environment)

    def on_the_card(self) -> int:
        """What the driver says, in MiB."""
        said = run(self._machine, "n.nvmlInit(); say(n.nvmlDeviceGetMemoryInfo(n.nvmlDeviceGetHandleByIndex(0)).used)")
        return said >> 20


@pytest.fixture
def a_slice(tmp_path: Path) -> Iterator[Slice]:
    with machine(tmp_path, "T4", context_mib=CONTEXT) as made:
        yield Slice(made, tmp_path / "slice")


def test_a_context_is_charged_when_it_is_made_and_given_back_when_it_ends(a_slice: Slice) -> None:
    assert a_slice.run(
        """
        ok(d.cuCtxSetCurrent(ok(d.cuDevicePrimaryCtxRetain(0))))
        said = [used()]
        ok(d.cuDevicePrimaryCtxRetain(0)); said.append(used())
        other = ok(d.cuCtxCreate(None, 0, 0)); said.append(used())
        ok(d.cuCtxDestroy(other)); said.append(used())
        ok(d.cuMemAlloc(100 * MIB)); said.append(used())
        ok(d.cuDevicePrimaryCtxReset(0)); said.append(used())
        ok(d.cuDevicePrimaryCtxRelease(0)); ok(d.cuDevicePrimaryCtxRelease(0))
        ok(d.cuCtxSetCurrent(ok(d.cuDevicePrimaryCtxRetain(0)))); said.append(used())
        say(said)
        """
    ) == [CONTEXT, CONTEXT, 2 * CONTEXT, CONTEXT, CONTEXT + 100, CONTEXT, CONTEXT]
    assert a_slice.run("context(); say(used())") == CONTEXT, "the first program's is given back"


def test_a_context_that_does_not_fit_is_refused_and_takes_nothing(a_slice: Slice) -> None:
    with a_slice.program(
        """
        context()
        ok(d.cuMemAlloc(500 * MIB))
        said = [name(d.cuCtxCreate(None, 0, 0)), name(d.cuCtxCreate(None, 0, 0)), used()]
        free = ok(d.cuMemGetInfo())[0]
        say([*said, name(d.cuMemAlloc(free)), name(d.cuMemAlloc(1))])
        wait()
        """
    ) as program:
        assert program.hear() == ["SUCCESS", "OUT_OF_MEMORY", 900, "SUCCESS", "OUT_OF_MEMORY"]
        assert a_slice.on_the_card() == LIMIT


def test_the_first_context_is_refused_if_the_slice_is_smaller(tmp_path: Path) -> None:
    with machine(tmp_path, "T4", context_mib=LIMIT + 2) as made:
        small = Slice(made, tmp_path / "slice")
        assert small.run("say([name(d.cuDevicePrimaryCtxRetain(0)), name(d.cuCtxCreate(None, 0, 0))])") == [
            "OUT_OF_MEMORY",
            "OUT_OF_MEMORY",
        ]
        assert small.on_the_card() == 0


def test_programs_that_start_together_are_refused_in_order(a_slice: Slice) -> None:
    """At no moment they have more than the slice, and each keeps the memory that it was told is free."""
    together = [
        a_slice.program(
            """
            result, ctx = d.cuDevicePrimaryCtxRetain(0)
            said = [name((result,))]
            if said == ["SUCCESS"]:
                ok(d.cuCtxSetCurrent(ctx))
                said.append(name(d.cuMemAlloc(100 * MIB)))
            say(said)
            wait()
            """
        )
        for _ in range(6)
    ]
    try:
        said = [program.hear() for program in together]
        contexts = sum(one[0] == "SUCCESS" for one in said)
        allocations = sum(one[1:] == ["SUCCESS"] for one in said)
        assert {word for one in said for word in one} == {"SUCCESS", "OUT_OF_MEMORY"}
        assert (contexts, allocations) in ((3, 3), (4, 1), (4, 2)), said
        assert a_slice.on_the_card() == CONTEXT * contexts + 100 * allocations <= LIMIT
    finally:
        for program in together:
            program.__exit__()


def test_a_wrong_expectation_is_forgotten_after_one_context(a_slice: Slice) -> None:
    """A neighbour that took or freed memory at the wrong moment falsifies no later context for good."""
    for wrong in (900, 1):
        with a_slice.usage.open("r+b") as usage:
            usage.seek(CONTEXT_BYTES_OFFSET)
            usage.write(struct.pack("<Q", wrong << 20))
        assert a_slice.run("context(); say(ok(d.cuMemGetInfo())[0] >> 20)") == LIMIT - min(wrong, CONTEXT)
        assert a_slice.run("context(); say(used())") == CONTEXT


def test_a_context_of_a_killed_program_is_given_back(a_slice: Slice) -> None:
    with a_slice.program("context(); ok(d.cuMemAlloc(700 * MIB)); say(used()); wait()") as program:
        assert program.hear() == 900
        assert a_slice.run("say(name(d.cuDevicePrimaryCtxRetain(0)))") == "OUT_OF_MEMORY"
        program.kill()
    assert a_slice.run("context(); say(used())") == CONTEXT
