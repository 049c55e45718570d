"""Imports what the components of a simulated cluster import late, for their fork server.

Each component would import it anew: a third of the processor time of its start.
"""

import contextlib
import importlib
from typing import Final

import typer
import typer.main

MODULES: Final = (
    "cryptography.hazmat.backends.openssl", "egpu.adapters.local.run", "egpu.adapters.programs.enter",
    "egpu_base.runtime.logs", "encodings.idna", "uvicorn.lifespan.off",
)  # fmt: skip
SOLVER: Final = "highspy"
"""For the policy `price`, which says so if it is missing."""

for module in MODULES:
    importlib.import_module(module)
with contextlib.suppress(ImportError):
    importlib.import_module(SOLVER)

command_line = typer.Typer()


@command_line.command()
def _nothing(_word: str = "") -> None:
    """Do nothing. typer imports most of what it needs when it reads a command line."""


typer.main.get_command(command_line)([], standalone_mode=False)
