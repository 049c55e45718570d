"""Makes the pods of owners. After a refusal (a quota, a policy, a webhook) it waits, longer each time.

An owner's events and status wake its controller again. So the wait belongs to the owner, not to the wake-up: until it
is over, or the owner's specification changes, nothing is asked of the API server.
"""

import asyncio
import re
import time
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from egpu_base.api.kubernetes import Pod
from egpu_base.errors import Conflict, ElasticGPUError
from egpu_base.kubernetes import Client
from egpu_base.kubernetes.events import EventRecorder
from egpu_base.kubernetes.paths import path_of
from egpu_sim.cluster.controllers.kinds import Workload
from egpu_sim.cluster.trees import as_object

MOST_AT_ONCE: Final = 50
"""Pods made or ended in one look at an owner."""
FIRST_SECONDS: Final = 1.0
MOST_SECONDS: Final = 30.0
"""Limits of the wait, which doubles. Kubernetes' begins at 5 ms and ends at 1,000 s."""
MAX_REMEMBERED: Final = 4096
"""Owners whose pods are refused. The oldest one is forgotten, and then tries too early."""
_PREFIX_CHARACTERS: Final = 58
"""Length of a generated name without its random end."""


@dataclass(frozen=True, kw_only=True)
class Wanted:
    """A pod to make from its owner's template. `spec` replaces fields of the template's."""

    name: str = ""
    """Empty for a generated name."""
    labels: Mapping[str, str] | None = None
    annotations: Mapping[str, str] | None = None
    spec: Mapping[str, Any] | None = None


@dataclass(frozen=True)
class Refusal:
    """`reason` is equal for equal refusals: no random names. `wait_seconds`: until the next try."""

    reason: str
    wait_seconds: float


@dataclass(frozen=True)
class _Wait:
    reason: str
    count: int
    until: float
    generation: int | None


class Maker:
    def __init__(self, client: Client, events: EventRecorder) -> None:
        self._client = client
        self._events = events
        self._waits: OrderedDict[str, _Wait] = OrderedDict()

    async def make(self, owner: Workload, wanted: Sequence[Wanted]) -> Refusal | None:
        """Make pods, at most MOST_AT_ONCE: one, then twice as many each time, until one is refused. Return the refusal,
        also where an earlier one forbids a try now.

        Raises Conflict (also AlreadyExists).
        """
        if not wanted:
            return None
        held = self._waits.get(owner.uid)
        if held is not None and held.generation != owner.metadata.generation:
            held = None
        if held is not None and (left := held.until - time.monotonic()) > 0:
            return Refusal(held.reason, left)
        error = await self._try(owner, wanted[:MOST_AT_ONCE])
        if error is None:
            self._waits.pop(owner.uid, None)
            return None
        return await self._wait(owner, _without_random_name(str(error), owner), held)

    async def _try(self, owner: Workload, wanted: Sequence[Wanted]) -> ElasticGPUError | None:
        """Return the first refusal."""
        made, at_once = 0, 1
        while made < len(wanted):
            batch = wanted[made : made + at_once]
            results = await asyncio.gather(*(self._make(owner, one) for one in batch), return_exceptions=True)
            failures = [each for each in results if each is not None]
            for failure in failures:
                if not isinstance(failure, ElasticGPUError) or isinstance(failure, Conflict):
                    raise failure
            if failures:
                return next(each for each in failures if isinstance(each, ElasticGPUError))
            made, at_once = made + len(batch), 2 * at_once
        return None

    async def _wait(self, owner: Workload, reason: str, before: _Wait | None) -> Refusal:
        count = 0 if before is None else before.count + 1
        seconds = min(FIRST_SECONDS * 2 ** min(count, 16), MOST_SECONDS)
        self._waits[owner.uid] = _Wait(reason, count, time.monotonic() + seconds, owner.metadata.generation)
        self._waits.move_to_end(owner.uid)
        while len(self._waits) > MAX_REMEMBERED:
            self._waits.popitem(last=False)
        await self._events.warn_each_time(owner, "FailedCreate", f"Error creating: {reason}")
        return Refusal(reason, seconds)

    async def _make(self, owner: Workload, wanted: Wanted) -> None:
        template = owner.template
        meta: dict[str, Any] = dict(as_object(template.get("metadata")))
        meta |= {"name": wanted.name} if wanted.name else {"generateName": f"{owner.name}-"}
        meta["labels"] = {**as_object(meta.get("labels")), **(wanted.labels or {})}
        if wanted.annotations:
            meta["annotations"] = {**as_object(meta.get("annotations")), **wanted.annotations}
        meta["ownerReferences"] = [owner.owner_reference()]
        body = {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": meta,
            "spec": {**as_object(template.get("spec")), **(wanted.spec or {})},
        }
        await self._client.raw("POST", path_of(Pod, owner.namespace), body=body)


def _without_random_name(text: str, owner: Workload) -> str:
    """Return the text with `*` in the place of the random end of a generated name."""
    prefix = f"{owner.name}-"[:_PREFIX_CHARACTERS]
    return re.sub(rf"\b{re.escape(prefix)}[a-z0-9]{{5}}(?![a-z0-9-])", f"{prefix}*", text)
