"""Makes the DeviceClass of each ElasticGPUClass, for claims of resource.k8s.io.

Kubernetes removes it with its class, the owner. A cluster without that API gets none, nor does a class that such claims
cannot use.
"""

from typing import Final

import structlog

from egpu.api.objects import ElasticGPUClass
from egpu.core.dra.classes import device_class
from egpu_base.api.devices import DeviceClass
from egpu_base.api.wire import replacing
from egpu_base.errors import InvalidDemand, NotFound, NotSupported, UnknownProvisioner
from egpu_base.kubernetes import Change, Client, Reflector
from egpu_base.kubernetes.events import EventRecorder
from egpu_base.runtime.reconcile import DONE, Loop, Result

CHECK_SECONDS: Final = 600.0
"""Until a DeviceClass that somebody deleted or changed is made anew, or the API is looked for again."""

log = structlog.get_logger(__name__)


class DeviceClasses:
    """One loop, over classes by name."""

    def __init__(self, client: Client, events: EventRecorder, *, classes: Reflector[ElasticGPUClass]) -> None:
        self._client = client
        self._events = events
        self._classes = classes
        self.loop: Loop[str] = Loop("device classes", self.reconcile, workers=1)
        classes.on_change(self._class)

    def _class(self, change: Change[ElasticGPUClass]) -> None:
        if change.new is not None:
            self.loop.queue.add(change.new.name)

    async def reconcile(self, name: str) -> Result:
        klass = self._classes.get(name)
        if klass is None or klass.metadata.deletion_timestamp:
            return DONE
        try:
            wanted = device_class(klass)
        except (InvalidDemand, NotSupported, UnknownProvisioner) as error:
            log.info("no DeviceClass", reason=str(error))
            return DONE
        try:
            await self._have(klass, wanted)
        except NotFound:
            log.info("no DeviceClass: this API server does not serve resource.k8s.io/v1", name=name)
        return Result(again_after_seconds=CHECK_SECONDS)

    async def _have(self, klass: ElasticGPUClass, wanted: DeviceClass) -> None:
        """Make the DeviceClass, or bring it up to date. Raises NotFound if the API server has no such kind."""
        found = await self._client.find(DeviceClass, wanted.name)
        if found is None:
            await self._client.create(DeviceClass, wanted)
            log.info("DeviceClass made", name=wanted.name)
        elif not any(owner.uid == klass.uid for owner in found.metadata.owner_references or ()):
            reason = f"DeviceClass {wanted.name} belongs to something else; claims of it do not follow this class"
            await self._events.warn(klass, "DeviceClassNotMade", reason)
        elif found.spec != wanted.spec:
            await self._client.patch(DeviceClass, wanted.name, {"spec": replacing(found.spec, wanted.spec)})
            log.info("DeviceClass changed", name=wanted.name)
