"""The two annotations of ours on a pod: what it asks for (`PodDemand`) and what it was given (`PodAllocation`).

JSON with camelCase keys, read strictly: an unknown field or version is corrupt data, not something to guess about.
"""

import sys
from typing import Final, Literal

import msgspec
from msgspec.structs import replace

from egpu.api.mig import InstancePlace
from egpu.api.quantities import MIB_BYTES
from egpu.api.wire import camel
from egpu.errors import CorruptData

VERSION: Final = 1

Mode = Literal["exclusive", "shared"]


class _Strict(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, gc=False, rename=camel):
    """What nobody asked for is not written where `omit_defaults` is said: while a cluster is brought up to date those
    who read are of several versions, and a field that they do not know is corrupt to them."""


class CardShare(_Strict, frozen=True, kw_only=True, omit_defaults=True):
    """A share of one card. `core` is percent of that card (0: no compute share of its own), `memory_mib` MiB.

    The UUID identifies the card; index and minor are as they were when it was granted (a reboot may change them).
    """

    uuid: str
    """Of the card."""
    index: int
    """The driver's number of the card when it was granted."""
    minor: int
    """N of its device file, /dev/nvidiaN, when it was granted."""
    core: int
    """Percent of the card."""
    memory_mib: int
    """MiB of its memory."""
    model: str = ""
    """Of the card."""
    card_memory_mib: int = 0
    """What the whole card has."""
    instance: InstancePlace | None = None
    """The instance of MIG that it is, where it is one."""


class ContainerAllocation(_Strict, frozen=True, kw_only=True, omit_defaults=True):
    """What one container was given. `core_limit` is the percent up to which idle compute may be used (0: no more than
    its share), `memory_limit_percent` what it may allocate, in percent of its memory, managed where beyond (0: no more
    than its share); `claim` is the claim that it came from, or empty; `vocabulary` is the one it was asked for in.
    `server` is the node that has the cards, where the technology may use another node's; empty: the pod's own.
    `shared_claim` is the UID of its claim where several pods may use that: they have one slice together; else empty.

    `revision` counts how often it was resized. `held` is what still counts as given out, card by card, until the node
    has said that a smaller `cards` is in force (empty: `cards` themselves); `within_seconds` is how long a program may
    take to give back what is beyond, from when its node tells it (None: as long as it likes, but it gets no more)."""

    provisioner: str
    """The technology that holds the container to it."""
    mode: Mode
    """exclusive: whole cards; shared: parts of them."""
    class_name: str = ""
    """The class that it was asked of."""
    claim: str = ""
    """The claim that it came from, if any."""
    core_limit: int = 0
    """Percent up to which idle compute may be used; 0: no more than its share."""
    memory_limit_percent: int = 0
    """What may be allocated, in percent of its memory; 0: no more than its share."""
    vocabulary: str = ""
    """Whose resource names it was asked for with."""
    server: str = ""
    """The node that has the cards; empty: the pod's own."""
    shared_claim: str = ""
    """The UID of its claim where several pods may use that: they have one slice together; else empty."""
    alike: str = ""
    """What all slices of its cards have in common beside their technology, in its words; empty: nothing."""
    memory_isolation: str = ""
    """ "driver" where the driver holds it to its memory, by the control group of its pod; else empty."""
    cards: tuple[CardShare, ...]
    """What of which cards."""
    revision: int = 0
    """How often it was resized."""
    held: tuple[CardShare, ...] = ()
    """What still counts as given out while a smaller size comes into force; empty: `cards`."""
    within_seconds: float | None = None
    """How long a program may take to give back what is beyond a smaller size."""

    @property
    def counted(self) -> tuple[CardShare, ...]:
        """What it takes of its cards: what nobody else may be given."""
        return self.held or self.cards

    @property
    def exclusive(self) -> bool:
        return self.mode == "exclusive"

    def memory_limit_bytes(self, share: CardShare) -> int:
        """What may be allocated on one card: the share, and what the class lets go beyond it."""
        return share.memory_mib * MIB_BYTES * max(100, self.memory_limit_percent) // 100

    def cards_node(self, node: str) -> str:
        """The node that has the cards of a container whose pod is on `node`."""
        return self.server or node


class PodAllocation(_Strict, frozen=True, kw_only=True):
    """What a pod was given, by container name. `init` names its plain init containers, which run before the others
    and so may be given the same shares; `sidecars` its restartable init containers, which stay."""

    version: int = VERSION
    node: str
    containers: dict[str, ContainerAllocation]
    init: tuple[str, ...] = ()
    sidecars: tuple[str, ...] = ()

    @property
    def revision(self) -> int:
        """How often anything of the pod was resized."""
        return sum(container.revision for container in self.containers.values())


