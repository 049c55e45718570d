"""Assembles the parts and serves them on loopback."""

import asyncio
import contextlib
import datetime
import socket
import tempfile
import time
import uuid
from collections.abc import AsyncGenerator
from dataclasses import dataclass, field
from pathlib import Path

import uvicorn

from egpu_base.errors import InvalidInput, Unavailable
from egpu_base.http.protocol import BoundedProtocol
from egpu_base.tls.certificates import Certificates, issue
from egpu_sim.cluster.apiserver.access import identities
from egpu_sim.cluster.apiserver.access.authorization import Authorizer, Listener
from egpu_sim.cluster.apiserver.access.default_roles import default_roles
from egpu_sim.cluster.apiserver.access.identities import Tokens, write_kubeconfig
from egpu_sim.cluster.apiserver.admission import priority
from egpu_sim.cluster.apiserver.admission.webhooks import ServiceResolver
from egpu_sim.cluster.apiserver.calls import User
from egpu_sim.cluster.apiserver.instance import Instance
from egpu_sim.cluster.apiserver.nodes.logs import LogFinder
from egpu_sim.cluster.apiserver.storage.store import LOG_LIMIT, Store
from egpu_sim.cluster.streams import FRAME_BYTES
from egpu_sim.cluster.trees import Json, metadata, now

NAMESPACES = ("default", "kube-system", "kube-public", "kube-node-lease")
STOP_SECONDS = 1
"""Time that a stopping server gives clients to close connections; watches end at once."""


@dataclass(frozen=True)
class Config:
    """The server's configuration. `host` must be a loopback address."""

    directory: Path
    """Directory of the kubeconfig files: `admin.kubeconfig` and one per name in `users`."""
    host: str = "127.0.0.1"
    port: int = 0
    """0: any free port."""
    users: dict[str, User] = field(default_factory=dict[str, User])
    """File name stem → user, for identities beside the admin's."""
    log_limit: int = LOG_LIMIT
    """Changes that each resource's log keeps for watches."""
    find_log: LogFinder | None = None
    """Finds a container's log file. Default: by the node's annotation (see `logs`)."""
    resolve_service: ServiceResolver | None = None
    """Finds the address behind a Service that a webhook names."""


class ServerHandle:
    """A running server, and its state that outlives a kill: it restarts with all stored objects, as a server with etcd
    does."""

    def __init__(self, config: Config) -> None:
        """Reserve the port. Raises InvalidInput, Unavailable: it cannot listen there."""
        self._config = config
        self._tokens = Tokens()
        self._stop = asyncio.Event()
        self.listeners: list[Listener] = []
        """Called with every request and whether it is allowed."""
        self.kubeconfigs: dict[str, Path] = {}
        """All of them by name, `admin` too."""
        self.tokens: dict[str, str] = {}
        """Their contents."""
        # Bound and never listening: between two runs the port stays reserved, and refuses connections.
        self._address = _bound(config.host, config.port)
        host = f"[{config.host}]" if ":" in config.host else config.host
        self.url = f"https://{host}:{self._address.getsockname()[1]}"
        hosts = ["localhost", "127.0.0.1", "::1", "kubernetes.default.svc"]
        self._certificates = issue(hosts, now=datetime.datetime.now(datetime.UTC))
        self._instance = self._over(Store(first_revision=int(time.time() * 1000), log_limit=config.log_limit))

    @property
    def ca(self) -> bytes:
        return self._certificates.ca_bundle

    @property
    def kubeconfig(self) -> Path:
        """The admin's."""
        return self.kubeconfigs["admin"]

    @property
    def store(self) -> Store:
        return self._instance.store

    @property
    def authorizer(self) -> Authorizer:
        return self._instance.authorizer

    def add_user(self, name: str, user: User) -> Path:
        path, token = self._config.directory / f"{name}.kubeconfig", self._tokens.issue(user)
        write_kubeconfig(path, url=self.url, ca=self.ca, user=user.name, token=token)
        self.kubeconfigs[name], self.tokens[name] = path, token
        return path

    def add_token(self, user: User) -> str:
        return self._tokens.issue(user)

    def cut_watches(self) -> None:
        self._instance.hub.cut()

    async def kill(self, *, away_seconds: float) -> None:
        """Kill it and restart it after a while. Meanwhile connections break and are refused. Stored objects stay, and
        earlier revisions are too old to watch from."""
        killed = self._instance
        killed.kill()
        store = Store(first_revision=killed.store.revision, log_limit=self._config.log_limit)
        self._instance = self._over(store)
        store.take_over(killed.store)
        await killed.end()
        await asyncio.sleep(away_seconds)
        await self.start()

    def _over(self, store: Store) -> Instance:
        config = self._config
        return Instance(
            store,
            self._tokens,
            listeners=self.listeners,
            find_log=config.find_log,
            resolve_service=config.resolve_service,
        )

    async def start(self) -> None:
        """Return when it is served. Raises Unavailable, TimeoutError."""
        listener = _bound(*self._address.getsockname()[:2])
        await self._instance.start(_settings(self._instance, self._config.directory, self._certificates), listener)

    def stop(self) -> None:
        """Ask the server to end; leaving the context does the same."""
        self._stop.set()

    async def wait(self) -> None:
        await self._stop.wait()

    async def close(self) -> None:
        await self._instance.end()
        self._address.close()


