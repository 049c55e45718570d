"""The pool: `egpu broker`, `egpu serve`, `egpu certificate`, and the common options of all commands of a pool."""

import asyncio
import contextlib
import shlex
import socket
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NamedTuple, TypeVar

import typer

from egpu.adapters.pool.security import Credentials, Role, create_secret
from egpu.api.text import escaped
from egpu.cli.components import (
    Cgroup,
    ExecutorCpus,
    ExecutorMemory,
    ExecutorUsers,
    ImageCache,
    LibraryPath,
    LinkMbps,
    LogFormat,
    LogLevel,
    run_component,
)
from egpu.cli.output import EXIT_FAILED, EXIT_USAGE, Table, fail, note
from egpu.cli.panels import DEFAULT_BROKER
from egpu.cli.park import ParkingMemory
from egpu.core.provisioners.parking import ParkingTerms
from egpu_base.api.quantities import parse_memory_mib
from egpu_base.errors import ElasticGPUError, InvalidInput, Unavailable

if TYPE_CHECKING:  # slow to load, and only some commands need them
    from egpu.adapters.pool.client import PoolClient
    from egpu.adapters.pool.messages import CardView, LeaseView
    from egpu.apps.serve import ServeConfig

T = TypeVar("T")

PoolAddress = Annotated[
    str | None, typer.Option("--pool", metavar="HOST:PORT", envvar="EGPU_POOL", help="Address of the pool's broker.")
]
SecretFile = Annotated[
    Path | None,
    typer.Option(
        envvar="EGPU_POOL_SECRET_FILE",
        help="File with the pool's secret (loopback only). Default: ~/.egpu/pool.secret.",
    ),
]
TlsCa = Annotated[Path | None, typer.Option(envvar="EGPU_POOL_CA", help="Mutual TLS: CA certificate file of the pool.")]
TlsCert = Annotated[Path | None, typer.Option(envvar="EGPU_POOL_CERT", help="Mutual TLS: certificate file.")]
TlsKey = Annotated[Path | None, typer.Option(envvar="EGPU_POOL_KEY", help="Mutual TLS: private key file.")]

WAIT_SECONDS = 30.0
"""A program also waits at most this long for its GPU."""


class Files(NamedTuple):
    """The files of the four options, in the order of `credentials`."""

    secret_file: Path | None
    ca: Path | None
    certificate: Path | None
    key: Path | None


def default_secret() -> Path:
    return Path.home() / ".egpu" / "pool.secret"


def credentials(
    secret_file: Path | None, ca: Path | None, certificate: Path | None, key: Path | None, *, create: bool = False
) -> Credentials:
    """Return the credentials of the four options. `create`: create a missing secret. Raises InvalidInput."""
    if ca or certificate or key:
        return Credentials(ca=ca, certificate=certificate, key=key, secret_file=secret_file)
    path = secret_file or default_secret()
    if create:
        create_secret(path)
    return Credentials(secret_file=path)


def given_credentials(
    secret_file: Path | None, ca: Path | None, certificate: Path | None, key: Path | None
) -> Credentials:
    """Return `credentials`. If the options do not fit together, end the program with the status of a wrong command."""
    try:
        return credentials(secret_file, ca, certificate, key)
    except InvalidInput as error:
        fail(str(error), code=EXIT_USAGE)


def ask(address: str | None, found: Credentials, question: Callable[["PoolClient"], Awaitable[T]]) -> T:
    """Ask the broker one question. On an error, print one line and end the program."""
    from egpu.adapters.pool.client import PoolClient, parse_address

    async def work() -> T:
        client = await PoolClient.connect(parse_address(address or DEFAULT_BROKER), found)
        try:
            return await question(client)
        finally:
            await client.close()

    try:
        return asyncio.run(work())
    except InvalidInput as error:
        fail(str(error), code=EXIT_USAGE)
    except Unavailable as error:
        fail(f"{error}. Start a broker with `egpu broker`, or give its address with --pool", code=EXIT_FAILED)
    except ElasticGPUError as error:
        fail(str(error), code=EXIT_FAILED)


