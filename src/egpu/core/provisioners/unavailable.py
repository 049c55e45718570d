"""Technologies known by name that are not built yet: their objects are accepted; pods wait, and are told why."""

from egpu.api import names
from egpu.core.provisioners.base import Provisioner


class VGPU(Provisioner):
    name = names.VGPU
    aliases = ("vgpu.provisioner.elasticgpu.io",)
    available = False
    isolation = "profile"
