"""The allocation of a container, as its pod carries it."""

from egpu.api.allocation import CardShare, ContainerAllocation, ContainerDemand
from egpu.api.mig import InstancePlace
from egpu.core.placement import instances
from egpu.core.placement.ledger import Ledger
from egpu.core.provisioners import provisioner
from egpu.core.provisioners.parking import resident_mib


def container_allocation(
    demand: ContainerDemand, ledger: Ledger, node: str, columns: tuple[int, ...], instance: InstancePlace | None = None
) -> ContainerAllocation:
    """Return the allocation of a container on these columns of a node's cards, and in a MIG `instance`."""
    row = ledger.row(node)
    assert row is not None
    needs = ledger.whole_needs(demand, row)
    cards = ledger.cards(node)
    shares = {column: (int(needs.core[column]), int(needs.memory_mib[column])) for column in sorted(columns)}
    if instance is not None:
        shares = {column: instances.amounts(ledger, row, column, instance) for column in shares}
    return ContainerAllocation(
        provisioner=provisioner(demand.provisioner).name,
        mode="exclusive" if demand.exclusive else "shared",
        class_name=demand.class_name,
        claim=demand.claim,
        shared_claim=demand.shared_claim,
        core_limit=demand.core_limit,
        max_core_limits=demand.max_core_limits,
        latency=demand.latency,
        memory_limit_percent=demand.memory_limit_percent,
        alike=demand.alike,
        memory_isolation=demand.memory_isolation,
        vocabulary=demand.vocabulary,
        parkable=demand.parkable,
        park_idle_seconds=demand.park_idle_seconds,
        park_stays=demand.park_stays,
        park_patience_seconds=demand.park_patience_seconds,
        cards=tuple(
            CardShare(
                uuid=cards[column].uuid,
                index=cards[column].index,
                minor=cards[column].minor,
                core=core,
                memory_mib=memory_mib,
                resident_mib=resident_mib(demand, memory_mib),
                model=cards[column].model,
                card_memory_mib=cards[column].memory_mib,
                instance=instance,
            )
            for column, (core, memory_mib) in shares.items()
        ),
    )
