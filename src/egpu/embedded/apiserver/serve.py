"""Puts the parts together and serves them on loopback."""

import asyncio
import contextlib
import datetime
import socket
import tempfile
import time
import uuid
from collections.abc import AsyncGenerator, Generator
from dataclasses import dataclass, field
from pathlib import Path

import uvicorn

from egpu.adapters.certificates import Certificates, issue
from egpu.embedded.apiserver import access, builtin, crd, priority, quota
from egpu.embedded.apiserver.access import Tokens, write_kubeconfig
from egpu.embedded.apiserver.admission import Admission, ServiceResolver
from egpu.embedded.apiserver.app import App
from egpu.embedded.apiserver.authorization import Authorizer
from egpu.embedded.apiserver.calls import User
from egpu.embedded.apiserver.default_roles import default_roles
from egpu.embedded.apiserver.deletion import Deleter
from egpu.embedded.apiserver.gc import Housekeeper
from egpu.embedded.apiserver.handlers import Handlers
from egpu.embedded.apiserver.logs import LogFinder, annotated_logs
from egpu.embedded.apiserver.objects import Json, metadata, now
from egpu.embedded.apiserver.patching import Patcher
from egpu.embedded.apiserver.resources import Registry
from egpu.embedded.apiserver.reviews import Reviews
from egpu.embedded.apiserver.store import LOG_LIMIT, Store
from egpu.embedded.apiserver.streaming import Streaming
from egpu.embedded.apiserver.watch import Hub
from egpu.embedded.apiserver.writes import Writer
from egpu.embedded.streams import FRAME_BYTES
from egpu.errors import InvalidInput, Unavailable

NAMESPACES = ("default", "kube-system", "kube-public", "kube-node-lease")
START_SECONDS = 10.0
STOP_SECONDS = 1
"""How long a stopping server waits for clients to let go of their connections; watches are ended at once."""


@dataclass(frozen=True)
class Config:
    """How to serve. Nothing but loopback addresses are accepted for `host`."""

    directory: Path
    """Where the kubeconfig files go: `admin.kubeconfig` and one per name in `users`."""
    host: str = "127.0.0.1"
    port: int = 0
    """0: any free port."""
    users: dict[str, User] = field(default_factory=dict[str, User])
    """File name stem → user, for identities beside the admin's."""
    log_limit: int = LOG_LIMIT
    """Changes each resource's log keeps for watches."""
    find_log: LogFinder | None = None
    """Finds a container's log file; without it, the node's annotation does (see `logs`)."""
    resolve_service: ServiceResolver | None = None
    """Finds the address behind a Service that a webhook names."""


@dataclass
class ServerHandle:
    """A running server."""

    url: str
    ca: bytes
    """The CA certificate, PEM."""
    kubeconfig: Path
    """The admin's."""
    kubeconfigs: dict[str, Path]
    """All of them by name, `admin` too."""
    store: Store
    authorizer: Authorizer
    _hub: Hub
    _directory: Path
    _tokens: Tokens
    _stop: asyncio.Event = field(default_factory=asyncio.Event)

    def add_user(self, name: str, user: User) -> Path:
        """Make a user known and return a kubeconfig of theirs."""
        path = self._directory / f"{name}.kubeconfig"
        write_kubeconfig(path, url=self.url, ca=self.ca, user=user.name, token=self._tokens.issue(user))
        self.kubeconfigs[name] = path
        return path

    def cut_watches(self) -> None:
        """End every watch that is open now."""
        self._hub.cut()

    def stop(self) -> None:
        """Ask the server to end; leaving the context does the same."""
        self._stop.set()

    async def wait(self) -> None:
        """Until somebody called `stop`."""
        await self._stop.wait()


class _Server(uvicorn.Server):
    """uvicorn without its signal handlers: signals belong to whoever embeds the server."""

    @contextlib.contextmanager
    def capture_signals(self) -> Generator[None, None, None]:
        yield


def _listen(config: Config) -> socket.socket:
    addresses = socket.getaddrinfo(config.host, config.port, type=socket.SOCK_STREAM)
    family, _, _, _, address = addresses[0]
    if not (str(address[0]).startswith("127.") or address[0] == "::1"):
        raise InvalidInput("host", f"{config.host} is not a loopback address; the embedded API server serves no other")
    # With the protocol said outright: asyncio turns Nagle's delay off (40 ms an answer) only on sockets that say TCP.
    listener = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind(address)
    except OSError as error:
        listener.close()
        raise Unavailable(f"cannot listen on {config.host}:{config.port}: {error.strerror}") from error
    return listener


def _begun(obj: Json) -> Json:
    """An object that is there from the start, by a uid that is always the same."""
    meta = metadata(obj)
    meta["uid"] = str(uuid.uuid5(uuid.NAMESPACE_OID, f"{obj['kind']}/{meta['name']}"))
    meta["creationTimestamp"] = now()
    return obj


