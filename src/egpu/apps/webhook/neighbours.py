"""Reads the object of a pod's group: a PodGroup, a LeaderWorkerSet, a training job.

Clusters have some of these kinds, or none. A kind that is not installed is no error: then its groups are no gangs."""

import asyncio
from collections.abc import Mapping
from typing import Any, Final, NamedTuple

from egpu.core.neighbours.reading import Asked, gang_annotations, missing, to_read, too_large, unreadable
from egpu_base.api.kubernetes import Pod
from egpu_base.api.objects import is_object_name
from egpu_base.errors import NotAllowed, NotFound
from egpu_base.kubernetes import Client
from egpu_base.kubernetes.exchanges import LongAnswer

MOST_BYTES: Final = 512 * 1024
"""Of an object. A job with all its templates seldom has a tenth; an API server takes 3 MiB, and values take 25 times
as much memory."""
READS: Final = 4
"""Objects that are read at the same time."""

_NO_GANG: Final[Mapping[str, str]] = {}


class Joined(NamedTuple):
    """The annotations of the pod's gang, and a warning for its author; both empty for a pod of no gang."""

    annotations: Mapping[str, str] = _NO_GANG
    warning: str = ""


class Neighbours:
    """Reads groups through `client`."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self._reads = asyncio.Semaphore(READS)

    async def join(self, pod: Pod, namespace: str) -> Joined:
        """Return the gang that the pod's group makes.

        Raises InvalidDemand for a pod whose group must be a gang and cannot be, and the API server's errors."""
        asked = to_read(pod)
        if asked is None:
            return Joined()
        try:
            async with self._reads:
                body = await self._object(asked, namespace)
        except LongAnswer:
            return Joined(warning=too_large(asked, MOST_BYTES // 1024))
        except NotAllowed as error:
            return Joined(warning=unreadable(asked, f"the webhook has no right to read it ({error})"))
        except _NotServed:
            plural = f"{asked.group.neighbour.plural}.{asked.group.neighbour.group}"
            return Joined(warning=unreadable(asked, f"this cluster does not serve {plural}"))
        if body is not None:
            return Joined(gang_annotations(asked, body, pod))
        if (refusal := missing(asked)) is not None:
            raise refusal
        return Joined()

    async def _object(self, asked: Asked, namespace: str) -> Mapping[str, Any] | None:
        """Return the object; None if it does not exist. Raises _NotServed if the cluster has no such kind."""
        name = asked.group.named.object
        if not is_object_name(name):
            return None
        for resource in asked.group.neighbour.resources():
            path = f"/apis/{resource.api_version}/namespaces/{namespace}/{resource.plural}/{name}"
            try:
                return await self._client.raw("GET", path, most=MOST_BYTES)
            except NotFound as error:
                if f'"{name}" not found' in str(error):
                    return None
        raise _NotServed


class _NotServed(Exception):
    pass
