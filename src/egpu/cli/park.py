"""`egpu park` and `egpu wake`: move the memory of a slice's idle programs off the card, and back."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from egpu.adapters.slices.usage import ANSWERS, ParkAnswer
from egpu.cli.output import EXIT_FAILED, EXIT_USAGE, Format, Table, fail, show
from egpu_base.errors import CorruptData, InvalidInput, NotFound

if TYPE_CHECKING:
    from egpu.cli.inspection import Inspection, SliceProcess

LOOK_SECONDS: Final = 0.02
PARK_SECONDS: Final = 30.0
"""How long `egpu park` waits for answers: programs give up after 2 seconds without a pause, the rest is for copies."""
WAKE_SECONDS: Final = 150.0
"""Longer than a program waits for room on the card."""

MOST_MIB: Final = 999_999_999
"""A node's annotation has at most nine digits."""


def _check_amount(mib: int | None) -> int | None:
    if mib is not None and not 0 <= mib <= MOST_MIB:
        raise typer.BadParameter(f"{mib} is not an amount of memory from 0 to {MOST_MIB} MiB")
    return mib


Slice = Annotated[
    str, typer.Argument(metavar="SLICE", help="Directory or name of a slice, as in `egpu inspect`.", show_default=False)
]
StateDir = Annotated[
    list[Path] | None,
    typer.Option(
        help="Directory with slices of an agent, `egpu serve` or `egpu run`. Repeatable. Default: those of all."
    ),
]
ParkingMemory = Annotated[
    int | None,
    typer.Option(
        "--parking-memory",
        metavar="MIB",
        callback=_check_amount,
        help="MiB of host memory for parked GPU memory of slices with a resident part (parkingResident). "
        "Default: half of the host's memory.",
        show_default=False,
    ),
]
Output = Annotated[Format, typer.Option("-o", "--output", metavar="FORMAT", help="table, wide, json or yaml.")]


def park(what: Slice, state_dir: StateDir = None, output: Output = Format.TABLE) -> None:
    """Move the memory of a slice's idle programs to the host. Their next call moves it back."""
    _ask(what, state_dir, output, parks=True)


def wake(what: Slice, state_dir: StateDir = None, output: Output = Format.TABLE) -> None:
    """Move the memory of parked programs back to the card, before they need it."""
    _ask(what, state_dir, output, parks=False)


def _ask(what: str, state_dir: list[Path] | None, output: Format, *, parks: bool) -> None:
    from egpu.adapters.slices.asking import ask_to_park
    from egpu.cli import inspection

    try:
        directory = inspection.find(what, state_dir or inspection.default_roots())
        found = inspection.inspect_slice(directory)
        asked = [one for one in found.processes if one.here is not None]
        request = ask_to_park(found.policy_file, park=parks)
    except InvalidInput as error:
        fail(str(error), code=EXIT_USAGE)
    except (NotFound, CorruptData, OSError) as error:
        fail(str(error))
    if not asked:
        fail(f"no program of {what} uses the GPU")
    one = _answered(directory, request, PARK_SECONDS if parks else WAKE_SECONDS)
    wanted = ParkAnswer.DONE if parks else ParkAnswer.WOKEN
    rows = [(process, _answer(process, request)) for process in one.processes if process.here is not None]
    show(_table(rows), output)
    if any(answer is not wanted for _, answer in rows):
        raise typer.Exit(EXIT_FAILED)


def _answer(process: SliceProcess, request: int) -> ParkAnswer:
    said = process.usage.parking
    return said.answer if said.answered == request else ParkAnswer.NOT_ASKED


def _answered(directory: Path, request: int, patience_seconds: float) -> Inspection:
    """Return the slice when all of its living processes have answered, or the patience is over."""
    from egpu.cli import inspection

    deadline = time.monotonic() + patience_seconds
    while True:
        one = inspection.inspect_slice(directory)
        waits = any(each.here is not None and each.usage.parking.answered != request for each in one.processes)
        if not waits or time.monotonic() >= deadline:
            return one
        time.sleep(LOOK_SECONDS)


def _table(rows: list[tuple[SliceProcess, ParkAnswer]]) -> Table:
    from egpu.cli.inspection_views import mib

    table = Table(("pid", "parked", "on the card", "answer"))
    for process, answer in rows:
        parked = process.usage.parking.parked_bytes
        resident = process.usage.memory_bytes - parked
        table.add(
            (str(process.here), mib(parked), mib(resident), ANSWERS[answer]),
            {
                "pid": process.here,
                "parkedBytes": parked,
                "residentBytes": resident,
                "answer": answer.name,
                "message": ANSWERS[answer],
            },
        )
    return table
