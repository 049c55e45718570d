"""The technologies that provide slices. A new one is one module here, and its line in the registration below.

    base              the questions to a technology, and default answers
    preparation       what a node agent sets up, as values
    oversubscription  how much more than its share a class lets programs allocate
    parameters        class parameters that are true or false
    shareable         whether several pods may use one claim of a class
    parking           whether memory of idle programs may leave the card
    isolation         whether the driver limits programs to their memory
    physical          whole cards
    gpushare          memory shared by agreement, and annotations for Aliyun's tools
    vcuda             a library in the process limits it to its slice
    qgpu              an executor beside the program has the card
    pool              the same, on any node
    vgpu              fixed parts of a card, limited as by vcuda
    mig               instances that the card itself isolates
    timeslice         replicas of a card, which the driver gives to programs in turn
    mps               parts of a card for programs that run at once, clients of one server

Not here: choosing cards (`egpu.core.placement.fit`), and actions on a node (`egpu.apps.agent.slots`).
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
from egpu.core.spelling import did_you_mean
from egpu_base.errors import UnknownProvisioner

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
    """Return the technology with this name or alias. Raises UnknownProvisioner listing the known ones."""
    found = PROVISIONERS.get(name) or next((one for one in PROVISIONERS.values() if name in one.aliases), None)
    if found is None:
        meant = did_you_mean(name, PROVISIONERS)
        raise UnknownProvisioner(f"provisioner {name!r} does not exist{meant}; choose one of {', '.join(PROVISIONERS)}")
    return found


__all__ = ["PROVISIONERS", "CardTotals", "Needs", "NodeTotals", "Profile", "Provisioner", "provisioner"]