def _bound(host: str, port: int) -> socket.socket:
    addresses = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    family, _, _, _, address = addresses[0]
    if not (str(address[0]).startswith("127.") or address[0] == "::1"):
        raise InvalidInput("host", f"{host} is not a loopback address; the simulated API server serves no other")
    # With an explicit protocol: asyncio turns Nagle's delay off (40 ms an answer) only on sockets that name TCP.
    bound = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        bound.bind(address)
    except OSError as error:
        bound.close()
        raise Unavailable(f"cannot listen on {host}:{port}: {error.strerror}") from error
    return bound


def _begun(obj: Json) -> Json:
    """Return an initial object, whose uid is always the same."""
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

    State lives as long as the context. A later server knows nothing of an earlier one, and its resourceVersions are
    higher, so that clients of the earlier one list again.
    """
    handle = ServerHandle(config)
    try:
        _fill(handle.store)
        for name, user in {"admin": identities.ADMIN, **config.users}.items():
            handle.add_user(name, user)
        await handle.start()
        yield handle
    finally:
        await handle.close()


def _fill(store: Store) -> None:
    """Store the initial objects."""
    for shelf, role in default_roles():
        store.put(
            shelf, {**role, "metadata": {**role["metadata"], "uid": str(uuid.uuid4()), "creationTimestamp": now()}}
        )
    for name in NAMESPACES:
        store.put("namespaces", _namespace(name))
    for name, value in priority.SYSTEM_CLASSES.items():
        store.put(priority.SHELF, _begun(priority.system_class(name, value)))


def _settings(app: Instance, directory: Path, certificates: Certificates) -> uvicorn.Config:
    """Return uvicorn's settings. It reads key and certificate from files, which are removed when this returns."""
    directory.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".tls-", dir=directory) as private:
        key, certificate = Path(private) / "key.pem", Path(private) / "certificate.pem"
        key.write_bytes(certificates.key)
        certificate.write_bytes(certificates.certificate)
        settings = uvicorn.Config(
            app,
            http=BoundedProtocol,
            ws="wsproto",
            ws_max_size=FRAME_BYTES,
            ws_per_message_deflate=False,
            ws_ping_interval=None,  # a client that pipes to `less` does not answer
            lifespan="off",
            log_config=None,
            access_log=False,
            log_level="error",  # it warns of each refused upgrade
            server_header=False,
            proxy_headers=False,  # there is no proxy before it
            ssl_keyfile=str(key),
            ssl_certfile=str(certificate),
            timeout_graceful_shutdown=STOP_SECONDS,
            timeout_keep_alive=120,
            backlog=1024,
        )
        settings.load()
    return settings