class CardRequirement(_Strict, frozen=True, kw_only=True):
    """What a card must be: an attribute, one of Kubernetes' match operators, values (see `egpu.core.attributes`)."""

    key: str
    operator: str
    values: tuple[str, ...] = ()


class ContainerDemand(_Strict, frozen=True, kw_only=True, omit_defaults=True):
    """What one container asks for. `core` (percent) and `memory_mib` are PER CARD.

    `memory_mib` 0 means in proportion to its compute share, unless `memory_percent` says how much of a card's memory;
    `core` 0 means no compute share of its own, unless `tflops` says what the share is on each card model (counted in
    `precision`). `shared_claim` is the UID of its claim where several pods may use that. An exclusive
    demand takes whole cards; its `memory_mib` is then only the least that a card must have. `links` is what joins every
    two of several cards, at the least ("": anything, the faster the better): see `egpu.core.links`. `select` is what
    each card must be, `prefer` which of those that fit are taken: "strongest", "weakest" or whichever the policy likes.
    `alike` is what all slices of its cards must have in common beside their technology, in its words; empty: nothing.
    `memory_isolation` is "driver" where the driver has to hold it to its memory.
    `repartition`: whether a card may be cut anew for it, where its technology cuts cards.
    """

    provisioner: str
    cards: int = 1
    core: int = 0
    memory_mib: int = 0
    memory_percent: int = 0
    exclusive: bool = False
    class_name: str = ""
    claim: str = ""
    shared_claim: str = ""
    vocabulary: str = ""
    tflops: int = 0
    precision: str = "fp32"
    core_limit: int = 0
    memory_limit_percent: int = 0
    links: str = ""
    select: tuple[CardRequirement, ...] = ()
    prefer: str = ""
    alike: str = ""
    memory_isolation: str = ""
    repartition: bool = True


class PodDemand(_Strict, frozen=True, kw_only=True):
    """What a pod asks for, by container name; containers without a GPU are absent. `init` and `sidecars` as in
    PodAllocation. A pod without any GPU has no containers here."""

    version: int = VERSION
    containers: dict[str, ContainerDemand]
    init: tuple[str, ...] = ()
    sidecars: tuple[str, ...] = ()


def with_shared_names(allocation: PodAllocation) -> PodAllocation:
    """The same, for whoever keeps very many: the names that hundreds of others have too are there once."""
    return replace(
        allocation,
        node=sys.intern(allocation.node),
        containers={name: _with_shared_names(container) for name, container in allocation.containers.items()},
    )


def _with_shared_names(container: ContainerAllocation) -> ContainerAllocation:
    return replace(
        container,
        provisioner=sys.intern(container.provisioner),
        class_name=sys.intern(container.class_name),
        vocabulary=sys.intern(container.vocabulary),
        server=sys.intern(container.server),
        alike=sys.intern(container.alike),
        cards=tuple(
            replace(share, uuid=sys.intern(share.uuid), model=sys.intern(share.model)) for share in container.cards
        ),
    )


_allocations = msgspec.json.Decoder(PodAllocation)
_demands = msgspec.json.Decoder(PodDemand)


def encode(value: PodDemand | PodAllocation) -> str:
    """The annotation's text: equal values give equal text (containers sorted by name)."""
    ordered = dict(sorted(value.containers.items()))  # type: ignore[reportUnknownVariableType]
    return msgspec.json.encode(msgspec.structs.replace(value, containers=ordered)).decode()


def decode_demand(text: str) -> PodDemand:
    """Read the demand annotation. Raises CorruptData."""
    try:
        return _demands.decode(text)
    except msgspec.MsgspecError as error:
        raise CorruptData(f"demand annotation: {error}; the webhook writes it, nobody else should") from error


def decode_allocation(text: str) -> PodAllocation:
    """Read the allocation annotation. Raises CorruptData."""
    try:
        allocation = _allocations.decode(text)
    except msgspec.MsgspecError as error:
        raise CorruptData(f"allocation annotation: {error}; the binding writes it, nobody else should") from error
    if allocation.version != VERSION:
        raise CorruptData(f"allocation annotation: version {allocation.version} is not {VERSION}")
    for name, container in allocation.containers.items():
        if container.held and [one.uuid for one in container.held] != [one.uuid for one in container.cards]:
            raise CorruptData(f"allocation annotation: container {name} holds other cards than it has")
        for share in (*container.cards, *container.held):
            if not 0 <= share.core <= 100 or share.memory_mib < 0:
                had = f"{share.core} % and {share.memory_mib} MiB of {share.uuid}"
                raise CorruptData(f"allocation annotation: container {name} has {had}")
    return allocation
