"""The pool: `egpu broker`, `egpu serve`, `egpu certificate`, and what every command that speaks with a pool shares."""

import asyncio
import contextlib
import shlex
import socket
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NamedTuple, TypeVar

import typer

from egpu.adapters.pool.security import Credentials, Role, create_secret
from egpu.api.text import escaped
from egpu.cli.components import Cgroup, ExecutorCpus, ExecutorMemory, ExecutorUsers, ImageCache, LogLevel, run_component
from egpu.cli.output import EXIT_FAILED, EXIT_USAGE, Table, fail, note
from egpu.cli.panels import DEFAULT_BROKER
from egpu.errors import ElasticGPUError, InvalidInput, Unavailable

if TYPE_CHECKING:  # slow to load, and only some commands need them
    from egpu.adapters.pool.client import PoolClient
    from egpu.adapters.pool.messages import CardView
    from egpu.apps.serve import ServeConfig

T = TypeVar("T")

PoolAddress = Annotated[
    str | None, typer.Option("--pool", metavar="HOST:PORT", envvar="EGPU_POOL", help="Where the pool's broker is.")
]
SecretFile = Annotated[
    Path | None,
    typer.Option(
        envvar="EGPU_POOL_SECRET_FILE", help="The pool's shared secret (loopback only). Default: ~/.egpu/pool.secret."
    ),
]
TlsCa = Annotated[Path | None, typer.Option(envvar="EGPU_POOL_CA", help="Mutual TLS: the pool's authority.")]
TlsCert = Annotated[Path | None, typer.Option(envvar="EGPU_POOL_CERT", help="Mutual TLS: our certificate.")]
TlsKey = Annotated[Path | None, typer.Option(envvar="EGPU_POOL_KEY", help="Mutual TLS: our key.")]

Wait = Annotated[
    float, typer.Option(min=0, metavar="SECONDS", help="With --pool: how long to ask a broker that does not answer.")
]
WAIT_SECONDS = 30.0
"""A program itself waits no longer for its GPU."""


class Files(NamedTuple):
    """What the four options named, in the order of `credentials`."""

    secret_file: Path | None
    ca: Path | None
    certificate: Path | None
    key: Path | None


def default_secret() -> Path:
    return Path.home() / ".egpu" / "pool.secret"


def credentials(
    secret_file: Path | None, ca: Path | None, certificate: Path | None, key: Path | None, *, create: bool = False
) -> Credentials:
    """From the four options. `create`: make the default secret where there is none. Raises InvalidInput."""
    if ca or certificate or key:
        return Credentials(ca=ca, certificate=certificate, key=key, secret_file=secret_file)
    path = secret_file or default_secret()
    if create:
        create_secret(path)
    return Credentials(secret_file=path)


def ask(address: str | None, found: Credentials, question: Callable[["PoolClient"], Awaitable[T]]) -> T:
    """One question to the broker. Ends the program with one line when it cannot be had."""
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
        fail(f"{error}; `egpu broker` starts a pool's broker, --pool says where it is", code=EXIT_FAILED)
    except ElasticGPUError as error:
        fail(str(error), code=EXIT_FAILED)


def broker(
    listen: Annotated[str, typer.Option(help="HOST:PORT for programs and servers.")] = DEFAULT_BROKER,
    health: Annotated[str, typer.Option(help="HOST:PORT for /healthz and /readyz. Default: none.")] = "",
    metrics_token_file: Annotated[
        Path | None, typer.Option(help="/metrics there, for whoever shows the bearer token in this file.")
    ] = None,
    policy: Annotated[
        str, typer.Option(help="How servers and their cards are preferred: binpack, spread, price, …")
    ] = "binpack",
    secret_file: SecretFile = None,
    tls_ca: TlsCa = None,
    tls_cert: TlsCert = None,
    tls_key: TlsKey = None,
    log_level: LogLevel = "info",
) -> None:
    """The pool: gives leases of all servers' cards, and keeps nobody over the other."""
    from egpu.apps.broker import BrokerConfig, run

    try:
        found = credentials(secret_file, tls_ca, tls_cert, tls_key, create=True)
    except InvalidInput as error:
        fail(str(error), code=EXIT_USAGE)
    config = BrokerConfig(found, listen=listen, health=health, metrics_token_file=metrics_token_file, policy=policy)
    run_component("broker", run, config, log_level)


