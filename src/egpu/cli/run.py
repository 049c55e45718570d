"""`egpu run --core 30 --memory 2GiB -- COMMAND`: a command in a slice of a local GPU, without a cluster.

The command keeps stdin, stdout and stderr, and `egpu run` ends with its exit status (128 + signal if a signal ended
it). Messages of `egpu run` go to stderr. Status 125: the command could not start.
"""

import json
import os
import sys
from collections.abc import Sequence
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple, NoReturn

import typer
import yaml

from egpu.adapters.slices.pages import Mode
from egpu.cli import pool
from egpu.cli.output import EXIT_USAGE, Format, fail, note
from egpu.cli.park import ParkingMemory
from egpu.core.contexts import warning
from egpu.core.provisioners.parking import IDLE_SECONDS, ParkingTerms, parse_idle, parse_resident
from egpu_base.api.quantities import parse_memory_mib
from egpu_base.errors import DoesNotFit, ElasticGPUError, InvalidInput

if TYPE_CHECKING:
    from egpu.adapters.local.book import LocalSlice
    from egpu.adapters.local.holders import SliceRequest
    from egpu.adapters.local.run import LocalMachine

EXIT_NOT_STARTED = 125
Ptx = Annotated[
    bool | None,
    typer.Option(
        "--ptx/--no-ptx",
        help="With --pool: make compilers in the command emit PTX. Default: only if all cards are simulated.",
        show_default=False,
    ),
]
Wait = Annotated[
    float | None,
    typer.Option(
        min=0,
        metavar="SECONDS",
        help="Longest wait for room on the cards. With --pool: for the broker's answer. Default: 0, with --pool 30.",
        show_default=False,
    ),
]


Parkable = Annotated[
    bool,
    typer.Option("--parkable", help="Allow parking: while the command is idle, its GPU memory may move to the host."),
]
ParkingResident = Annotated[
    str | None,
    typer.Option(
        metavar="PERCENT",
        help="With --parkable: the part of the memory that always has room on the card, such as 3%. The rest is parked "
        "when another slice needs the room. Default: all memory has room, and only `egpu park` parks it.",
        show_default=False,
    ),
]
ParkingIdle = Annotated[
    str | None,
    typer.Option(
        metavar="TIME",
        help="With --parking-resident: the slice is idle after this time without a call, such as 60s. Default: 10s.",
        show_default=False,
    ),
]


class RunMode(StrEnum):
    """The values of `--mode`."""

    CAP = "cap"
    SHARE = "share"


class RunWork(StrEnum):
    """The values of `--work`."""

    BATCH = "batch"
    LATENCY = "latency"


def run(
    context: typer.Context,
    command: Annotated[list[str], typer.Argument(help="The command and its arguments, after --.", show_default=False)],
    core: Annotated[int, typer.Option(help="Percent of the card's compute time, 1 to 100.")] = 100,
    memory: Annotated[
        str | None,
        typer.Option(
            help="GPU memory, such as 2GiB or 4GB. Without unit: MiB. Default: the same percentage of the card as "
            "--core. Required with --pool."
        ),
    ] = None,
    gpu: Annotated[int | None, typer.Option(help="Index of the card. Default: the fullest cards with room.")] = None,
    simulate: Annotated[
        str | None,
        typer.Option(metavar="PROFILE", help="Use simulated cards of this profile, as in `egpu-sim profiles`."),
    ] = None,
    mode: Annotated[
        RunMode, typer.Option(help="cap: never above --core. share: also time that other slices leave idle.")
    ] = RunMode.CAP,
    work: Annotated[
        RunWork, typer.Option(help="latency: the command's CUDA kernels start before those of other slices.")
    ] = RunWork.BATCH,
    parkable: Parkable = False,
    parking_resident: ParkingResident = None,
    parking_idle: ParkingIdle = None,
    parking_memory: ParkingMemory = None,
    state_dir: Annotated[
        Path | None,
        typer.Option(
            envvar="EGPU_RUN_DIR", help="Directory for slices and simulated machines. Default: a directory in memory."
        ),
    ] = None,
    output: Annotated[
        Format,
        typer.Option("-o", "--output", metavar="FORMAT", help="json or yaml: print a summary on stderr at the end."),
    ] = Format.TABLE,
    pool_address: Annotated[
        str | None,
        typer.Option("--pool", metavar="HOST:PORT", help="Use GPUs of the pool with the broker at this address."),
    ] = None,
    gpus: Annotated[
        int, typer.Option(min=1, metavar="COUNT", help="Number of cards, each with --core and --memory.")
    ] = 1,
    ptx: Ptx = None,
    wait: Wait = None,
    secret_file: pool.SecretFile = None,
    tls_ca: pool.TlsCa = None,
    tls_cert: pool.TlsCert = None,
    tls_key: pool.TlsKey = None,
) -> None:
    """Run a command in a slice of a local GPU, or of a pool's GPUs. Without an NVIDIA driver, the GPU is simulated."""
    parking = _parking(parkable, parking_resident, parking_idle, parking_memory)
    if pool_address is not None:
        local = (gpu, simulate, mode, work, parking.host_memory_mib)
        if local != (None, None, RunMode.CAP, RunWork.BATCH, None):
            excluded = "--gpu, --simulate, --mode, --work and --parking-memory"
            fail(f"--pool excludes {excluded}. The broker chooses the cards", code=EXIT_USAGE)
        if parking.terms.parkable and not parking.terms.resident_percent:
            fail("--parkable with --pool needs --parking-resident", code=EXIT_USAGE)
        files = pool.Files(secret_file, tls_ca, tls_cert, tls_key)
        wait = pool.WAIT_SECONDS if wait is None else wait
        size = pool.Size(gpus, core, memory, parking.terms)
        _run_pooled(command, pool_address, files, output, size=size, wait=wait, ptx=ptx)
    _refuse_pool_options(context)
    size = _Size(gpus, core, memory, gpu, _mode(mode), work, parking)
    hint = _default_core_hint(context)
    _run_local(command, size, output, simulate=simulate, state_dir=state_dir, wait=wait or 0, hint=hint)


