"""qGPU: a process beside the program has the card and executes its calls, within the slice, over shared memory."""

from egpu.api import names
from egpu.api.allocation import ContainerAllocation
from egpu.core.provisioners.base import Provisioner
from egpu.core.provisioners.preparation import REMOTE_LIBRARIES, Preparation


class QGPU(Provisioner):
    name = names.QGPU
    aliases = ("qgpu.provisioner.elasticgpu.io",)
    bursts = True
    shareable = True
    parks = True

    def visible_devices(self, allocation: ContainerAllocation) -> str:
        return names.NO_DEVICES

    def _plan(self, allocation: ContainerAllocation, minors: tuple[int, ...]) -> Preparation:
        return Preparation(libraries=REMOTE_LIBRARIES, executor="here" if minors else "elsewhere")