def serve(
    broker: Annotated[str, typer.Option(help="HOST:PORT of the broker.")] = DEFAULT_BROKER,
    name: Annotated[str | None, typer.Option(help="Name of this server. Default: the host's.")] = None,
    listen: Annotated[str, typer.Option(help="HOST:PORT for programs on other machines.")] = "127.0.0.1:0",
    advertise: Annotated[str, typer.Option(help="HOST:PORT under which they reach it. Default: as it listens.")] = "",
    state_dir: Annotated[
        Path | None, typer.Option(help="Where leases are kept while they run. Default: a directory in memory.")
    ] = None,
    simulate: Annotated[
        str | None, typer.Option(metavar="PROFILE", help="Serve simulated cards of this profile, such as A100-80G.")
    ] = None,
    gpus: Annotated[int, typer.Option(min=1, max=16, help="How many simulated cards.")] = 1,
    driver_dir: Annotated[Path | None, typer.Option(help="Driver directory of a simulated machine.")] = None,
    link_mbps: Annotated[
        int, typer.Option(min=0, help="Speed of this server's network. Default: what the kernel says.")
    ] = 0,
    cgroup: Cgroup = "",
    executor_memory: ExecutorMemory = 0,
    executor_cpus: ExecutorCpus = 0.0,
    executor_users: ExecutorUsers = "",
    image_cache: ImageCache = None,
    collectives: Annotated[
        bool,
        typer.Option("--collectives", help="Programs may use NCCL: each caller's leases have a network of their own."),
    ] = False,
    secret_file: SecretFile = None,
    tls_ca: TlsCa = None,
    tls_cert: TlsCert = None,
    tls_key: TlsKey = None,
    log_level: LogLevel = "info",
) -> None:
    """On each machine with GPUs: gives its cards to a pool, one executor per lease."""
    from egpu.adapters.executors.confinement import ConfinementConfig
    from egpu.adapters.local import election
    from egpu.adapters.local.run import default_root
    from egpu.adapters.private import occupy, private_directory
    from egpu.apps.serve import ServeConfig, run

    called = name or socket.gethostname()
    try:
        state = private_directory(state_dir or default_root() / f"serve-{called}")
        occupy(state)  # until we end
        driver = driver_dir or (None if simulate is None else _simulated(state, simulate, gpus, called))
        config = ServeConfig(
            name=called,
            broker=broker,
            credentials=credentials(secret_file, tls_ca, tls_cert, tls_key, create=True),
            state_dir=state,
            sharing_dir=None if state_dir else default_root() / election.DIRECTORY,
            listen=listen,
            advertise=advertise,
            driver_dir=driver,
            nvml_library=None if driver is None else driver / "libnvidia-ml.so.1",
            link_mbps=link_mbps,
            confinement=ConfinementConfig(
                cgroup=cgroup,
                memory_mib=executor_memory,
                cpus=executor_cpus,
                users=executor_users,
                network=collectives,
            ),
            image_cache_mib=image_cache,
        )
    except InvalidInput as error:
        fail(str(error), code=EXIT_USAGE)
    except ElasticGPUError as error:
        fail(str(error), code=EXIT_FAILED)
    run_component("serve", run, config, log_level)
    _leave_nothing(config, simulated=simulate is not None and driver_dir is None, ours=state_dir is None)


def _leave_nothing(config: "ServeConfig", *, simulated: bool, ours: bool) -> None:
    """Where no lease is left for a daemon that follows: remove the simulated machine, and directories that are empty.
    `ours`: nobody chose the state directory."""
    from egpu.adapters.simulator import machine as simulator

    try:
        config.leases_dir.rmdir()
    except OSError:
        return
    if simulated:
        simulator.destroy(simulator.open_machine(config.state_dir / "machine"))
    if ours:
        with contextlib.suppress(OSError):
            config.state_dir.rmdir()


def _simulated(state: Path, profile: str, gpus: int, name: str) -> Path:
    """The driver directory of a simulated machine below `state`: the one that is there, or a new one."""
    from egpu.adapters.simulator import machine as simulator
    from egpu.errors import CorruptData, Unavailable

    directory = state / "machine"
    try:
        machine = simulator.open_machine(directory)
        models = {card.profile for card in machine.cards}
        if models == {profile} and len(machine.cards) == gpus:
            simulator.keep(machine)
            simulator.use_our_libraries(machine)
            return machine.driver_dir
        simulator.destroy(machine)
    except (InvalidInput, CorruptData, Unavailable, FileNotFoundError):
        import shutil

        shutil.rmtree(directory, ignore_errors=True)
    return simulator.create_machine(directory, profile, gpus, name).driver_dir


