"""vCUDA: a library inside the program's process counts memory and GPU time against the slice."""

from egpu.api import names
from egpu.core.provisioners.base import Provisioner


class VCUDA(Provisioner):
    name = names.VCUDA
    aliases = ("vcuda.provisioner.elasticgpu.io",)
    isolation = "interposer"
    oversubscribes = True
