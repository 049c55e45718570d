"""Who asks, and what he may: the API server's answers (TokenReview, SubjectAccessReview), remembered for a while."""

import asyncio
import hashlib
import time
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from egpu.adapters.kubernetes.client import Client
from egpu.errors import Unavailable

REMEMBER_SECONDS = 30.0
"""How long an answer counts: so long a right may outlive the role that gave it."""
MAX_ASKING = 4
"""Questions to the API server at once; made-up tokens must not keep it busy."""
MAX_WAITING = 64
MAX_TOKEN_CHARACTERS = 16 * 1024

A = TypeVar("A")


def bearer_token(authorization: str) -> str | None:
    """The token of an `Authorization` header; None where there is none that could be one."""
    scheme, _, token = authorization.partition(" ")
    token = token.strip()
    return token if scheme.lower() == "bearer" and 0 < len(token) <= MAX_TOKEN_CHARACTERS else None


@dataclass(frozen=True)
class Asker:
    """Somebody as the API server knows him."""

    name: str
    groups: Sequence[str] = ()
    uid: str = ""
    extra: Mapping[str, Sequence[str]] | None = None

    @property
    def spec(self) -> dict[str, Any]:
        """The fields of a SubjectAccessReview that say who he is."""
        return {"user": self.name, "groups": list(self.groups), "uid": self.uid, "extra": dict(self.extra or {})}


class Reviews:
    """Asks. Bounded in what it asks at once; `Remembered` bounds what is asked again."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self._asking = asyncio.Semaphore(MAX_ASKING)
        self._waiting = 0

    async def asker(self, token: str) -> Asker | None:
        """Whose bearer token it is; None where it is nobody's. Raises Unavailable, or what the API server answers."""
        said = await self._review("authentication.k8s.io/v1", "TokenReview", {"token": token})
        if said.get("authenticated") is not True:
            return None
        user: dict[str, Any] = said["user"]
        return Asker(user.get("username", ""), user.get("groups") or [], user.get("uid", ""), user.get("extra"))

    async def may(self, asker: Asker, **attributes: Mapping[str, str]) -> bool:
        """Whether a role lets him: `resourceAttributes` or `nonResourceAttributes`. Raises likewise."""
        said = await self._review("authorization.k8s.io/v1", "SubjectAccessReview", {**asker.spec, **attributes})
        return said.get("allowed") is True

    async def _review(self, version: str, kind: str, spec: Mapping[str, Any]) -> dict[str, Any]:
        if self._waiting >= MAX_WAITING:
            raise Unavailable("too many are asking at once; try again")
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
    """Answers by key, for REMEMBER_SECONDS; the oldest go first when there are more than `at_most`."""

    def __init__(self, at_most: int) -> None:
        self._at_most = at_most
        self._known: OrderedDict[bytes, tuple[float, A]] = OrderedDict()

    async def get(self, key: str, ask: Callable[[], Awaitable[A]]) -> A:
        """The answer that is known, or else that of `ask`. Keys, in which tokens are, are kept as digests."""
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
