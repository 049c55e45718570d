"""Aliyun's gpushare: memory is the unit of scheduling, and the program is told its share and trusted to keep to it."""

from egpu.api import names
from egpu.core.provisioners.base import Provisioner


class GPUShare(Provisioner):
    name = names.GPUSHARE
    aliases = ("gpushare.provisioner.elasticgpu.io",)
    isolation = "environment"
