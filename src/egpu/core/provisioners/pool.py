"""The pool: as qGPU, but the process with the card may be on another node. The pod's own node needs no card."""

from egpu.api import names, vocabularies
from egpu.core.provisioners.base import NodeTotals
from egpu.core.provisioners.qgpu import QGPU


class Pool(QGPU):
    name = names.POOL
    aliases = ("pool.provisioner.elasticgpu.io",)
    anywhere = True
    parks = False  # only the node with the cards knows its memory for parked slices
    shareable = False  # each pod has its own executor, wherever its cards are
    claim_vocabulary = vocabularies.POOL

    def capacity(self, node: NodeTotals) -> dict[str, int]:
        """Publish more than the node's containers can ask for: only the scheduler extender, which sees all cards, knows
        how much there is. The amounts for quotas grow as well, as pods may use cards of other nodes."""
        most = node.pool_slots * names.MAX_CARDS_PER_CONTAINER
        if not most:
            return {}
        core, memory = 100 * most, names.MAX_MEMORY_MIB * most
        own = {names.GPU_CORE: core + 100 * node.cards, names.GPU_MEMORY: memory + node.memory_mib}
        return {names.POOL_CORE: core, names.POOL_MEMORY: memory, **own}
