"""The two annotations on a pod: what it asks for (`PodDemand`) and what it got (`PodAllocation`).

JSON with camelCase keys, read strictly: an unknown field or version is corrupt data.
"""

import sys
from collections.abc import Container, Iterable
from itertools import takewhile
from typing import Final, Literal, NamedTuple

import msgspec
from msgspec.structs import replace

from egpu.api.mig import InstancePlace
from egpu_base.api.quantities import MIB_BYTES
from egpu_base.api.wire import camel
from egpu_base.errors import CorruptData

VERSION: Final = 1

Mode = Literal["exclusive", "shared"]


Qos = Literal["Guaranteed", "Burstable", "BestEffort"]
"""The quality of service of a slice's compute, in Kubernetes' words."""


Work = Literal["latency", "batch"]
"""The kind of work of a slice: launches of latency work come before those of others."""


class _Strict(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, gc=False, rename=camel):
    """The base of both. Subclasses with `omit_defaults` do not write defaults: during an upgrade, readers of an older
    version would take an unknown field as corrupt."""


class CardShare(_Strict, frozen=True, kw_only=True, omit_defaults=True):
    """A share of one card. The UUID identifies the card; a reboot may change `index` and `minor`."""

    uuid: str
    """The UUID of the card."""
    index: int
    """The driver's number of the card at the time of the allocation."""
    minor: int
    """The N of the card's device file, /dev/nvidiaN, at the time of the allocation."""
    core: int
    """Percent of the card's compute. 0: no compute share of its own."""
    memory_mib: int
    """MiB of the card's memory."""
    model: str = ""
    """The model of the card."""
    card_memory_mib: int = 0
    """The whole memory of the card, in MiB."""
    resident_mib: int = 0
    """MiB of `memory_mib` that have their own room on the card; the rest shares room with others. 0: all of it."""
    instance: InstancePlace | None = None
    """The MIG instance of the share, if it is one."""


def qos_of(cores: Iterable[int], core_limit: int) -> Qos:
    """Return the quality of service of a slice with these requests, in percent of each card, and this limit.

    It gets its request and no more, it may get more while others are idle, or it requests none.
    """
    requests = tuple(cores)
    if not all(requests):
        return "BestEffort"
    return "Burstable" if min(requests, default=core_limit) < core_limit else "Guaranteed"


def core_limit_of(core: int, core_limit: int) -> int:
    """Return the percent of a card that a slice with this request and limit may use while others are idle."""
    return max(core, core_limit) if core else 100


class ContainerAllocation(_Strict, frozen=True, kw_only=True, omit_defaults=True):
    """The cards of one container. While a smaller size takes effect, `held` still counts as allocated."""

    provisioner: str
    """The technology that limits the container to its share."""
    mode: Mode
    """exclusive: whole cards; shared: parts of them."""
    class_name: str = ""
    """The class of the claim."""
    claim: str = ""
    """The claim that provides the cards; empty for none."""
    core_limit: int = 0
    """Percent up to which the container may use idle compute; 0: no more than its share."""
    max_core_limits: int = 0
    """Percent that the limits of all slices on its cards may add up to; 0: any."""
    latency: bool = False
    """Whether the container's launches come before those of others on its cards, within its share."""
    memory_limit_percent: int = 0
    """Percent of its memory that the container may allocate, managed beyond it; 0: no more than its share."""
    vocabulary: str = ""
    """The vocabulary of the resource names that the container asked with."""
    server: str = ""
    """The node that has the cards; empty: the pod's own."""
    shared_claim: str = ""
    """The UID of the claim if several pods may use it and share one slice; otherwise empty."""
    alike: str = ""
    """A property that all slices of the cards must share, in the technology's own words; empty for none."""
    memory_isolation: str = ""
    """"driver" if the driver limits the container's memory by its pod's control group; otherwise empty."""
    parkable: bool = False
    """Whether the memory of the container's idle programs may leave the card."""
    park_idle_seconds: float = 0.0
    """The time without a call after which programs that share room count as idle."""
    park_stays: bool = False
    """Whether the pod may keep this memory on the card, by an annotation."""
    park_patience_seconds: float = 0.0
    """The time after which programs that keep the room from others are ended; 0: never."""
    cards: tuple[CardShare, ...]
    """The shares of the container, card by card."""
    revision: int = 0
    """The number of times that the allocation was resized."""
    held: tuple[CardShare, ...] = ()
    """The shares that still count as allocated until the node has put a smaller size in force; empty: `cards`."""
    within_seconds: float | None = None
    """Seconds that a program has to release what exceeds a smaller size; none: no time limit, but it gets no more."""

    @property
    def counted(self) -> tuple[CardShare, ...]:
        """The shares that count as allocated."""
        return self.held or self.cards

    @property
    def exclusive(self) -> bool:
        return self.mode == "exclusive"

    @property
    def qos(self) -> Qos:
        """The quality of service of its compute."""
        return qos_of((share.core for share in self.cards), self.core_limit)

    def core_limit_of(self, share: CardShare) -> int:
        """Return the percent of a card that the container may use while others are idle."""
        return core_limit_of(share.core, self.core_limit)

    @property
    def work(self) -> Work:
        """The kind of its work."""
        return "latency" if self.latency else "batch"

    def memory_limit_bytes(self, share: CardShare) -> int:
        """Return how much the container may allocate on a card: its share, and oversubscription."""
        return share.memory_mib * MIB_BYTES * max(100, self.memory_limit_percent) // 100

    def cards_node(self, node: str) -> str:
        """Return the node that has the cards of a container whose pod is on `node`."""
        return self.server or node


