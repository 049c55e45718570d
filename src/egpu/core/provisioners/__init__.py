"""The technologies that provide slices. Adding one is one module here, and its line in the registration below.

    base              what a technology answers, and the answers of one that does nothing special
    preparation       what a node agent sets up, as values
    oversubscription  how much more than its share a class lets programs allocate
    sharing           whether several pods may use one claim of a class
    isolation         whether the driver holds programs to their memory
    physical          whole cards
    gpushare          memory shared by agreement, and what Aliyun's tools read
    vcuda             a library in the process holds it to its slice
    qgpu              an executor beside the program has the card
    pool              the same, on any node
    vgpu              fixed parts of a card, held to as by vcuda
    mig               instances that the card itself keeps apart
    timeslice         replicas of a card, which the driver gives to programs in turn
    mps               parts of a card for programs that run at once, clients of one server

Not here: choosing cards (`egpu.core.placement.fit`), and doing anything on a node (`egpu.apps.agent.slots`).
"""

from typing import Final

from egpu.core.provisioners.base import CardTotals, Needs, NodeTotals, Profile, Provisioner
from egpu.core.provisioners.gpushare import GPUShare
from egpu.core.provisioners.mig import MIG
from egpu.core.provisioners.mps import MPS
from egpu.core.provisioners.physical import Physical
from egpu.core.provisioners.pool import Pool
from egpu.core.provisioners.qgpu import QGPU
from egpu.core.provisioners.timeslice import TimeSlice
from egpu.core.provisioners.vcuda import VCUDA
from egpu.core.provisioners.vgpu import VGPU
from egpu.errors import UnknownProvisioner

PROVISIONERS: Final[dict[str, Provisioner]] = {
    technology.name: technology
    for technology in (
        Physical(),
        GPUShare(),
        VCUDA(),
        QGPU(),
        VGPU(),
        Pool(),
        MIG(),
        TimeSlice(),
        MPS(),
    )
}
"""Every technology, by name."""


def provisioner(name: str) -> Provisioner:
    """The technology called `name`, by its name or an alias. Raises UnknownProvisioner listing the known ones."""
    found = PROVISIONERS.get(name) or next((one for one in PROVISIONERS.values() if name in one.aliases), None)
    if found is None:
        raise UnknownProvisioner(f"no provisioner is called {name!r}; known are {', '.join(PROVISIONERS)}")
    return found


__all__ = ["PROVISIONERS", "CardTotals", "Needs", "NodeTotals", "Profile", "Provisioner", "provisioner"]
