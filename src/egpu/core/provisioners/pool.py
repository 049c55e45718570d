"""The pool: as qGPU, but the process that has the card may be on another node; the pod's own node need have none."""

from egpu.api import names
from egpu.core.provisioners.base import Provisioner


class Pool(Provisioner):
    name = names.POOL
    aliases = ("pool.provisioner.elasticgpu.io",)
    isolation = "executor"
    anywhere = True
