"""Policies by name."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from egpu.core.policies.baselines import BestFit, Binpack, DotProduct, GpuPacking, Random, Spread
from egpu.core.policies.fgd import Fgd
from egpu.core.policies.fleet import Fleet
from egpu.core.policies.learner import LearningPrice
from egpu.core.policies.placer import Scorer
from egpu.core.policies.price import Price
from egpu.core.policies.shapes import Mix
from egpu.errors import InvalidInput

DEFAULT_POLICY: Final = "price"
"""What `default` means, here and in an extender that nobody configured."""


@dataclass(frozen=True)
class Setting:
    """What a policy is made for: the nodes, the mix where it is known beforehand, and a seed for those that draw."""

    fleet: Fleet
    mix: Mix
    seed: int = 0


_MAKERS: Final[dict[str, Callable[[Setting], Scorer]]] = {
    "price": lambda setting: LearningPrice(setting.fleet),
    "price-known": lambda setting: Price.of(setting.mix, setting.fleet),
    "fgd": lambda setting: Fgd(setting.mix, setting.fleet.models),
    "fgd-exact": lambda setting: Fgd(setting.mix, setting.fleet.models, quantised=False),
    "best-fit": lambda _: BestFit(),
    "gpu-packing": lambda _: GpuPacking(),
    "dot-product": lambda _: DotProduct(),
    "random": lambda setting: Random(setting.seed),
    "binpack": lambda _: Binpack(),
    "spread": lambda _: Spread(),
}
_ALIASES: Final = {"dotprod": "dot-product", "packing": "gpu-packing", "default": DEFAULT_POLICY}
NAMES: Final = tuple(_MAKERS)
FOR_COMPARISON: Final = ("price-known", "fgd-exact")
"""Variants that say something in a simulation, and are no use in a cluster."""


def canonical(name: str) -> str:
    """The policy's own name: `BestFit`, `best_fit` and `bestfit` are `best-fit`. Raises InvalidInput."""
    wanted = name.strip().lower().replace("_", "").replace("-", "")
    for alias, known in (_ALIASES | {known: known for known in NAMES}).items():
        if wanted == alias.replace("-", ""):
            return known
    raise InvalidInput("policy", f"no policy is called {name!r}; known are default, {', '.join(NAMES)}")


def scorer(name: str, setting: Setting) -> Scorer:
    """A new scorer. Raises InvalidInput for a name that is not known."""
    return _MAKERS[canonical(name)](setting)
