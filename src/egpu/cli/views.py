"""Tables of a snapshot: nodes, cards, claims, pods. Each row also has a record with plain values, for scripts."""

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime

from egpu.api import names
from egpu.api.allocation import CardShare, ContainerAllocation, PodAllocation, decode_allocation
from egpu.api.objects import ElasticGPUClaim
from egpu.cli.output import Cell, Table, gauge
from egpu.cli.snapshot import Snapshot
from egpu.core.host_quotas import host_memory_mib
from egpu.core.links import rank
from egpu.core.node_condition import not_offering
from egpu.core.placement.card_usage import FREE, mode_name
from egpu.core.placement.cards import Card
from egpu.core.placement.ledger import Holder
from egpu.core.placement.node_filters import is_ready
from egpu.core.view import SliceKey, SliceUsage
from egpu_base.api.devices import ResourceClaim
from egpu_base.api.kubernetes import Node, Pod
from egpu_base.api.quantities import MIB_BYTES, format_mib
from egpu_base.api.wire import seconds_since
from egpu_base.errors import CorruptData

NONE = "-"
_COMMON = re.compile(r"\b(NVIDIA|Tesla) |[- ](SXM\d*|PCIe|HBM\d*e?)\b")


def gpus(snapshot: Snapshot) -> Table:
    """Return one row per card, with its allocations and their holders."""
    table = Table(
        ("node", "card", "model", "mode", "compute", "memory", "held by", "state", "uuid", "numa", "links", "mps"),
        title="Cards",
        wide=frozenset({"uuid", "numa", "links", "mps"}),
        spare=("model", "mode"),
    )
    ledger = snapshot.cache.ledger
    holders = _holder_names(snapshot)
    for node in sorted(ledger.nodes()):
        row = ledger.row(node)
        for column, card in enumerate(ledger.cards(node)):
            core = 100 - int(ledger.core_free[row, column])
            memory = card.memory_mib - int(ledger.memory_free[row, column])
            mode = mode_name(int(ledger.mode[row, column])) if ledger.mode[row, column] != FREE else ""
            held_by = sorted(holders.get(holder, holder.id) for holder in ledger.card_holders(node, card.uuid))
            state = "healthy" if card.healthy or card.by_claims else card.kept_off or "unhealthy"
            table.add(
                (
                    node,
                    str(card.index),
                    _model(card.model),
                    _short(mode) or "free",
                    gauge(core, 100, f"{core:3d} %"),
                    gauge(memory, card.memory_mib, f"{memory} of {card.memory_mib} MiB"),
                    ", ".join(held_by) or NONE,
                    state,
                    card.uuid,
                    NONE if card.numa < 0 else str(card.numa),
                    _links(card, ledger.cards(node)),
                    card.mps or NONE,
                ),
                {
                    "node": node,
                    "index": card.index,
                    "minor": card.minor,
                    "uuid": card.uuid,
                    "model": card.model,
                    "mode": mode or "free",
                    "corePercentGiven": core,
                    "memoryMiB": card.memory_mib,
                    "memoryMiBGiven": memory,
                    "heldBy": held_by,
                    "healthy": card.works,
                    "cordoned": card.cordoned,
                    "byResourceClaims": card.by_claims,
                    "contested": card.contested,
                    "numa": card.numa,
                    "links": dict(card.links),
                    "mps": card.mps,
                },
            )
    return table


def _links(card: Card, cards: Sequence[Card]) -> str:
    """Return a card's links to the others of its node, such as "NVLink 1,2,3; SYS 4,5"."""
    by_kind: dict[str, list[str]] = {}
    for other in cards:
        if kind := card.links.get(other.uuid):
            by_kind.setdefault(kind, []).append(str(other.index))
    fastest_first = sorted(by_kind.items(), key=lambda item: -rank(item[0]))
    return "; ".join(f"{kind} {','.join(indexes)}" for kind, indexes in fastest_first) or NONE


def nodes(snapshot: Snapshot) -> Table:
    """Return one row per node, with its cards, their allocations and the number of pods with cards."""
    table = Table(
        ("node", "status", "cards", "model", "free cards", "compute", "memory", "pods"),
        title="Nodes",
        right=frozenset({"cards", "free cards", "pods"}),
        spare=("model",),
    )
    ledger = snapshot.cache.ledger
    holding = Counter(pod.spec.node_name for pod in snapshot.pods if not pod.finished and allocation_of(pod))
    for node in snapshot.nodes:
        cards = ledger.cards(node.name)
        row = ledger.row(node.name)
        free = [row is not None and bool(ledger.mode[row, column] == FREE) for column in range(len(cards))]
        core = sum(100 - int(ledger.core_free[row, column]) for column in range(len(cards)))
        total = sum(card.memory_mib for card in cards)
        memory = sum(card.memory_mib - int(ledger.memory_free[row, column]) for column, card in enumerate(cards))
        pods = holding[node.name]
        share = round(core / len(cards)) if cards else 0
        status = _node_status(node)
        table.add(
            (
                node.name,
                status,
                str(len(cards)),
                _model(", ".join(sorted({card.model for card in cards if card.model}))),
                str(sum(free)),
                gauge(core, 100 * len(cards), f"{share:3d} %"),
                gauge(memory, total, f"{format_mib(memory)} of {format_mib(total)}"),
                str(pods),
            ),
            {
                "node": node.name,
                "status": status,
                "cards": len(cards),
                "models": sorted({card.model for card in cards}),
                "freeCards": sum(free),
                "corePercentGiven": core,
                "memoryMiB": total,
                "memoryMiBGiven": memory,
                "pods": pods,
            },
        )
    return table


