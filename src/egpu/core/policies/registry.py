"""Policies by name."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, Self

from egpu.core.policies.base import Policy
from egpu.core.policies.baselines import BestFit, Binpack, DotProduct, GpuPacking, Random, Spread
from egpu.core.policies.fgd import Fgd
from egpu.core.policies.fleet import Fleet
from egpu.core.policies.price import KnownPrice, Price
from egpu.core.policies.prices import Prices, compute_prices
from egpu.core.policies.shapes import Mix
from egpu_base.errors import InvalidInput

DEFAULT_POLICY: Final = "price"
"""The meaning of `default`, here and in an extender without a configured policy."""


@dataclass(frozen=True)
class Setting:
    """The input of a policy: the nodes, the known job mix, a seed for random ones, and the first prices of those that
    get others later (None: of no pods)."""

    fleet: Fleet
    mix: Mix
    seed: int = 0
    prices: Prices | None = None


@dataclass(frozen=True)
class _Entry:
    kind: type[Policy]
    make: Callable[[Setting], Policy]


_POLICIES: Final[dict[str, _Entry]] = {
    "price": _Entry(Price, lambda s: Price(s.fleet, s.prices or compute_prices(Mix(), s.fleet))),
    "price-known": _Entry(KnownPrice, lambda s: KnownPrice.of(s.mix, s.fleet)),
    "fgd": _Entry(Fgd, lambda s: Fgd(s.mix, s.fleet.models)),
    "fgd-exact": _Entry(Fgd, lambda s: Fgd(s.mix, s.fleet.models, quantised=False)),
    "best-fit": _Entry(BestFit, lambda _: BestFit()),
    "gpu-packing": _Entry(GpuPacking, lambda _: GpuPacking()),
    "dot-product": _Entry(DotProduct, lambda _: DotProduct()),
    "random": _Entry(Random, lambda s: Random(s.seed)),
    "binpack": _Entry(Binpack, lambda _: Binpack()),
    "spread": _Entry(Spread, lambda _: Spread()),
}
_ALIASES: Final = {"dotprod": "dot-product", "packing": "gpu-packing", "default": DEFAULT_POLICY}
NAMES: Final = tuple(_POLICIES)
FOR_COMPARISON: Final = ("price-known", "fgd-exact")
"""Variants for simulations that have no use in a cluster."""
CLUSTER_NAMES: Final = tuple(name for name in NAMES if name not in FOR_COMPARISON)


def canonical(name: str) -> str:
    """Return the policy's own name: `BestFit`, `best_fit` and `bestfit` are `best-fit`. Raises InvalidInput."""
    wanted = name.strip().lower().replace("_", "").replace("-", "")
    for alias, known in (_ALIASES | {known: known for known in NAMES}).items():
        if wanted == alias.replace("-", ""):
            return known
    raise InvalidInput("policy", f"policy {name!r} does not exist; choose one of default, {', '.join(NAMES)}")


def make_policy(name: str, setting: Setting) -> Policy:
    """Make a policy. Raises InvalidInput for an unknown name, MissingExtra for a missing package."""
    entry = _POLICIES[canonical(name)]
    entry.kind.check_installed()
    return entry.make(setting)


def prefers(name: str) -> str:
    """Return a policy's `prefers`. Raises InvalidInput for an unknown name."""
    return _POLICIES[canonical(name)].kind.prefers


@dataclass(frozen=True)
class Policies:
    """The policies for nodes and for the cards of a node, by name."""

    node: str
    card: str

    @classmethod
    def named(cls, node: str = "binpack", card: str = "binpack") -> Self:
        """Return policies by name. Raises InvalidInput for an unsuitable name; MissingExtra."""
        return cls(_for_cluster(node), _for_cluster(card))


def _for_cluster(name: str) -> str:
    known = canonical(name)
    if known in FOR_COMPARISON:
        reason = f"{known!r} is for simulations only; a cluster can use {', '.join(CLUSTER_NAMES)}"
        raise InvalidInput("policy", reason)
    _POLICIES[known].kind.check_installed()
    return known
