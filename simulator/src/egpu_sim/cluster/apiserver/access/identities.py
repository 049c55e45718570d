"""Authentication: from bearer tokens to users. `authorization` decides about their rights.

The server listens on loopback and speaks TLS with a CA of its own. Tokens and CA are in kubeconfig files that only
their owner can read.
"""

import base64
import hashlib
import secrets
from pathlib import Path

import yaml

from egpu_base.system.files import write_atomically
from egpu_sim.cluster.apiserver.calls import User

ADMIN = User("kubernetes-admin", ("system:masters", "system:authenticated"))


def node_user(name: str) -> User:
    return User(f"system:node:{name}", ("system:nodes", "system:authenticated"))


NODE_NAME = "authentication.kubernetes.io/node-name"
"""The key of the node in the extra values of a service account whose token was made for a pod (Kubernetes 1.30 and
later)."""


def service_account(namespace: str, name: str, *, node: str = "") -> User:
    """Return the user of a service account. `node`: the node of the pod that the token was made for."""
    groups = ("system:serviceaccounts", f"system:serviceaccounts:{namespace}", "system:authenticated")
    return User(f"system:serviceaccount:{namespace}:{name}", groups, ((NODE_NAME, node),) if node else ())


class Tokens:
    """Bearer tokens, stored as digests (timing a look-up by digest reveals nothing about a token)."""

    def __init__(self) -> None:
        self._users: dict[bytes, User] = {}

    def issue(self, user: User) -> str:
        token = secrets.token_urlsafe(32)
        self._users[_digest(token)] = user
        return token

    def user(self, authorization: str) -> User | None:
        """Return the user of an `Authorization` header; None for an unknown one."""
        scheme, _, token = authorization.partition(" ")
        return self.of(token.strip()) if scheme.lower() == "bearer" else None

    def of(self, token: str) -> User | None:
        """Return the user of a token; None for an unknown one."""
        return self._users.get(_digest(token))


def _digest(token: str) -> bytes:
    return hashlib.sha256(token.encode()).digest()


def write_kubeconfig(path: Path, *, url: str, ca: bytes, user: str, token: str, namespace: str = "default") -> None:
    """Write a kubeconfig with one context, readable only by its owner."""
    cluster = {"server": url, "certificate-authority-data": base64.b64encode(ca).decode()}
    config = {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": "egpu", "cluster": cluster}],
        "users": [{"name": user, "user": {"token": token}}],
        "contexts": [{"name": "egpu", "context": {"cluster": "egpu", "user": user, "namespace": namespace}}],
        "current-context": "egpu",
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(path, yaml.safe_dump(config, sort_keys=False).encode(), mode=0o600)
