"""`egpu selftest`: a test of GPU sharing on this machine, in about two minutes."""

import signal
import sys
from types import FrameType
from typing import Annotated, NoReturn

import typer

from egpu.cli.findings import show_findings
from egpu.cli.output import EXIT_FAILED, Format, note


def selftest(
    simulate: Annotated[
        str | None,
        typer.Option(metavar="PROFILE", help="Test a simulated card of this profile, such as A100-80G."),
    ] = None,
    gpu: Annotated[int, typer.Option(min=0, help="Index of the card to test, from 0.")] = 0,
    thorough: Annotated[
        bool,
        typer.Option(
            "--thorough", help="Also test each kind of memory, two slices at once, killed programs, and PyTorch."
        ),
    ] = False,
    output: Annotated[
        Format, typer.Option("-o", "--output", metavar="FORMAT", help="table, json or yaml.")
    ] = Format.TABLE,
) -> None:
    """Test GPU sharing on this machine: driver, memory and compute limits, overhead and executors.

    The tests run in slices of at most 1 GiB, which are removed at the end. Exit code 1 if a check fails.
    """
    from egpu.cli.selfchecks import examine
    from egpu.cli.thorough import THOROUGH

    signal.signal(signal.SIGTERM, _end)  # end the started programs, as with Ctrl-C
    if not show_findings(
        examine(simulate, gpu, tell=lambda line: note(line, style="dim"), further=THOROUGH if thorough else None),
        output,
    ):
        raise typer.Exit(EXIT_FAILED)


def _end(number: int, _frame: FrameType | None) -> NoReturn:
    sys.exit(128 + number)