class _Size(NamedTuple):
    """The options that say how large a local slice is."""

    cards: int
    core: int
    memory: str | None
    gpu: int | None
    mode: Mode
    work: RunWork
    parking: "_Parking"


class _Parking(NamedTuple):
    """The options that say how far a local slice may be parked."""

    terms: ParkingTerms = ParkingTerms()
    host_memory_mib: int | None = None


def _parking(parkable: bool, resident: str | None, idle: str | None, host_memory_mib: int | None) -> _Parking:
    """Read these options, or end with the status of a wrong command line."""
    if idle is not None and resident is None:
        fail("--parking-idle needs --parking-resident: slices with their own room are not parked", code=EXIT_USAGE)
    if resident is not None and not parkable:
        fail("--parking-resident needs --parkable", code=EXIT_USAGE)
    if resident is None:
        return _Parking(ParkingTerms(parkable), host_memory_mib)
    try:
        percent = parse_resident(resident)
    except ValueError as error:
        fail(f"--parking-resident: {error}", code=EXIT_USAGE)
    try:
        seconds = IDLE_SECONDS if idle is None else parse_idle(idle)
    except ValueError as error:
        fail(f"--parking-idle: {error}", code=EXIT_USAGE)
    return _Parking(ParkingTerms(parkable, percent, seconds), host_memory_mib)


def _run_local(
    command: list[str], size: _Size, output: Format, *, simulate: str | None, state_dir: Path | None, wait: float,
    hint: str,
) -> NoReturn:  # fmt: skip
    """Run the command in a slice of this machine's cards, and end with its status. `hint` ends a refusal."""
    from egpu.adapters.local import run as localrun
    from egpu.adapters.local.guard import MemoryGuard
    from egpu.adapters.local.rooms import BookRooms
    from egpu.adapters.local.sharing import MachineSharing
    from egpu_base.runtime import logs

    logs.configure("run", level="error")  # stdout belongs to the command
    try:
        local, machine = _take(command, size, simulate=simulate, state_dir=state_dir, wait=wait)
    except InvalidInput as error:
        fail(str(error), code=EXIT_USAGE)
    except DoesNotFit as error:
        fail(f"{error}. {hint}", code=EXIT_NOT_STARTED)
    except ElasticGPUError as error:
        fail(str(error), code=EXIT_NOT_STARTED)
    status = EXIT_NOT_STARTED
    try:
        plan = localrun.plan(machine, local, command)
        if size.mode is Mode.SHARE or size.work is RunWork.LATENCY:
            note(in_words(local.request))
        _note_problems(plan.weaknesses, warning(local.request.memory_mib, [card.model for card in local.cards]))
        guard, sharing = MemoryGuard(local, machine.inventory(), note), MachineSharing(machine.sharing())
        status = localrun.execute(plan, local, guard.thread(), sharing.thread(), BookRooms(machine.book).thread())
    except ElasticGPUError as error:
        fail(str(error), code=EXIT_NOT_STARTED)
    finally:
        _summarise(localrun.summary(local, status), output)
        local.give_back()
    raise typer.Exit(status)


