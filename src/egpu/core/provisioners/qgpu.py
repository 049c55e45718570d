"""qGPU: the program has no GPU at all. A process of ours beside it has the card and does what the program asks, within
the slice, over shared memory."""

from egpu.api import names
from egpu.core.provisioners.base import Provisioner


class QGPU(Provisioner):
    name = names.QGPU
    aliases = ("qgpu.provisioner.elasticgpu.io",)
    isolation = "executor"
