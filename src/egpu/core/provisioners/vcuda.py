"""vCUDA: a library inside the program's process counts memory and GPU time against the slice."""

from egpu.api import names
from egpu.api.allocation import ContainerAllocation
from egpu.core.provisioners.base import Provisioner
from egpu.core.provisioners.preparation import INTERPOSER, Preparation, device_limit
from egpu_base.api.quantities import MIB_BYTES


class VCUDA(Provisioner):
    name = names.VCUDA
    aliases = ("vcuda.provisioner.elasticgpu.io",)
    bursts = True
    shareable = True
    oversubscribes = True
    driver_limits = True
    parks = True

    def _plan(self, allocation: ContainerAllocation, minors: tuple[int, ...]) -> Preparation:
        if allocation.exclusive:
            return super()._plan(allocation, minors)  # no other programs to isolate from
        granted = zip(allocation.cards, minors, strict=True)
        resident = [share.resident_mib * MIB_BYTES for share in allocation.cards if share.resident_mib]
        return Preparation(
            minors,
            tuple(device_limit(*each, allocation) for each in granted),
            INTERPOSER,
            parkable=allocation.parkable,
            room_bytes=resident[0] if resident else None,
        )
