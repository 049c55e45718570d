"""Imports what `egpu` commands and the components of clusters import, also late: for the fork server of
`support.forked_commands`."""

import importlib

from typer.testing import CliRunner

from egpu.apps import broker, serve
from egpu.cli import components, defrag, demo, doctor, explain, export_trace, get, pool, resize, run, snapshot, up
from egpu.cli.app import app
from egpu.laptop.cluster import MODULES

__all__ = [
    "broker", "components", "defrag", "demo", "doctor", "explain", "export_trace", "get", "pool", "resize", "run",
    "serve", "snapshot", "up",
]  # fmt: skip

for module in MODULES:
    importlib.import_module(module)

# typer imports much only when it reads a command line, and more when it shows help.
for arguments in (["version"], ["explain", "--help"]):
    CliRunner().invoke(app, arguments)
