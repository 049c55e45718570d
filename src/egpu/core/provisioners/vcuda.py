"""vCUDA: a library inside the program's process counts memory and GPU time against the slice."""

from egpu.api import names
from egpu.api.allocation import ContainerAllocation
from egpu.core.provisioners.base import Provisioner
from egpu.core.provisioners.preparation import INTERPOSER, Preparation, policy_page


class VCUDA(Provisioner):
    name = names.VCUDA
    aliases = ("vcuda.provisioner.elasticgpu.io",)
    oversubscribes = True

    def _plan(self, allocation: ContainerAllocation, minors: tuple[int, ...]) -> Preparation:
        if allocation.exclusive:
            return super()._plan(allocation, minors)  # there is nobody to be kept apart from
        return Preparation(minors, policy_page(allocation, minors), INTERPOSER)
