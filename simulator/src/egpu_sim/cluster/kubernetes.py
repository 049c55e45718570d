"""Kubernetes's own programs as the control plane: as strict as a real cluster, because it is one.

    directory of programs     etcd, kube-apiserver, kube-controller-manager, kube-scheduler, all of one release
    state directory
      kubernetes/etcd         stored objects; removed with the cluster
                /pki          certificates of etcd and of kube-apiserver, the key of service accounts' tokens
                /tokens.csv   users by token

Everything listens on loopback, and authenticates: etcd accepts only kube-apiserver's certificate.

Known difference: kubelets answer only `kubectl logs`, not `exec`, `attach` and `port-forward`.
"""

import asyncio
import contextlib
import os
import secrets
import time
from collections.abc import AsyncGenerator, Callable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

import yaml
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec

from egpu_base.api.kubernetes import Node
from egpu_base.errors import ElasticGPUError, InvalidInput, NotFound, Unavailable
from egpu_base.kubernetes import Client
from egpu_base.system.files import write_atomically
from egpu_base.tls.certificates import issue, store
from egpu_sim.cluster.apiserver.access.identities import ADMIN, NODE_NAME, write_kubeconfig
from egpu_sim.cluster.apiserver.calls import User
from egpu_sim.cluster.ports import Ports
from egpu_sim.cluster.processes import ChildSpec, Fleet

PROGRAMS: Final = ("etcd", "kube-apiserver", "kube-controller-manager", "kube-scheduler")
ENVIRONMENT: Final = "EGPU_KUBERNETES"
"""The environment variable with the default directory of programs, for the demo and the tests."""
PKI: Final = "pki"
ETCD: Final = "etcd"
SERVER: Final = "server"
ACCOUNTS_KEY: Final = "accounts.key"
"""Certificates by folder, and the key that signs the tokens of service accounts."""
USERS: Final = {
    "controllers": User("system:kube-controller-manager"),
    "scheduler": User("system:kube-scheduler"),
}
"""Kubernetes's own users, by the names of their kubeconfigs."""
START_SECONDS: Final = 120.0
POLL_SECONDS: Final = 0.2
TOKEN_SECONDS: Final = 24 * 3600
"""Lifetime of a token that is bound to a node: longer than any trial."""


def named_by_environment() -> Path | None:
    """Return the directory of programs that the environment names, if any."""
    given = os.environ.get(ENVIRONMENT)
    return Path(given).absolute() if given else None


def check(programs: Path) -> None:
    """Check the directory. Raises InvalidInput naming the programs that are missing."""
    missing = [name for name in PROGRAMS if not os.access(programs / name, os.X_OK)]
    if missing:
        raise InvalidInput(
            "kubernetes", f"{programs} has no program {', '.join(missing)}; it needs {', '.join(PROGRAMS)}"
        )


