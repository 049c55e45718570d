"""The pool: as qGPU, but the process that has the card may be on another node; the pod's own node need have none."""

from egpu.api import names, vocabularies
from egpu.core.provisioners.base import NodeTotals
from egpu.core.provisioners.qgpu import QGPU


class Pool(QGPU):
    name = names.POOL
    aliases = ("pool.provisioner.elasticgpu.io",)
    anywhere = True
    shareable = False  # each pod has an executor of its own, wherever its cards are
    claim_vocabulary = vocabularies.POOL

    def capacity(self, node: NodeTotals) -> dict[str, int]:
        """More than the node's containers can ask for, because only the scheduler extender, which sees all cards, can
        say how much there is. What a quota counts is as plentiful there: it counts cards of other nodes too."""
        most = node.pool_slots * names.MAX_CARDS_PER_CONTAINER
        if not most:
            return {}
        core, memory = 100 * most, names.MAX_MEMORY_MIB * most
        own = {names.GPU_CORE: core + 100 * node.cards, names.GPU_MEMORY: memory + node.memory_mib}
        return {names.POOL_CORE: core, names.POOL_MEMORY: memory, **own}