def _namespace(name: str) -> Json:
    labels = {"kubernetes.io/metadata.name": name}
    return _begun(
        {
            "kind": "Namespace",
            "apiVersion": "v1",
            "metadata": {"name": name, "labels": labels},
            "spec": {"finalizers": ["kubernetes"]},
            "status": {"phase": "Active"},
        }
    )


@contextlib.asynccontextmanager
async def serve(config: Config) -> AsyncGenerator[ServerHandle, None]:
    """Serve the API until the context is left. Raises InvalidInput, Unavailable.

    State lives as long as the context: a later server knows nothing of an earlier one, and its resourceVersions are
    higher, so that clients of the earlier one are told to list again.
    """
    store = Store(first_revision=int(time.time() * 1000), log_limit=config.log_limit)
    registry = Registry()
    builtin.register(registry, crd.DefinitionRules())
    store.listen(crd.Definitions(registry, builtin.metadata_schema()).on_change)
    for shelf, role in default_roles():
        store.put(
            shelf, {**role, "metadata": {**role["metadata"], "uid": str(uuid.uuid4()), "creationTimestamp": now()}}
        )
    authorizer, tokens = Authorizer(store), Tokens()
    admission = Admission(store, authorizer, config.resolve_service)
    writer, deleter = Writer(store, admission), Deleter(store, admission)
    hub, housekeeper = Hub(store), Housekeeper(store, registry, deleter)
    find_log = config.find_log or annotated_logs(store)
    handlers = Handlers(
        store,
        hub=hub,
        writer=writer,
        deleter=deleter,
        patcher=Patcher(registry),
        logs=find_log,
        reviews=Reviews(authorizer, tokens),
    )
    housekeeper.start()
    for name in NAMESPACES:
        store.put("namespaces", _namespace(name))
    for name, value in priority.SYSTEM_CLASSES.items():
        store.put(priority.SHELF, _begun(priority.system_class(name, value)))
    store.listen(quota.QuotaStatus(store).on_change)
    listener = _listen(config)
    host = f"[{config.host}]" if ":" in config.host else config.host
    url = f"https://{host}:{listener.getsockname()[1]}"
    hosts = ["localhost", "127.0.0.1", "::1", "kubernetes.default.svc"]
    certificates = issue(hosts, now=datetime.datetime.now(datetime.UTC))
    kubeconfig = config.directory / "admin.kubeconfig"
    handle = ServerHandle(url, certificates.ca_bundle, kubeconfig, {}, store, authorizer, hub, config.directory, tokens)
    for name, user in {"admin": access.ADMIN, **config.users}.items():
        handle.add_user(name, user)
    settings = _loaded_settings(
        App(registry, handlers, Streaming(store, find_log), tokens, authorizer), config.directory, certificates
    )
    server = _Server(settings)
    running = asyncio.create_task(server.serve(sockets=[listener]))
    try:
        await _started(server, running)
        yield handle
    finally:
        hub.close()
        server.should_exit = True
        with contextlib.suppress(asyncio.CancelledError):
            await running
        await housekeeper.stop()
        await admission.close()
        listener.close()


def _loaded_settings(app: App, directory: Path, certificates: Certificates) -> uvicorn.Config:
    """uvicorn reads key and certificate from files; they are gone again when this returns."""
    directory.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".tls-", dir=directory) as private:
        key, certificate = Path(private) / "key.pem", Path(private) / "certificate.pem"
        key.write_bytes(certificates.key)
        certificate.write_bytes(certificates.certificate)
        settings = _settings(app, key, certificate)
        settings.load()
    return settings


def _settings(app: App, key: Path, certificate: Path) -> uvicorn.Config:
    return uvicorn.Config(
        app,
        http="h11",
        ws="wsproto",
        ws_max_size=FRAME_BYTES,
        ws_per_message_deflate=False,
        ws_ping_interval=None,  # who waits for `| less` does not answer; on loopback the connection's end is seen
        lifespan="off",
        log_config=None,
        access_log=False,
        log_level="error",  # it warns of each upgrade that we refuse
        server_header=False,
        ssl_keyfile=str(key),
        ssl_certfile=str(certificate),
        timeout_graceful_shutdown=STOP_SECONDS,
        timeout_keep_alive=120,
        backlog=1024,
        h11_max_incomplete_event_size=64 * 1024,
    )


async def _started(server: uvicorn.Server, running: "asyncio.Task[None]") -> None:
    async with asyncio.timeout(START_SECONDS):
        while not server.started:
            if running.done():
                running.result()
                raise Unavailable("the embedded API server ended while it started")
            await asyncio.sleep(0.005)
