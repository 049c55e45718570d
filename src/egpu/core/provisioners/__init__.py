"""The technologies that provide slices. Adding one is one file here and its line in the registry below.

Not here: choosing cards (`egpu.core.placement.fit`), and doing anything on a node
(`egpu.core.provisioners.preparation` says what, the agent does it).
"""

from typing import Final

from egpu.core.provisioners.base import CardTotals, Isolation, Needs, Provisioner
from egpu.core.provisioners.gpushare import GPUShare
from egpu.core.provisioners.physical import Physical
from egpu.core.provisioners.pool import Pool
from egpu.core.provisioners.qgpu import QGPU
from egpu.core.provisioners.unavailable import VGPU
from egpu.core.provisioners.vcuda import VCUDA
from egpu.errors import UnknownProvisioner

PROVISIONERS: Final[tuple[Provisioner, ...]] = (Physical(), GPUShare(), VCUDA(), QGPU(), VGPU(), Pool())
_BY_NAME: Final = {name: entry for entry in PROVISIONERS for name in (entry.name, *entry.aliases)}


def provisioner(name: str) -> Provisioner:
    """The technology called `name`, by its name or an alias. Raises UnknownProvisioner listing the known ones."""
    try:
        return _BY_NAME[name]
    except KeyError:
        known = ", ".join(entry.name for entry in PROVISIONERS)
        raise UnknownProvisioner(f"no provisioner is called {name!r}; known are {known}") from None


__all__ = ["PROVISIONERS", "CardTotals", "Isolation", "Needs", "Provisioner", "provisioner"]