@dataclass
class ControlPlane:
    """A running control plane. `kubeconfigs` and `tokens` by name of user."""

    url: str
    directory: Path
    fleet: Fleet
    ca: bytes
    kubeconfigs: dict[str, Path] = field(default_factory=dict[str, Path])
    tokens: dict[str, str] = field(default_factory=dict[str, str])

    @property
    def kubeconfig(self) -> Path:
        """The admin's."""
        return self.kubeconfigs["admin"]

    def admit(self, name: str, user: User, token: str) -> None:
        """Write the kubeconfig of a user whose token kube-apiserver knows."""
        path = self.directory.parent / f"{name}.kubeconfig"
        write_kubeconfig(path, url=self.url, ca=self.ca, user=user.name, token=token)
        self.kubeconfigs[name], self.tokens[name] = path, token

    def kubelet_flags(self, port: int) -> tuple[str, ...]:
        """Return the flags with which a kubelet answers kube-apiserver, and no other client, at a port."""
        folder = self.directory / PKI / SERVER
        files = {"tls-cert-file": "tls.crt", "tls-private-key-file": "tls.key", "client-ca-file": "ca.crt"}
        return f"--port={port}", *(f"--{flag}={folder / name}" for flag, name in files.items())

    async def lead_to_loopback(self, client: Client, namespace: str, service: str) -> None:
        """Create a Service that names this machine. Its callers set the port."""
        metadata = {"name": service, "namespace": namespace}
        spec = {"type": "ExternalName", "externalName": "localhost"}
        body = {"apiVersion": "v1", "kind": "Service", "metadata": metadata, "spec": spec}
        await client.raw("POST", f"/api/v1/namespaces/{namespace}/services", body=body)

    async def admit_for_node(self, client: Client, name: str, user: User, node: str) -> None:
        """Write the kubeconfig of a service account on a node, with a token that is bound to the node as a pod's is.
        The node must be registered within START_SECONDS. Raises Unavailable."""
        deadline = time.monotonic() + START_SECONDS
        while True:
            try:
                uid = (await client.get(Node, node)).uid
                break
            except NotFound as error:
                if time.monotonic() > deadline:
                    raise Unavailable(f"{node} was not registered within {START_SECONDS:g} s") from error
                await asyncio.sleep(POLL_SECONDS)
        _, _, namespace, account = user.name.split(":")
        bound = {"apiVersion": "v1", "kind": "Node", "name": node, "uid": uid}
        body = {"spec": {"boundObjectRef": bound, "expirationSeconds": TOKEN_SECONDS}}
        path = f"/api/v1/namespaces/{namespace}/serviceaccounts/{account}/token"
        answer: Any = await client.raw("POST", path, body=body)
        self.admit(name, user, str(answer["status"]["token"]))


@contextlib.asynccontextmanager
async def control_plane(
    programs: Path,
    state_dir: Path,
    users: Mapping[str, User],
    ports: Ports,
    *,
    port: int = 0,
    scheduler_config: Callable[[str], dict[str, Any]],
    pid_dir: Path,
) -> AsyncGenerator[ControlPlane, None]:
    """Start the programs, wait until they answer, and end them when the context is left.

    `users` get a kubeconfig each, except users whose tokens name a node (`admit_for_node`). `port` is kube-apiserver's;
    0 is any free one. `scheduler_config` returns kube-scheduler's configuration for the path of its kubeconfig. Raises
    InvalidInput, Unavailable.
    """
    check(programs)
    directory = state_dir / "kubernetes"
    (directory / PKI).mkdir(mode=0o700, parents=True)
    directory.chmod(0o700)
    fleet = Fleet(pid_dir)
    url, ca = f"https://127.0.0.1:{port or ports.take()}", _certificates(directory / PKI)
    plane = ControlPlane(url, directory, fleet, ca)
    static = {"admin": ADMIN, **USERS, **{name: user for name, user in users.items() if not _node(user)}}
    for name, user in static.items():
        plane.admit(name, user, secrets.token_urlsafe(32))
    lines = [f'{plane.tokens[name]},{user.name},{name},"{",".join(user.groups)}"' for name, user in static.items()]
    write_atomically(directory / "tokens.csv", "\n".join(lines).encode(), mode=0o600)
    configuration = scheduler_config(str(plane.kubeconfigs["scheduler"]))
    write_atomically(directory / "scheduler.yaml", yaml.safe_dump(configuration).encode(), mode=0o600)
    specs = {one.name: one for one in _specs(programs, plane, ports)}
    try:
        await fleet.start([specs["etcd"], specs["kube-apiserver"]])
        await _until_answered(plane, "kube-apiserver", "/readyz")
        await fleet.start([specs["kube-controller-manager"], specs["kube-scheduler"]])
        # A namespace admits no pod before its service account exists.
        await _until_answered(plane, "kube-controller-manager", "/api/v1/namespaces/default/serviceaccounts/default")
        yield plane
    finally:
        await fleet.stop()


def _node(user: User) -> str:
    """Return the node that a user's token is for; empty for none."""
    return dict(user.extra).get(NODE_NAME, "")


def _certificates(pki: Path) -> bytes:
    """Write the certificates by folder, each of a server and its one client: kube-apiserver is the client of etcd and
    of the kubelets. Return kube-apiserver's authority."""
    now = datetime.now(UTC)
    hosts = ["127.0.0.1", "localhost", "kubernetes.default.svc"]
    etcd, server = (issue(hosts, now=now, client="kube-apiserver") for _ in range(2))
    store(pki / ETCD, etcd)
    store(pki / SERVER, server)
    key = ec.generate_private_key(ec.SECP256R1())
    # kube-apiserver reads the public half only from this form.
    form = serialization.PrivateFormat.TraditionalOpenSSL
    private = key.private_bytes(serialization.Encoding.PEM, form, serialization.NoEncryption())
    write_atomically(pki / ACCOUNTS_KEY, private, mode=0o600)
    return server.ca_bundle