class PodAllocation(_Strict, frozen=True, kw_only=True):
    """The allocations of a pod, by container name. Plain init containers (`init`) run before the others and may get the
    same shares; restartable ones (`sidecars`) stay."""

    version: int = VERSION
    node: str
    containers: dict[str, ContainerAllocation]
    init: tuple[str, ...] = ()
    sidecars: tuple[str, ...] = ()

    def beside(self, name: str) -> tuple[str, ...]:
        """Return the sidecars that run while a plain init container does: those declared before it (KEP-753)."""
        return _before(name, self.containers, self.sidecars)

    @property
    def revision(self) -> int:
        """The number of times that a container of the pod was resized."""
        return sum(container.revision for container in self.containers.values())


class CardRequirement(_Strict, frozen=True, kw_only=True):
    """A requirement of a card: an attribute, a match operator, and values (see `egpu.core.attributes`)."""

    key: str
    operator: str
    values: tuple[str, ...] = ()


class ContainerDemand(_Strict, frozen=True, kw_only=True, omit_defaults=True):
    """The demand of one container. `core` (percent) and `memory_mib` are PER CARD.

    `memory_mib` 0: memory in proportion to the compute share, unless `memory_percent` gives a percentage of the card's
    memory. `core` 0: no compute share, unless `tflops` gives one for each card model (counted in `precision`). An
    exclusive demand takes whole cards; its `memory_mib` is the least memory of a card. `shared_claim`: the UID of a
    claim that several pods may use. `links`: the slowest link allowed between any two cards ("": any; fast links are
    preferred), see `egpu.core.links`. `select`: what each card must be. `prefer`: "strongest", "weakest", or "" for the
    policy's choice. `alike`: a property that all slices of the cards must share. `memory_isolation`: "driver" if the
    driver must limit memory. `repartition`: whether a card may be repartitioned for it. `parkable`:
    memory of idle programs may leave the card; `resident_percent` of it then have their own room on the card (0: all),
    and programs count as idle after `park_idle_seconds`. `park_stays`: pods may keep it on the card. Programs that keep
    the room from others for `park_patience_seconds` are ended (0: never).
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
    max_core_limits: int = 0
    latency: bool = False
    memory_limit_percent: int = 0
    links: str = ""
    select: tuple[CardRequirement, ...] = ()
    prefer: str = ""
    alike: str = ""
    memory_isolation: str = ""
    repartition: bool = True
    parkable: bool = False
    resident_percent: int = 0
    park_idle_seconds: float = 0.0
    park_stays: bool = False
    park_patience_seconds: float = 0.0


class Role(NamedTuple):
    """When a container of a pod runs: a plain init container (`init`) before the apps, beside some sidecars."""

    name: str = ""
    init: bool = False
    sidecar: bool = False
    beside: tuple[str, ...] = ()
    """The sidecars that run while a plain init container does: those declared before it (KEP-753)."""


class PodDemand(_Strict, frozen=True, kw_only=True):
    """The demands of a pod, by container name, without containers that need no GPU. `init`, `sidecars`: see
    PodAllocation."""

    version: int = VERSION
    containers: dict[str, ContainerDemand]
    init: tuple[str, ...] = ()
    sidecars: tuple[str, ...] = ()

    def role(self, name: str) -> Role:
        """Return when a container of the pod runs."""
        init = name in self.init
        beside = _before(name, self.containers, self.sidecars) if init else ()
        return Role(name=name, init=init, sidecar=name in self.sidecars, beside=beside)


def _before(name: str, containers: Iterable[str], sidecars: Container[str]) -> tuple[str, ...]:
    """Return the sidecars before `name`; `containers` are in the order of the pod's spec."""
    return tuple(other for other in takewhile(lambda other: other != name, containers) if other in sidecars)


def with_shared_names(allocation: PodAllocation) -> PodAllocation:
    """Return an equal allocation that shares its repeated names with others, to save memory."""
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
    """Return the annotation's text. Equal values give equal text (containers sorted by name)."""
    ordered = dict(sorted(value.containers.items()))  # type: ignore[reportUnknownVariableType]
    return msgspec.json.encode(msgspec.structs.replace(value, containers=ordered)).decode()


def decode_demand(text: str) -> PodDemand:
    """Read the demand annotation. Raises CorruptData."""
    try:
        return _demands.decode(text)
    except msgspec.MsgspecError as error:
        raise CorruptData(f"demand annotation: {error}; only the webhook may write it") from error


def decode_allocation(text: str) -> PodAllocation:
    """Read the allocation annotation. Raises CorruptData."""
    try:
        allocation = _allocations.decode(text)
    except msgspec.MsgspecError as error:
        raise CorruptData(f"allocation annotation: {error}; only the Binding may write it") from error
    if allocation.version != VERSION:
        raise CorruptData(f"allocation annotation: version {allocation.version} is not {VERSION}")
    for name, container in allocation.containers.items():
        if container.held and [one.uuid for one in container.held] != [one.uuid for one in container.cards]:
            raise CorruptData(f"allocation annotation: container {name} holds cards that it does not have")
        for share in (*container.cards, *container.held):
            if not 0 <= share.core <= 100 or share.memory_mib < 0:
                had = f"{share.core} % and {share.memory_mib} MiB of {share.uuid}"
                raise CorruptData(f"allocation annotation: container {name} has {had}")
    return allocation