def broker(
    listen: Annotated[str, typer.Option(help="HOST:PORT for programs and servers.")] = DEFAULT_BROKER,
    health: Annotated[str, typer.Option(help="HOST:PORT for /healthz and /readyz. Default: off.")] = "",
    metrics_token_file: Annotated[
        Path | None, typer.Option(help="Serve /metrics on --health to clients with the bearer token in this file.")
    ] = None,
    policy: Annotated[
        str, typer.Option(help="Policy that ranks servers and their cards: binpack, spread, price, …")
    ] = "binpack",
    secret_file: SecretFile = None,
    tls_ca: TlsCa = None,
    tls_cert: TlsCert = None,
    tls_key: TlsKey = None,
    log_level: LogLevel = "info",
    log_format: LogFormat = "auto",
) -> None:
    """Run the broker of a pool. It leases slices of the servers' cards, and never more than a card has room for."""
    from egpu.apps.broker import BrokerConfig, run

    try:
        found = credentials(secret_file, tls_ca, tls_cert, tls_key, create=True)
    except InvalidInput as error:
        fail(str(error), code=EXIT_USAGE)
    config = BrokerConfig(found, listen=listen, health=health, metrics_token_file=metrics_token_file, policy=policy)
    run_component("broker", run, config, (log_level, log_format))


def serve(
    broker: Annotated[str, typer.Option(help="HOST:PORT of the broker.")] = DEFAULT_BROKER,
    name: Annotated[str | None, typer.Option(help="Name of this server. Default: the host name.")] = None,
    listen: Annotated[str, typer.Option(help="HOST:PORT for programs on other machines.")] = "127.0.0.1:0",
    advertise: Annotated[str, typer.Option(help="HOST:PORT that programs connect to. Default: --listen.")] = "",
    state_dir: Annotated[
        Path | None, typer.Option(help="Directory for running leases. Default: a directory in memory.")
    ] = None,
    simulate: Annotated[
        str | None, typer.Option(metavar="PROFILE", help="Serve simulated cards of this profile, such as A100-80G.")
    ] = None,
    gpus: Annotated[int, typer.Option(min=1, max=16, help="Number of simulated cards.")] = 1,
    driver_dir: Annotated[
        Path | None, typer.Option(help="Directory of the executors' CUDA driver. Default: the system's.")
    ] = None,
    library_path: LibraryPath = None,
    link_mbps: LinkMbps = 0,
    cgroup: Cgroup = "",
    executor_memory: ExecutorMemory = 0,
    executor_cpus: ExecutorCpus = 0.0,
    executor_users: ExecutorUsers = "",
    image_cache: ImageCache = None,
    parking_memory: ParkingMemory = None,
    collectives: Annotated[
        bool, typer.Option("--collectives", help="Allow NCCL. The leases of each client get a private network.")
    ] = False,
    secret_file: SecretFile = None,
    tls_ca: TlsCa = None,
    tls_cert: TlsCert = None,
    tls_key: TlsKey = None,
    log_level: LogLevel = "info",
    log_format: LogFormat = "auto",
) -> None:
    """Serve the GPUs of this machine to a pool. Each lease gets an executor of its own."""
    from egpu.adapters.executors.confinement import ConfinementConfig
    from egpu.adapters.local import election
    from egpu.adapters.local.run import default_root
    from egpu.adapters.slices.host_memory import parking_memory_mib
    from egpu.apps.serve import ServeConfig, run
    from egpu_base.system.private import occupy, private_directory

    called = name or socket.gethostname()
    try:
        state = private_directory(state_dir or default_root() / f"serve-{called}")
        occupy(state)  # until this process ends
        driver = driver_dir
        if driver is None and simulate is not None:
            from egpu.laptop.machines import served_driver

            driver = served_driver(state, simulate, gpus, called)
        config = ServeConfig(
            name=called,
            broker=broker,
            credentials=credentials(secret_file, tls_ca, tls_cert, tls_key, create=True),
            state_dir=state,
            sharing_dir=None if state_dir else default_root() / election.DIRECTORY,
            listen=listen,
            advertise=advertise,
            driver_dir=driver,
            library_path=tuple(library_path or ()),
            nvml_library=None if driver is None else driver / "libnvidia-ml.so.1",
            link_mbps=link_mbps,
            confinement=ConfinementConfig(
                cgroup=cgroup, memory_mib=executor_memory, cpus=executor_cpus, users=executor_users, network=collectives
            ),
            image_cache_mib=image_cache,
            parking_mib=parking_memory_mib(parking_memory),
        )
    except InvalidInput as error:
        fail(str(error), code=EXIT_USAGE)
    except ElasticGPUError as error:
        fail(str(error), code=EXIT_FAILED)
    run_component("serve", run, config, (log_level, log_format))
    _leave_nothing(config, simulated=simulate is not None and driver_dir is None, ours=state_dir is None)


