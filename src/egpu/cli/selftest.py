"""`egpu selftest`: whether this machine's GPUs can be shared with Elastic GPU, tried in about two minutes."""

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
        typer.Option(metavar="PROFILE", help="Try it on a simulated card of this profile, such as A100-80G."),
    ] = None,
    gpu: Annotated[int, typer.Option(min=0, help="Ordinal of the card to try.")] = 0,
    output: Annotated[
        Format, typer.Option("-o", "--output", metavar="FORMAT", help="table, json or yaml.")
    ] = Format.TABLE,
) -> None:
    """Try sharing a GPU of this machine: is the driver found, do limits hold, what does it cost, do executors work.

    Everything that is tried runs in slices of at most 1 GiB, and is gone afterwards. Exit code 1 if anything is wrong.
    """
    from egpu.cli.selfchecks import examine

    signal.signal(signal.SIGTERM, _end)  # so that what was started is ended, as with Ctrl-C
    if not show_findings(examine(simulate, gpu, tell=lambda line: note(line, style="dim")), output):
        raise typer.Exit(EXIT_FAILED)


def _end(number: int, _frame: FrameType | None) -> NoReturn:
    sys.exit(128 + number)
