"""All commands by name."""

import importlib
import os
import sys
from collections import UserDict
from typing import Annotated, Any, Final

import typer
import typer.main
from typer.core import TyperGroup

import egpu
from egpu.cli.examples import epilog
from egpu.cli.interruption import STATUS, ends_at_once, is_raised
from egpu.cli.output import EXIT_FAILED, EXIT_USAGE, Format, note, show_value
from egpu.cli.panels import PANELS
from egpu.cli.surroundings import TRACEBACK, finish_output, prepare_streams, sentence
from egpu_base.errors import ElasticGPUError, InvalidInput

HELP = """Share GPUs on one machine, in a cluster or in a pool. A slice is a share of a card's compute time and memory.

Start here:
[bold]egpu demo[/] runs the example manifests on simulated GPUs.
[bold]egpu up[/] starts a simulated cluster for kubectl.
[bold]egpu run --core 30 --memory 2GiB -- COMMAND[/] runs a command in a slice of a local GPU."""

MODULES: Final = {
    "version": "app",
    **dict.fromkeys(("webhook", "extender", "agent", "shim", "controller"), "components"),
    "uncordon": "cordon",
    "wake": "park",
    **dict.fromkeys(("upgrade", "uninstall"), "install"),
    **dict.fromkeys(("broker", "serve", "certificate"), "pool"),
}
SETTINGS: Final = {"run": {"allow_interspersed_args": False, "ignore_unknown_options": False}}


class Commands(UserDict[str, Any]):
    """All commands by name. The module of a command is imported on first use, so a process that runs for months on
    every node holds no code of other commands in memory."""

    def __getitem__(self, key: str) -> Any:
        panel, name = self.data[key], key.replace("-", "_")
        found = getattr(importlib.import_module(f"egpu.cli.{MODULES.get(key, name)}"), name)
        alone = typer.Typer(add_completion=False, rich_markup_mode="rich", pretty_exceptions_enable=False)
        if isinstance(found, typer.Typer):
            alone.add_typer(found, name=key, rich_help_panel=panel, epilog=epilog(key))
            return typer.main.get_group(alone).commands[key]
        alone.command(key, rich_help_panel=panel, context_settings=SETTINGS.get(key), epilog=epilog(key))(found)
        return typer.main.get_command(alone)


class Group(TyperGroup):
    """The command `egpu` itself."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        self.commands = Commands({name: panel for panel, names in PANELS.items() for name in names})

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """Import the command. From here on Ctrl-C raises KeyboardInterrupt."""
        found = super().resolve_command(ctx, args)
        is_raised()
        return found


app = typer.Typer(
    name="egpu",
    cls=Group,
    help=HELP,
    no_args_is_help=True,
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _print_version(asked: bool) -> None:
    if asked:
        version()
        raise typer.Exit


@app.callback()
def all_commands(
    _version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Show the version and exit.")
    ] = False,
) -> None:
    """Declare the options of `egpu` itself. With this callback, typer makes a group."""


def version(
    output: Annotated[
        Format, typer.Option("-o", "--output", metavar="FORMAT", help="table, json or yaml.")
    ] = Format.TABLE,
) -> None:
    """Show the version of this program."""
    if output.for_people:
        sys.stdout.write(f"egpu {egpu.__version__}\n")
    else:
        show_value({"version": egpu.__version__}, output)


def run_app() -> None:
    """Run the command line. Print an ElasticGPUError or OSError that a command raises as one line on stderr."""
    prepare_streams()
    try:
        try:
            app()
        finally:
            ends_at_once()
            finish_output()
    except ElasticGPUError as error:
        note(str(error), label="error:")
        sys.exit(EXIT_USAGE if isinstance(error, InvalidInput) else EXIT_FAILED)
    except OSError as error:
        if TRACEBACK in os.environ:
            raise
        note(sentence(error), label="error:")
        sys.exit(EXIT_FAILED)
    except KeyboardInterrupt:
        sys.exit(STATUS)
