"""Cards as the scheduler knows them."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from egpu.api.objects import Mig


@dataclass(frozen=True, slots=True)
class Card:
    """A card as its agent published it. `tflops` by precision; `numa` is -1 where the machine has none; `links` are the
    kinds of connection to other cards of the node, by UUID."""

    uuid: str
    index: int
    minor: int
    memory_mib: int
    model: str = ""
    tflops: Mapping[str, float] = field(default_factory=dict[str, float])
    numa: int = -1
    healthy: bool = True
    """Whether it takes new work."""
    why_not: str = ""
    cordoned: bool = False
    """It takes none because people say so, and for no other reason."""
    links: Mapping[str, str] = field(default_factory=dict[str, str])
    compute_capability: str = ""
    memory_isolation: str = ""
    mps: str = ""
    mig: Mig | None = None
    """What it can be cut into, and is, while it is in MIG mode."""


@dataclass(frozen=True)
class NodeCards:
    """The cards of one node."""

    name: str
    cards: tuple[Card, ...]