def _take(
    command: list[str], size: _Size, *, simulate: str | None, state_dir: Path | None, wait: float
) -> "tuple[LocalSlice, LocalMachine]":
    """Take the slice. Raises InvalidInput, ElasticGPUError."""
    from egpu.adapters.local.holders import SliceRequest
    from egpu.adapters.slices.host_memory import parking_memory_mib
    from egpu.adapters.slices.work import Kind

    memory_mib = None if size.memory is None else parse_memory_mib(size.memory, field="--memory")
    machine = _machine(simulate, state_dir, size.cards)
    cards = machine.cards()
    same_share = max(1, cards[0].memory_mib * size.core // 100)
    request = SliceRequest(
        core=size.core,
        memory_mib=same_share if memory_mib is None else memory_mib,
        cards=size.cards,
        gpu=size.gpu,
        mode=size.mode,
        kind=Kind[size.work.name],
        parkable=size.parking.terms.parkable,
        resident_percent=size.parking.terms.resident_percent,
        idle_seconds=size.parking.terms.idle_seconds,
        host_memory_mib=parking_memory_mib(size.parking.host_memory_mib),
    )
    return machine.take(cards, request, command, wait_seconds=wait, tell=note), machine


def in_words(request: "SliceRequest") -> str:
    """Return what the slice gets of its cards' time, in words."""
    most = f" and up to {request.core_limit} % while others are idle" if request.core_limit > request.core else ""
    return f"{request.qos}: {request.core} % of the card's time{most}, {request.kind.name.lower()} work"


def _default_core_hint(context: typer.Context) -> str:
    """Return the way out of a refusal."""
    source = context.get_parameter_source("core")
    if source is not None and source.name == "DEFAULT":
        return "--core is 100 by default. Give less to share a card, or wait with --wait SECONDS"
    return "Ask for less, or wait with --wait SECONDS"


def _note_problems(weaknesses: Sequence[str], small: str | None) -> None:
    """Tell the user how this machine isolates less than others, and that the slice is too small."""
    for told in (*(f"weaker isolation: {weakness}" for weakness in weaknesses), *([small] if small else [])):
        note(told)


def _refuse_pool_options(context: typer.Context) -> None:
    """Refuse options of the pool on the command line of a local slice. Variables may be set for other commands."""
    for name in ("ptx", "secret_file", "tls_ca", "tls_cert", "tls_key"):
        source = context.get_parameter_source(name)
        if source is not None and source.name == "COMMANDLINE":
            why = "A local slice keeps the compilers' output" if name == "ptx" else "A local slice uses no broker"
            fail(f"--{name.replace('_', '-')} needs --pool. {why}", code=EXIT_USAGE)


def _check_ptx() -> None:
    """Reject --ptx with another numba-cuda plug-in: --ptx is for all compilers, and numba-cuda takes one."""
    from egpu_base import compilers

    if os.environ.get(compilers.NUMBA_MANAGER, compilers.NUMBA_PLUGIN) != compilers.NUMBA_PLUGIN:
        fail(f"--ptx would replace {compilers.NUMBA_MANAGER}, which is set. Use only one of them", code=EXIT_USAGE)


def _run_pooled(
    command: list[str], address: str, files: pool.Files, output: Format, *,
    size: pool.Size, wait: float, ptx: bool | None,
) -> NoReturn:  # fmt: skip
    """Run the command on the pool, and end with its status."""
    if ptx:
        _check_ptx()
    if size.memory is None:
        fail("--pool needs --memory: the memory of each card, such as 2GiB", code=EXIT_USAGE)
    try:
        found = pool.credentials(*files)
        status, summary = pool.run_pooled(
            command, pool=address, found=found, size=size, wait_seconds=wait, ptx=ptx
        )  # fmt: skip
    except InvalidInput as error:
        fail(str(error), code=EXIT_USAGE)
    except ElasticGPUError as error:
        fail(str(error), code=EXIT_NOT_STARTED)
    _summarise(summary, output)
    raise typer.Exit(status)


def _machine(simulate: str | None, state_dir: Path | None, cards: int) -> "LocalMachine":
    """Return the real machine, or a simulated one with this number of cards. Raises InvalidInput, ElasticGPUError."""
    from egpu.adapters.local.run import has_driver, real_machine

    root = state_dir and state_dir.absolute()
    if simulate is None and has_driver():
        return real_machine(root)
    from egpu.laptop.machines import find_machine

    machine = find_machine(simulate, root=root, cards=cards)
    if machine.simulated is not None and simulate is None:
        note(f"no NVIDIA driver found. Using the simulated machine {machine.name} (--simulate chooses another)")
    return machine


def _summarise(summary: dict[str, Any], output: Format) -> None:
    if not output.for_people:
        text = yaml.safe_dump(summary, sort_keys=False) if output is Format.YAML else json.dumps(summary) + "\n"
        sys.stderr.write(text)


def _mode(mode: RunMode) -> Mode:
    return Mode.CAP if mode is RunMode.CAP else Mode.SHARE