def claims(snapshot: Snapshot, namespace: str | None) -> Table:
    """Return one row per claim, with phase, class, bound node and users."""
    table = Table(
        ("namespace", "name", "phase", "class", "node", "slice", "qos", "used by", "age"),
        title="Claims",
        spare=("class", "age", "qos", "used by"),
    )
    for claim in snapshot.claims:
        if namespace is not None and claim.namespace != namespace:
            continue
        allocation = claim.status.allocation
        phase = claim.status.phase or "Pending"
        table.add(
            (
                claim.namespace,
                claim.name,
                phase,
                claim.spec.class_name or NONE,
                allocation.node if allocation else NONE,
                shares(allocation.container) if allocation else NONE,
                allocation.container.qos if allocation else NONE,
                ", ".join(claim.status.used_by) or NONE,
                age(claim.metadata.creation_timestamp),
            ),
            {
                "namespace": claim.namespace,
                "name": claim.name,
                "phase": phase,
                "class": claim.spec.class_name,
                "node": allocation.node if allocation else None,
                "provisioner": allocation.container.provisioner if allocation else None,
                "qos": allocation.container.qos if allocation else None,
                "work": allocation.container.work if allocation else None,
                "cards": _card_records(allocation.container) if allocation else [],
                "hostMemoryMiB": host_memory_mib(allocation.container) if allocation else 0,
                "boundGPUs": list(claim.status.bound_gpus),
                "usedBy": list(claim.status.used_by),
            },
        )
    return table


def pods(snapshot: Snapshot, namespace: str | None, used: Mapping[SliceKey, SliceUsage] | None = None) -> Table:
    """Return one row per GPU container, with its node and allocation. `used`: what the slices say; None: not known."""
    table = Table(
        ("namespace", "pod", "container", "phase", "node", "technology", "slice", "qos", "parked", "restarts", "age"),
        title="GPU pods",
        right=frozenset({"parked", "restarts"}),
        spare=("technology", "restarts", "age", "node", "qos", "parked"),
    )
    for pod in snapshot.pods:
        if (namespace is not None and pod.namespace != namespace) or not asks_for_cards(pod):
            continue
        allocation = allocation_of(pod)
        for container in gpu_containers(pod, allocation):
            given = allocation.containers.get(container) if allocation else None
            restarts = _restarts(pod, container)
            parked_mib = _parked_mib(pod, container, given, used) if used is not None else None
            table.add(
                (
                    pod.namespace,
                    pod.name,
                    container,
                    pod.status.phase or "Pending",
                    pod.spec.node_name or NONE,
                    _short(given.provisioner) if given else NONE,
                    shares(given) if given else NONE,
                    given.qos if given else NONE,
                    format_mib(parked_mib) if parked_mib else NONE,
                    str(restarts),
                    age(pod.metadata.creation_timestamp),
                ),
                {
                    "namespace": pod.namespace,
                    "pod": pod.name,
                    "container": container,
                    "phase": pod.status.phase,
                    "node": pod.spec.node_name or None,
                    "provisioner": given.provisioner if given else None,
                    "qos": given.qos if given else None,
                    "work": given.work if given else None,
                    "claim": (given.claim or None) if given else None,
                    "server": (given.server or None) if given else None,
                    "cards": _card_records(given) if given else [],
                    "parkable": bool(given and given.parkable),
                    "parkedMiB": parked_mib,
                    "restarts": restarts,
                },
            )
    return table


def _parked_mib(
    pod: Pod, container: str, given: ContainerAllocation | None, used: Mapping[SliceKey, SliceUsage]
) -> int | None:
    """Return the parked memory of a container; None if its use is not known."""
    keys = [SliceKey(pod.namespace, pod.name, container, share.uuid) for share in given.cards] if given else []
    found = [used[key].parked_bytes for key in keys if key in used]
    return sum(found) // MIB_BYTES if found else None


