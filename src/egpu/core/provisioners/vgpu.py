"""vGPU (MIG, MPS, time slicing): known by name. Its objects are accepted; pods wait, and are told why."""

from egpu.api import names
from egpu.core.provisioners.base import Provisioner


class VGPU(Provisioner):
    name = names.VGPU
    aliases = ("vgpu.provisioner.elasticgpu.io",)
    missing = "is known by name but not available yet"
