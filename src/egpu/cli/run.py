"""`egpu run --core 30 --memory 2GiB -- COMMAND`: a command in a slice of a local GPU, no cluster needed.

The command's stdin, stdout and stderr are its own, and so is its exit status (128 + signal when one ended it). What
this program itself has to say goes to stderr; 125 means that it could not start the command at all.
"""

import json
import os
import shlex
import sys
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
import yaml

from egpu.adapters.processes import Process
from egpu.adapters.slices.pages import Mode
from egpu.api.quantities import parse_memory_mib
from egpu.cli import pool
from egpu.cli.output import EXIT_USAGE, Format, fail, note
from egpu.errors import ElasticGPUError, InvalidInput

if TYPE_CHECKING:
    from egpu.adapters.local.run import LocalMachine

EXIT_NOT_STARTED = 125
Ptx = Annotated[
    bool | None,
    typer.Option(
        "--ptx/--no-ptx",
        help="With --pool: whether compilers in the command make PTX. Default: where all its cards are simulated.",
        show_default=False,
    ),
]


class RunMode(StrEnum):
    """What `--mode` takes."""

    CAP = "cap"
    SHARE = "share"


def run(
    command: Annotated[list[str], typer.Argument(help="The command and its arguments, after --.", show_default=False)],
    core: Annotated[int, typer.Option(help="Percent of the card's compute time, 1 to 100.")] = 100,
    memory: Annotated[
        str | None,
        typer.Option(help="Device memory: 2GiB, 512MiB, 4GB; a bare number is MiB. Default: the core share."),
    ] = None,
    gpu: Annotated[int | None, typer.Option(help="Ordinal of the card. Default: the fullest that has room.")] = None,
    simulate: Annotated[
        str | None, typer.Option(metavar="PROFILE", help="Use simulated cards of this profile, such as A100-80G.")
    ] = None,
    mode: Annotated[
        RunMode, typer.Option(help="cap: never above the share. share: idle time may be used.")
    ] = RunMode.CAP,
    state_dir: Annotated[
        Path | None,
        typer.Option(envvar="EGPU_RUN_DIR", help="Where slices and simulated machines are kept. Default: in memory."),
    ] = None,
    output: Annotated[
        Format,
        typer.Option(
            "-o", "--output", metavar="FORMAT", help="json, yaml: a summary on stderr when the command has ended."
        ),
    ] = Format.TABLE,
    pool_address: Annotated[
        str | None, typer.Option("--pool", metavar="HOST:PORT", help="Use GPUs of the pool whose broker is there.")
    ] = None,
    gpus: Annotated[int, typer.Option(min=1, help="With --pool: how many cards, each with this much of it.")] = 1,
    ptx: Ptx = None,
    wait: pool.Wait = pool.WAIT_SECONDS,
    secret_file: pool.SecretFile = None,
    tls_ca: pool.TlsCa = None,
    tls_cert: pool.TlsCert = None,
    tls_key: pool.TlsKey = None,
) -> None:
    """Run a command in a slice of a local GPU (a simulated one where there is no NVIDIA driver), or of a pool's."""
    if pool_address is not None:
        if gpu is not None or simulate is not None or mode is not RunMode.CAP:
            fail("--gpu, --simulate and --mode are for local GPUs; the pool's broker chooses", code=EXIT_USAGE)
        files = pool.Files(secret_file, tls_ca, tls_cert, tls_key)
        _run_pooled(command, pool_address, files, output, gpus=gpus, core=core, memory=memory, wait=wait, ptx=ptx)
    if gpus != 1 or ptx is not None:
        fail("--gpus and --ptx are for --pool; a local slice is of one card, which is known", code=EXIT_USAGE)
    from egpu.adapters.local import run as localrun
    from egpu.adapters.local.book import SliceRequest
    from egpu.adapters.local.guard import MemoryGuard
    from egpu.adapters.local.sharing import MachineSharing
    from egpu.runtime import logs

    logs.configure("run", level="error")  # stdout is the command's
    try:
        machine = _machine(simulate, state_dir)
        cards = machine.cards()
        request = SliceRequest(
            core=core, memory_mib=_memory_mib(memory, core, cards[0].memory_mib), gpu=gpu, mode=_mode(mode)
        )
        local = machine.book.take(cards, request, command=shlex.join(command), processes=(Process.of(os.getpid()),))
    except InvalidInput as error:
        fail(str(error), code=EXIT_USAGE)
    except ElasticGPUError as error:
        fail(str(error), code=EXIT_NOT_STARTED)
    status = EXIT_NOT_STARTED
    try:
        plan = localrun.plan(machine, local, command)
        for weakness in plan.weaknesses:
            note(f"weaker isolation: {weakness}")
        guard, sharing = MemoryGuard(local, machine.inventory(), note), MachineSharing(machine.sharing())
        status = localrun.execute(plan, local, guard.thread(), sharing.thread())
    except ElasticGPUError as error:
        fail(str(error), code=EXIT_NOT_STARTED)
    finally:
        _summarise(localrun.summary(local, status), output)
        local.give_back()
    raise typer.Exit(status)


def _check_ptx() -> None:
    """Who says --ptx wants it for every compiler; numba-cuda has room for one plug-in."""
    from egpu.adapters import compilers

    if os.environ.get(compilers.NUMBA_MANAGER, compilers.NUMBA_PLUGIN) != compilers.NUMBA_PLUGIN:
        fail(f"--ptx takes the place of {compilers.NUMBA_MANAGER}, which is set; leave one out", code=EXIT_USAGE)


def _run_pooled(
    command: list[str], address: str, files: pool.Files, output: Format, *,
    gpus: int, core: int, memory: str | None, wait: float, ptx: bool | None,
) -> None:  # fmt: skip
    """With --pool. Ends the program with the command's status."""
    if ptx:
        _check_ptx()
    if memory is None:
        fail("--memory: with --pool say how much memory of each card", code=EXIT_USAGE)
    try:
        memory_mib = parse_memory_mib(memory, field="--memory")
        found = pool.credentials(*files)
        status, summary = pool.run_pooled(
            command, pool=address, found=found, gpus=gpus, core=core, memory_mib=memory_mib,
            wait_seconds=wait, ptx=ptx,
        )  # fmt: skip
    except InvalidInput as error:
        fail(str(error), code=EXIT_USAGE)
    except ElasticGPUError as error:
        fail(str(error), code=EXIT_NOT_STARTED)
    _summarise(summary, output)
    raise typer.Exit(status)


def _machine(simulate: str | None, state_dir: Path | None) -> "LocalMachine":
    """Raises InvalidInput, ElasticGPUError."""
    from egpu.adapters.local.run import find_machine

    machine = find_machine(simulate, root=state_dir and state_dir.absolute())
    if machine.simulated is not None and simulate is None:
        note(f"no NVIDIA driver here: using the simulated machine {machine.name} (say --simulate to choose)")
    return machine


def _summarise(summary: dict[str, Any], output: Format) -> None:
    if not output.for_people:
        text = yaml.safe_dump(summary, sort_keys=False) if output is Format.YAML else json.dumps(summary) + "\n"
        sys.stderr.write(text)


def _memory_mib(text: str | None, core: int, card_mib: int) -> int:
    """What was asked for; without a word, the same share of the memory as of the compute time."""
    return max(1, card_mib * core // 100) if text is None else parse_memory_mib(text, field="--memory")


def _mode(mode: RunMode) -> Mode:
    return Mode.CAP if mode is RunMode.CAP else Mode.SHARE