def age(timestamp: str | None, now: datetime | None = None) -> str:
    """Return the time since an RFC 3339 timestamp, such as "5s", "12m", "3h" or "4d"; "-" without timestamp."""
    if not timestamp:
        return NONE
    seconds = int(seconds_since(timestamp, now or datetime.now(UTC)))
    for unit, size in (("d", 86400), ("h", 3600), ("m", 60)):
        if seconds >= 2 * size or (unit == "d" and seconds >= size):
            return f"{seconds // size}{unit}"
    return f"{seconds}s"


def _holder_names(snapshot: Snapshot) -> Mapping[Holder, str]:
    known = {Holder("pod", pod.uid): f"pod {pod.key}" for pod in snapshot.pods}
    known |= {Holder("reservation", pod.uid): f"reserved for pod {pod.key}" for pod in snapshot.pods}
    known |= {Holder("claim", claim.uid): _claim_label(claim) for claim in snapshot.claims}
    known |= {Holder("resourceclaim", claim.uid): _resource_claim_label(claim) for claim in snapshot.resource_claims}
    return known | {Holder("slice", gpu.name): f"retained {gpu.name}" for gpu in snapshot.gpus}


def _claim_label(claim: ElasticGPUClaim) -> str:
    users = ", ".join(claim.status.used_by)
    return f"claim {claim.key} ({users})" if users else f"claim {claim.key}"


def _resource_claim_label(claim: ResourceClaim) -> str:
    users = ", ".join(user.name for user in claim.status.reserved_for or ())
    return f"resourceclaim {claim.key} ({users})" if users else f"resourceclaim {claim.key}"


def _node_status(node: Node) -> str:
    said = not_offering(node)
    parts = ["Ready" if is_ready(node) else "NotReady", "SchedulingDisabled" if node.spec.unschedulable else ""]
    return ",".join(part for part in (*parts, said[0] if said is not None else "") if part)


def asks_for_cards(pod: Pod) -> bool:
    """Return whether a pod has a demand or an allocation."""
    return names.DEMAND in pod.annotations or names.ALLOCATION in pod.annotations


def allocation_of(pod: Pod) -> PodAllocation | None:
    """Return a pod's allocation; None if it has none or an invalid one."""
    text = pod.annotations.get(names.ALLOCATION)
    if text is None:
        return None
    try:
        return decode_allocation(text)
    except CorruptData:
        return None


def gpu_containers(pod: Pod, allocation: PodAllocation | None) -> list[str]:
    """Return the containers with an allocation, or else with a slot, in the pod's order."""
    if allocation is not None:
        return [container.name for container in pod.all_containers if container.name in allocation.containers]
    return [
        container.name
        for container in pod.all_containers
        if container.resources is not None and names.SLOT in (container.resources.limits or {})
    ]


def shares(container: ContainerAllocation) -> str:
    """Return the cards and the shares of a container in words."""
    return _own_shares(container) + (f" of {container.server}" if container.server else "")


def _own_shares(container: ContainerAllocation) -> str:
    if container.exclusive:
        cards = ", ".join(str(share.index) for share in container.cards)
        return f"card {cards}" if len(container.cards) == 1 else f"cards {cards}"
    return "; ".join(
        f"card {share.index}: {_core(container, share)}{_memory(container, share)}" for share in container.cards
    )


def _core(container: ContainerAllocation, share: CardShare) -> str:
    most = f" to {container.core_limit}" if share.core < container.core_limit else ""
    return f"{share.core}{most} %, " if share.core else ""


def _memory(container: ContainerAllocation, share: CardShare) -> str:
    most = f" (allocates up to {format_mib(_most_mib(container, share))})" if container.memory_limit_percent else ""
    return format_mib(share.memory_mib) + most


def _most_mib(container: ContainerAllocation, share: CardShare) -> int:
    return container.memory_limit_bytes(share) // MIB_BYTES


def _card_records(container: ContainerAllocation) -> list[dict[str, str | int]]:
    return [
        {
            "uuid": share.uuid,
            "index": share.index,
            "corePercent": share.core,
            "coreLimitPercent": max(share.core, container.core_limit) if share.core else 100,
            "memoryMiB": share.memory_mib,
            "residentMiB": share.resident_mib or share.memory_mib,
            "memoryLimitMiB": _most_mib(container, share),
        }
        for share in container.cards
    ]


def _restarts(pod: Pod, container: str) -> int:
    statuses = [*(pod.status.container_statuses or []), *(pod.status.init_container_statuses or [])]
    return next((status.restart_count for status in statuses if status.name == container), 0)


def _model(model: str) -> Cell:
    """Return a model name, without common parts on a narrow terminal: "A100-80GB"."""
    return Cell(model or NONE, _COMMON.sub("", model).strip() or NONE)


def _short(provisioner: str) -> str:
    return provisioner.removeprefix(f"{names.GROUP}/")