def _leave_nothing(config: "ServeConfig", *, simulated: bool, ours: bool) -> None:
    """Remove the simulated machine and empty directories, unless a lease is left for the next daemon. `ours`: the state
    directory is the default one."""
    try:
        config.leases_dir.rmdir()
    except OSError:
        return
    if simulated:
        from egpu.laptop.machines import remove_served

        remove_served(config.state_dir)
    if ours:
        with contextlib.suppress(OSError):
            config.state_dir.rmdir()


def certificate(
    role: Annotated[str, typer.Argument(help="broker, server, client or admin.")],
    name: Annotated[str, typer.Argument(help="Name of the machine or user.")],
    directory: Annotated[Path, typer.Option(help="Directory of the certificate authority and of the new certificate.")],
    days: Annotated[int, typer.Option(min=1, max=3650, help="Days until the certificate expires.")] = 365,
) -> None:
    """Issue a certificate for a member of a pool. The first call creates the pool's certificate authority."""
    from egpu.adapters.pool.authority import issue
    from egpu.adapters.pool.security import ROLES

    chosen: Role | None = next((one for one in ROLES if one == role), None)
    if chosen is None:
        fail(f"role: {role!r} is unknown. Use one of {', '.join(ROLES)}", code=EXIT_USAGE)
    try:
        made = issue(directory, chosen, name, days=days)
    except ElasticGPUError as error:
        fail(str(error), code=EXIT_USAGE)
    note(f"wrote {made.certificate} and {made.key}. CA certificate: {made.ca}. Keep {directory / 'ca.key'} secret")


class Size(NamedTuple):
    """The options that say how large a lease is, and how far it may be parked."""

    cards: int
    core: int
    memory: str | None
    parking: ParkingTerms


def run_pooled(
    command: list[str],
    *,
    pool: str,
    found: Credentials,
    size: Size,
    wait_seconds: float,
    ptx: bool | None,
) -> tuple[int, dict[str, object]]:
    """Run a command on the pool's cards. Return its exit status and a summary. Raises ElasticGPUError."""
    from egpu.adapters.pool.client import machine_id, parse_address, process_holder
    from egpu.adapters.pool.programs import run_in_pool
    from egpu.core.leasing.records import LeaseRequest
    from egpu_base.runtime import logs

    found.secret()  # report its errors before the command starts
    logs.configure("run", level="error")  # the streams belong to the command; `note` reports the rest
    request = LeaseRequest(
        cards=size.cards,
        core=size.core,
        memory_mib=parse_memory_mib(size.memory or "", field="--memory"),
        host=machine_id(),
        resident_percent=size.parking.resident_percent,
        park_idle_seconds=size.parking.idle_seconds,
    )
    holder = escaped(f"{process_holder()} {shlex.join(command)}")[:256]
    outcome = asyncio.run(
        run_in_pool(
            command, parse_address(pool), found, request, holder=holder, note=note,
            wait_seconds=wait_seconds, ptx=ptx, making_ptx=_making_ptx,
        )
    )  # fmt: skip
    lease = outcome.lease
    return outcome.status, {
        "pool": pool,
        "lease": None if lease is None else lease.lease,
        "cards": [] if lease is None else [_card(card) for card in lease.cards],
        "exitStatus": outcome.status,
        "gpuSeconds": _gpu_seconds(lease),
    }


