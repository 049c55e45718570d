"""Who speaks to the server: bearer tokens to users. What they may do is `authorization`'s to say.

The server listens on loopback and speaks TLS with a CA of its own; tokens and CA live in kubeconfig files that only
their owner can read.
"""

import base64
import hashlib
import secrets
from pathlib import Path

import yaml

from egpu.adapters.files import write_atomically
from egpu.embedded.apiserver.calls import User

ADMIN = User("kubernetes-admin", ("system:masters", "system:authenticated"))


def node_user(name: str) -> User:
    return User(f"system:node:{name}", ("system:nodes", "system:authenticated"))


NODE_NAME = "authentication.kubernetes.io/node-name"
"""Key of the node in what is known of a service account whose token was made for a pod (Kubernetes 1.30 and later)."""


def service_account(namespace: str, name: str, *, node: str = "") -> User:
    """`node`: where the pod runs that the token was made for."""
    groups = ("system:serviceaccounts", f"system:serviceaccounts:{namespace}", "system:authenticated")
    return User(f"system:serviceaccount:{namespace}:{name}", groups, ((NODE_NAME, node),) if node else ())


class Tokens:
    """Bearer tokens, kept as digests (a look-up by digest tells nothing about how much of a token was right)."""

    def __init__(self) -> None:
        self._users: dict[bytes, User] = {}

    def issue(self, user: User) -> str:
        """A new token of a user."""
        token = secrets.token_urlsafe(32)
        self._users[_digest(token)] = user
        return token

    def user(self, authorization: str) -> User | None:
        """The user of an `Authorization` header; None when it names none of ours."""
        scheme, _, token = authorization.partition(" ")
        return self.of(token.strip()) if scheme.lower() == "bearer" else None

    def of(self, token: str) -> User | None:
        """The user of a token; None when it is none of ours."""
        return self._users.get(_digest(token))


def _digest(token: str) -> bytes:
    return hashlib.sha256(token.encode()).digest()


def write_kubeconfig(path: Path, *, url: str, ca: bytes, user: str, token: str, namespace: str = "default") -> None:
    """Write a kubeconfig with one context, readable by its owner alone."""
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
