"""The options for sources of GPU usage: of `egpu top`, `bill`, `doctor` and `dashboard`."""

from pathlib import Path
from typing import Annotated

import typer

Usage = Annotated[
    list[str] | None,
    typer.Option(
        metavar="URL|FILE",
        help="Source of GPU usage: /metrics of an agent, or /federate of a Prometheus server. Repeatable.",
    ),
]
TokenFile = Annotated[Path | None, typer.Option(help="Bearer token file, for agents that require one.")]