def _making_ptx(present: Mapping[str, str]) -> dict[str, str]:
    from egpu.laptop.machines import making_ptx

    return making_ptx(present)


def _gpu_seconds(lease: "LeaseView | None") -> float | None:
    """Return None for a lease of 100 %, whose programs run without being timed."""
    if lease is None:
        return 0.0
    timed = lease.gpu_seconds > 0 or any(card.share.core < 100 for card in lease.cards)
    return lease.gpu_seconds if timed else None


def _card(card: "CardView") -> dict[str, object]:
    return {
        "server": card.server,
        "uuid": card.share.uuid,
        "model": card.share.model,
        "corePercent": card.share.core,
        "memoryMiB": card.share.memory_mib,
        "usedMiB": card.used_mib,
        "residentMiB": card.share.resident_mib or card.share.memory_mib,
        "parkedMiB": card.parked_mib,
    }


def leases_table(address: str | None, found: Credentials) -> Table:
    """Return the table of `egpu get leases`: one row per card of a lease."""
    table = Table(
        ("lease", "peer", "holder", "state", "server", "gpu", "core", "memory", "used", "parked", "sessions"),
        right=frozenset({"core", "memory", "used", "parked", "sessions"}),
        spare=("holder", "parked", "sessions", "peer"),
    )
    for lease in ask(address, found, lambda client: client.leases()):
        for ordinal, card in enumerate(lease.cards):
            used = "-" if card.used_mib is None else f"{card.used_mib} MiB"
            state = f"{lease.state} (over limit)" if lease.over_limit else lease.state
            state += f" (moving to {lease.moving})" if lease.moving else ""
            row = (lease.lease, lease.peer, lease.holder[:60], state, card.server, str(ordinal), f"{card.share.core} %",
                   f"{card.share.memory_mib} MiB", used, f"{card.parked_mib} MiB" if card.share.resident_mib else "-",
                   str(lease.sessions))  # fmt: skip
            record = {"lease": lease.lease, "peer": lease.peer, "holder": lease.holder, "state": lease.state,
                      "overLimit": lease.over_limit, "movingTo": lease.moving, "ordinal": ordinal, **_card(card),
                      "sessions": lease.sessions}  # fmt: skip
            table.add(row, record)
    return table


def servers_table(address: str | None, found: Credentials) -> Table:
    """Return the table of `egpu get servers`: the pool's machines."""
    columns = (
        "server",
        "address",
        "state",
        "cards",
        "leases",
        "core free",
        "memory free",
        "parked",
        "link",
        "libraries",
    )
    table = Table(columns, right=frozenset(columns[3:9]), spare=("libraries", "link", "parked", "address"))
    for one in ask(address, found, lambda client: client.servers()):
        state = "NotReady" if not one.connected else "Drained" if one.cordoned else "Ready"
        state += f" ({len(one.thrashing)} cards thrash)" if one.thrashing else ""
        row = (one.server, one.address, state, str(one.cards), str(one.leases), f"{one.core_free} of {one.core} %",
               f"{one.memory_free_mib} of {one.memory_mib} MiB", f"{one.parked_mib} of {one.parking_mib} MiB",
               f"{one.link_mbps} Mbit/s",
               ", ".join(f"{name} {version}".strip() for name, version in one.libraries.items()) or "-")  # fmt: skip
        record = {"server": one.server, "address": one.address, "connected": one.connected,
                  "drained": one.cordoned, "movable": one.movable, "cards": one.cards,
                  "leases": one.leases, "coreFreePercent": one.core_free, "memoryFreeMiB": one.memory_free_mib,
                  "linkMbps": one.link_mbps, "executors": one.confinement, "libraries": one.libraries,
                  "parkedMiB": one.parked_mib, "parkingMemoryMiB": one.parking_mib,
                  "parkingMemoryFreeMiB": one.parking_free_mib, "thrashing": list(one.thrashing)}  # fmt: skip
        table.add(row, record)
    return table
