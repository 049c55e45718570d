"""Imports what `egpu` commands import, also late: for the fork server of `support.forked_commands`."""

from typer.testing import CliRunner

from egpu.cli import components, defrag, doctor, explain, export_trace, get, pool, resize, run, snapshot
from egpu.cli.app import app

__all__ = ["components", "defrag", "doctor", "explain", "export_trace", "get", "pool", "resize", "run", "snapshot"]

# typer imports much only when it reads a command line, and more when it shows help.
for arguments in (["version"], ["explain", "--help"]):
    CliRunner().invoke(app, arguments)
