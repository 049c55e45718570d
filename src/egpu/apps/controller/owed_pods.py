"""The record of pods that are about to be deleted and made again, in one Secret of the installation's namespace.

A pod is in it from before its deletion until its successor is made, so a controller that takes over finishes the work.
It is a Secret because specs of pods may have passwords in variables. A pod has one key, its UID, so controllers
that write at the same time do not disturb each other."""

import base64
import binascii
import gzip
import zlib
from collections.abc import Sequence
from typing import Any, Final

import msgspec
import structlog

from egpu.apps.controller.webhooks import MANAGED
from egpu_base.api.kubernetes import Secret
from egpu_base.api.objects import ObjectMeta
from egpu_base.errors import AlreadyExists, Conflict, NotFound, Refused
from egpu_base.kubernetes import Client

RECORD: Final = "elastic-gpu-remade-pods"
"""The name of the Secret."""
MOST_BYTES: Final = 64 * 1024
"""The size of a pod in the record. A Secret has 1 MiB for the pods of all namespaces."""

log = structlog.get_logger(__name__)


class OwedPod(msgspec.Struct, frozen=True, kw_only=True):
    """A pod to make in the place of the one with this UID. `because`: the text of the successor's event."""

    uid: str
    namespace: str
    name: str
    because: str
    body: dict[str, Any]

    @property
    def key(self) -> tuple[str, str]:
        return self.namespace, self.name


class OwedPods:
    """Reads and writes the record."""

    def __init__(self, client: Client, namespace: str) -> None:
        self._client = client
        self._namespace = namespace

    async def all(self) -> Sequence[OwedPod]:
        """Return the pods that are owed. An unreadable one is logged and left out."""
        secret = await self._client.find(Secret, RECORD, namespace=self._namespace)
        found: list[OwedPod] = []
        for uid, text in ((secret.data if secret is not None else None) or {}).items():
            try:
                found.append(msgspec.json.decode(gzip.decompress(base64.b64decode(text)), type=OwedPod))
            except (binascii.Error, EOFError, OSError, zlib.error, RecursionError, msgspec.MsgspecError) as error:
                log.warning("record of a pod to make again is unreadable", secret=RECORD, uid=uid, reason=str(error))
        return found

    async def note(self, owed: OwedPod) -> None:
        """Write a pod down. Raises Refused if it is too large, and the API server's retryable errors."""
        text = base64.b64encode(gzip.compress(msgspec.json.encode(owed))).decode()
        if len(text) > MOST_BYTES:
            raise Refused(f"it has {len(text) // 1024} KiB, compressed; the most is {MOST_BYTES // 1024} KiB")
        data = {owed.uid: text}
        try:
            await self._client.patch(Secret, RECORD, {"data": data}, namespace=self._namespace)
        except NotFound:
            metadata = ObjectMeta(name=RECORD, namespace=self._namespace, labels=MANAGED)
            try:
                await self._client.create(Secret, Secret(metadata=metadata, type="Opaque", data=data))
            except AlreadyExists as error:
                raise Conflict(f"secret {RECORD}: it was created meanwhile") from error

    async def forget(self, uid: str) -> None:
        """Remove a pod that is made, or is not to be made any more."""
        try:
            await self._client.patch(Secret, RECORD, {"data": {uid: None}}, namespace=self._namespace)
        except NotFound:
            return  # somebody deleted the record
