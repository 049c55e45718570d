"""Identity and rights of a caller: the API server's answers (TokenReview, SubjectAccessReview), cached for a while."""

import asyncio
import hashlib
import time
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from egpu_base.errors import Unavailable
from egpu_base.kubernetes.client import Client

REMEMBER_SECONDS = 30.0
"""The lifetime of an answer. A right may outlive its role for this long."""
MAX_ASKING = 4
"""The number of questions to the API server at once, so that made-up tokens do not keep it busy."""
MAX_WAITING = 64
MAX_TOKEN_CHARACTERS = 16 * 1024

A = TypeVar("A")


def bearer_token(authorization: str) -> str | None:
    """Return the token of an `Authorization` header, or None if it has no possible token."""
    scheme, _, token = authorization.partition(" ")
    token = token.strip()
    return token if scheme.lower() == "bearer" and 0 < len(token) <= MAX_TOKEN_CHARACTERS else None


@dataclass(frozen=True)
class Asker:
    """A caller as the API server knows it."""

    name: str
    groups: Sequence[str] = ()
    uid: str = ""
    extra: Mapping[str, Sequence[str]] | None = None

    @property
    def spec(self) -> dict[str, Any]:
        """Return the fields of a SubjectAccessReview that identify the caller."""
        return {"user": self.name, "groups": list(self.groups), "uid": self.uid, "extra": dict(self.extra or {})}


class Reviews:
    """Questions to the API server. It limits questions at once; `Remembered` limits repeated ones."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self._asking = asyncio.Semaphore(MAX_ASKING)
        self._waiting = 0

    async def asker(self, token: str) -> Asker | None:
        """Return the owner of a bearer token, or None. Raises Unavailable, or the API server's error."""
        said = await self._review("authentication.k8s.io/v1", "TokenReview", {"token": token})
        if said.get("authenticated") is not True:
            return None
        user: dict[str, Any] = said["user"]
        return Asker(user.get("username", ""), user.get("groups") or [], user.get("uid", ""), user.get("extra"))

    async def may(self, asker: Asker, **attributes: Mapping[str, str]) -> bool:
        """Return whether a role allows `resourceAttributes` or `nonResourceAttributes`. Raises as `asker`."""
        said = await self._review("authorization.k8s.io/v1", "SubjectAccessReview", {**asker.spec, **attributes})
        return said.get("allowed") is True

    async def _review(self, version: str, kind: str, spec: Mapping[str, Any]) -> dict[str, Any]:
        if self._waiting >= MAX_WAITING:
            raise Unavailable("too many authorization checks at once; try again")
        self._waiting += 1
        try:
            async with self._asking:
                body = {"apiVersion": version, "kind": kind, "spec": spec}
                answer = await self._client.raw("POST", f"/apis/{version}/{kind.lower()}s", body=body)
        finally:
            self._waiting -= 1
        status: dict[str, Any] = answer["status"]
        return status


class Remembered(Generic[A]):
    """Answers by key, for REMEMBER_SECONDS; beyond `at_most`, the oldest are dropped."""

    def __init__(self, at_most: int) -> None:
        self._at_most = at_most
        self._known: OrderedDict[bytes, tuple[float, A]] = OrderedDict()

    async def get(self, key: str, ask: Callable[[], Awaitable[A]]) -> A:
        """Return the cached answer, or else that of `ask`. Keys contain tokens, so only their digests are kept."""
        digest = hashlib.sha256(key.encode()).digest()
        found = self._known.get(digest)
        if found is not None and time.monotonic() - found[0] < REMEMBER_SECONDS:
            return found[1]
        answer = await ask()
        self._known[digest] = time.monotonic(), answer
        self._known.move_to_end(digest)
        while len(self._known) > self._at_most:
            self._known.popitem(last=False)
        return answer
