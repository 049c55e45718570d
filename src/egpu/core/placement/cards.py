"""Cards as the scheduler knows them."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from egpu.api.objects import Mig


@dataclass(frozen=True, slots=True)
class Card:
    """A card as its agent published it. `tflops` by precision; `numa` is -1 without NUMA; `links` are the kinds of
    links to the node's other cards, by UUID."""

    uuid: str
    index: int
    minor: int
    memory_mib: int
    model: str = ""
    tflops: Mapping[str, float] = field(default_factory=dict[str, float])
    numa: int = -1
    healthy: bool = True
    """True if the card takes new work."""
    why_not: str = ""
    cordoned: bool = False
    """True if an administrator keeps new work off the card, and nothing else does."""
    by_claims: bool = False
    """True if only ResourceClaims of resource.k8s.io get parts of the card, and nothing else keeps new work off it."""
    priced: bool = False
    """True if ResourceClaims get parts of the card, too, and the extender chooses for them."""
    contested: bool = False
    """True if another program gives out the card, too, and nothing else keeps new work off it."""
    links: Mapping[str, str] = field(default_factory=dict[str, str])
    compute_capability: str = ""
    memory_isolation: str = ""
    mps: str = ""
    mig: Mig | None = None
    """The possible and existing instances, while the card is in MIG mode."""

    @property
    def kept_off(self) -> str:
        """Return in one word what keeps new work off a card that works; empty if nothing does."""
        words = {"cordoned": self.cordoned, "claims": self.by_claims, "contested": self.contested}
        return next((word for word, holds in words.items() if holds), "")

    @property
    def works(self) -> bool:
        """Return whether the card works, even if it takes no new work."""
        return self.healthy or bool(self.kept_off)


@dataclass(frozen=True)
class NodeCards:
    """The cards of one node."""

    name: str
    cards: tuple[Card, ...]