def certificate(
    role: Annotated[str, typer.Argument(help="broker, server, client or admin.")],
    name: Annotated[str, typer.Argument(help="The machine's or user's name.")],
    directory: Annotated[Path, typer.Option(help="Where the authority is kept, and the certificate is written.")],
    days: Annotated[int, typer.Option(min=1, max=3650, help="How long it is good for.")] = 365,
) -> None:
    """A certificate for a part of the pool, from an authority that is made the first time."""
    from egpu.adapters.pool.authority import issue
    from egpu.adapters.pool.security import ROLES

    chosen: Role | None = next((one for one in ROLES if one == role), None)
    if chosen is None:
        fail(f"role: {role!r} is not one of {', '.join(ROLES)}", code=EXIT_USAGE)
    try:
        made = issue(directory, chosen, name, days=days)
    except ElasticGPUError as error:
        fail(str(error), code=EXIT_USAGE)
    note(f"wrote {made.certificate} and {made.key}; the authority is {made.ca} (keep {directory / 'ca.key'} safe)")


def run_pooled(
    command: list[str],
    *,
    pool: str,
    found: Credentials,
    gpus: int,
    core: int,
    memory_mib: int,
    wait_seconds: float,
    ptx: bool | None,
) -> tuple[int, dict[str, object]]:
    """A command on the pool's cards: its exit status, and a summary. Raises our errors."""
    from egpu.adapters.pool.client import machine_id, parse_address, process_holder
    from egpu.adapters.pool.programs import run_in_pool
    from egpu.core.leasing.records import LeaseRequest
    from egpu.runtime import logs

    found.secret()  # what is wrong with it is said before the command starts
    logs.configure("run", level="error")  # the command's streams are its own; `note` says what its user must know
    request = LeaseRequest(cards=gpus, core=core, memory_mib=memory_mib, host=machine_id())
    holder = escaped(f"{process_holder()} {shlex.join(command)}")[:256]
    outcome = asyncio.run(
        run_in_pool(
            command, parse_address(pool), found, request, holder=holder, note=note,
            wait_seconds=wait_seconds, ptx=ptx,
        )
    )  # fmt: skip
    lease = outcome.lease
    return outcome.status, {
        "pool": pool,
        "lease": None if lease is None else lease.lease,
        "cards": [] if lease is None else [_card(card) for card in lease.cards],
        "exitStatus": outcome.status,
        "gpuSeconds": 0.0 if lease is None else lease.gpu_seconds,
    }


def _card(card: "CardView") -> dict[str, object]:
    return {
        "server": card.server,
        "uuid": card.share.uuid,
        "model": card.share.model,
        "corePercent": card.share.core,
        "memoryMiB": card.share.memory_mib,
        "usedMiB": card.used_mib,
    }


def leases_table(address: str | None, found: Credentials) -> Table:
    """`egpu get leases`: one row per card of a lease."""
    table = Table(
        ("lease", "peer", "holder", "state", "server", "gpu", "core", "memory", "used", "sessions"),
        right=frozenset({"core", "memory", "used", "sessions"}),
        spare=("holder", "sessions", "peer"),
    )
    for lease in ask(address, found, lambda client: client.leases()):
        for ordinal, card in enumerate(lease.cards):
            used = "-" if card.used_mib is None else f"{card.used_mib} MiB"
            state = f"{lease.state} (over limit)" if lease.over_limit else lease.state
            row = (lease.lease, lease.peer, lease.holder[:60], state, card.server, str(ordinal), f"{card.share.core} %",
                   f"{card.share.memory_mib} MiB", used, str(lease.sessions))  # fmt: skip
            record = {"lease": lease.lease, "peer": lease.peer, "holder": lease.holder, "state": lease.state,
                      "overLimit": lease.over_limit, "ordinal": ordinal, **_card(card),
                      "sessions": lease.sessions}  # fmt: skip
            table.add(row, record)
    return table


def servers_table(address: str | None, found: Credentials) -> Table:
    """`egpu get servers`: the pool's machines."""
    columns = ("server", "address", "state", "cards", "leases", "core free", "memory free", "link")
    table = Table(columns, right=frozenset(columns[3:]), spare=("link", "address"))
    for one in ask(address, found, lambda client: client.servers()):
        state = "Ready" if one.connected else "NotReady"
        row = (one.server, one.address, state, str(one.cards), str(one.leases), f"{one.core_free} of {one.core} %",
               f"{one.memory_free_mib} of {one.memory_mib} MiB", f"{one.link_mbps} Mbit/s")  # fmt: skip
        record = {"server": one.server, "address": one.address, "connected": one.connected, "cards": one.cards,
                  "leases": one.leases, "coreFreePercent": one.core_free, "memoryFreeMiB": one.memory_free_mib,
                  "linkMbps": one.link_mbps, "executors": one.confinement}  # fmt: skip
        table.add(row, record)
    return table
