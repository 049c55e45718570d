"""Every command by name."""

import sys
from typing import Annotated

import typer

import egpu
from egpu.cli import components, pool
from egpu.cli.defrag import defrag
from egpu.cli.demo import demo
from egpu.cli.doctor import doctor
from egpu.cli.explain import explain
from egpu.cli.export_trace import export_trace
from egpu.cli.get import get
from egpu.cli.inspect import inspect
from egpu.cli.manifests import manifests
from egpu.cli.output import EXIT_FAILED, EXIT_USAGE, Format, note, show_value
from egpu.cli.resize import resize
from egpu.cli.run import run
from egpu.cli.simulate import simulate
from egpu.cli.up import up
from egpu.errors import ElasticGPUError, InvalidInput

HELP = """Share GPUs: slices, cards and pools behind one claim.

Start here: [bold]egpu demo[/] shows everything on simulated GPUs; [bold]egpu up[/] keeps such a cluster for kubectl;
[bold]egpu run --core 30 --memory 2GiB -- COMMAND[/] runs a command in a slice of a local GPU."""

app = typer.Typer(
    name="egpu",
    help=HELP,
    no_args_is_help=True,
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)

TRY, LOOK, INSTALL = "Try and use", "Look", "Processes of an installation"

app.command(rich_help_panel=TRY)(demo)
app.command(rich_help_panel=TRY)(up)
app.command(rich_help_panel=TRY, context_settings={"allow_interspersed_args": False, "ignore_unknown_options": False})(
    run
)
app.command(rich_help_panel=TRY)(resize)
app.command(rich_help_panel=LOOK)(get)
app.command(rich_help_panel=LOOK)(explain)
app.command(rich_help_panel=LOOK)(inspect)
app.command(rich_help_panel=LOOK)(simulate)
app.command(rich_help_panel=LOOK)(defrag)
app.command("export-trace", rich_help_panel=LOOK)(export_trace)
app.command(rich_help_panel=INSTALL)(manifests)
app.command(rich_help_panel=INSTALL)(doctor)
PROCESSES = (components.webhook, components.extender, components.agent, components.controller)
for process in (*PROCESSES, pool.broker, pool.serve, pool.certificate):
    app.command(rich_help_panel=INSTALL)(process)


@app.command(rich_help_panel=LOOK)
def version(
    output: Annotated[Format, typer.Option("-o", "--output", help="table, json or yaml.")] = Format.TABLE,
) -> None:
    """The version of this program."""
    if output.for_people:
        sys.stdout.write(f"egpu {egpu.__version__}\n")
    else:
        show_value({"version": egpu.__version__}, output)


def run_app() -> None:
    """Run the command line. One of our errors that a command let through is one line on stderr."""
    try:
        app()
    except ElasticGPUError as error:
        note(str(error), label="error:")
        sys.exit(EXIT_USAGE if isinstance(error, InvalidInput) else EXIT_FAILED)
    except KeyboardInterrupt:
        sys.exit(130)
