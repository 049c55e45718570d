"""Whole cards, exclusive, as in NVIDIA's own device plugin."""

from egpu.api import names
from egpu.api.allocation import ContainerDemand
from egpu.core.provisioners.base import Provisioner


class Physical(Provisioner):
    name = names.PHYSICAL
    aliases = ("physical.provisioner.elasticgpu.io",)
    shareable = True
    resizable = False

    def problem(self, demand: ContainerDemand) -> str | None:
        if demand.exclusive:
            return None
        return f"{self.name} provides whole cards only; ask for {names.GPU}, or for a class that shares cards"