def _specs(programs: Path, plane: ControlPlane, ports: Ports) -> list[ChildSpec]:
    directory, pki = plane.directory, plane.directory / PKI
    etcd, server, accounts = pki / ETCD, pki / SERVER, pki / ACCOUNTS_KEY
    client, peer = (f"https://127.0.0.1:{ports.take()}" for _ in range(2))

    def spec(name: str, flags: Mapping[str, object]) -> ChildSpec:
        given = (f"--{flag}={value}" for flag, value in flags.items())
        log_file = directory.parent / "logs" / f"{name}.log"
        return ChildSpec(name, (str(programs / name), *given), log_file, careless=True)  # All its data is removed now.

    def quiet() -> dict[str, object]:
        return {"bind-address": "127.0.0.1", "secure-port": ports.take()}

    authority, certificate, key = (etcd / name for name in ("ca.crt", "tls.crt", "tls.key"))
    return [
        spec("etcd", {
            "data-dir": directory / "etcd", "log-level": "warn", "unsafe-no-fsync": "true",
            "listen-client-urls": client, "advertise-client-urls": client,
            "listen-peer-urls": peer, "initial-advertise-peer-urls": peer, "initial-cluster": f"default={peer}",
            "client-cert-auth": "true", "trusted-ca-file": authority, "cert-file": certificate, "key-file": key,
            "peer-client-cert-auth": "true", "peer-trusted-ca-file": authority,
            "peer-cert-file": certificate, "peer-key-file": key,
        }),
        spec("kube-apiserver", {
            "bind-address": "127.0.0.1", "secure-port": plane.url.rpartition(":")[2],
            "etcd-servers": client, "etcd-cafile": authority,
            "etcd-certfile": etcd / "client.crt", "etcd-keyfile": etcd / "client.key",
            "tls-cert-file": server / "tls.crt", "tls-private-key-file": server / "tls.key",
            "token-auth-file": directory / "tokens.csv", "anonymous-auth": "false",
            "service-account-issuer": "https://kubernetes.default.svc",
            "service-account-key-file": accounts, "service-account-signing-key-file": accounts,
            "kubelet-certificate-authority": server / "ca.crt", "kubelet-preferred-address-types": "InternalIP",
            "kubelet-client-certificate": server / "client.crt", "kubelet-client-key": server / "client.key",
            "authorization-mode": "Node,RBAC", "enable-admission-plugins": "NodeRestriction",
            "allow-privileged": "true",  # as every installer of clusters sets it
            # Loopback addresses are invalid in Endpoints, and the Service `kubernetes` has no clients here.
            "endpoint-reconciler-type": "none", "service-cluster-ip-range": "10.96.0.0/16",
        }),
        spec("kube-controller-manager", {
            **quiet(), "kubeconfig": plane.kubeconfigs["controllers"], "leader-elect": "false",
            "use-service-account-credentials": "true", "root-ca-file": server / "ca.crt",
            "service-account-private-key-file": accounts,
        }),
        spec("kube-scheduler", {**quiet(), "config": directory / "scheduler.yaml"}),
    ]  # fmt: skip


async def _until_answered(plane: ControlPlane, program: str, path: str) -> None:
    """Wait until a GET of the admin's succeeds that needs this program. Raises Unavailable with the end of its log."""
    deadline = time.monotonic() + START_SECONDS
    async with Client.from_kubeconfig(plane.kubeconfig) as client:
        while True:
            with contextlib.suppress(ElasticGPUError):
                await client.text(path)
                return
            plane.fleet.check_steady()
            if time.monotonic() > deadline:
                tail = plane.fleet.log_tail(program)
                raise Unavailable(f"{program} was not ready within {START_SECONDS:g} s; its log ends:\n{tail}")
            await asyncio.sleep(POLL_SECONDS)
