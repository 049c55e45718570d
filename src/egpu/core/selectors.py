"""Selectors of ResourceClaims: expressions in CEL, Kubernetes' Common Expression Language, about one card.

They are evaluated on the attributes that all cards of a kind share. Kubernetes limits what an expression may cost by
its own scale. Here the text is limited, and expressions that loop are refused. So the time of an evaluation grows with
the text alone.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

from egpu.api import names
from egpu_base.api.quantities import canonical_quantity
from egpu_base.cel import grammar as cel
from egpu_base.cel import types
from egpu_base.errors import NotSupported

if TYPE_CHECKING:
    from egpu.core.attributes import CardKind

MAX_CHARACTERS: Final = 512
"""Of all selectors of a request. A usual one has 100."""
MAX_SHOWN: Final = 100
"""Of an expression, or of the library's words, in a message."""
OF_ONE_CARD: Final = ("uuid", "driverVersion", "nvlinkDomain", "pcieRoot")
"""Attributes of devices that no kind of cards has."""
_ARCHITECTURES: Final = {"7.0": "Volta", "7.2": "Volta", "7.5": "Turing", "8.9": "Ada Lovelace"}
"""Those whose generation the major number alone does not tell."""
_GENERATIONS: Final = {"6": "Pascal", "8": "Ampere", "9": "Hopper"} | dict.fromkeys(("10", "11", "12"), "Blackwell")


def semantic(version: str) -> str:
    """Return a version such as 580.65.06 or 8.0 as a semantic version (580.65.6, 8.0.0); empty if it is none."""
    found = re.match(r"(\d+)(?:\.(\d+))?(?:\.(\d+))?", version)
    return ".".join(str(int(part or 0)) for part in found.groups()) if found else ""


def architecture(compute_capability: str) -> str:
    """Return NVIDIA's name of the architecture; empty if it is not known here."""
    major = compute_capability.partition(".")[0]
    return _ARCHITECTURES.get(compute_capability) or _GENERATIONS.get(major, "")


def check(expression: str) -> None:
    """Raise NotSupported if the expression cannot be evaluated here."""
    try:
        _compiled(expression)
    except cel.NotUnderstood as error:
        raise NotSupported(
            f"selector {_short(expression)!r}: {error}; write it in another way, "
            f"or use a node with {names.ALLOCATOR}={names.DRA}"
        ) from error
    for token in cel.tokens(expression):
        name = token.text.strip("'\"").rpartition("/")[2]
        if token.kind in ("name", "string") and name in OF_ONE_CARD:
            raise NotSupported(
                f"selector {_short(expression)!r}: the extender does not know {name}; "
                f"select by other attributes, or use a node with {names.ALLOCATOR}={names.DRA}"
            )


@functools.lru_cache(maxsize=16_384)
def objection(expression: str, kind: CardKind) -> str:
    """Return why a selector, which `check` accepts, does not select a card of this kind; empty if it does.

    Kubernetes serves no device to a claim with a selector that fails for one of them. Here the card alone is left out.
    """
    try:
        found = _compiled(expression)({"device": _device(kind)})
    except cel.EvaluationError as error:
        return f"selector {_short(expression)!r} fails: {_short(str(error))}"
    return "" if found else f"selector {_short(expression)!r} is false"


def _short(text: str) -> str:
    return text if len(text) <= MAX_SHOWN else f"{text[: MAX_SHOWN - 1]}…"


def _compiled(expression: str) -> Callable[[cel.Scope], bool]:
    return cel.compiled(expression, cel.DEVICE_VARIABLES, bounded=True)


def _device(kind: CardKind) -> dict[str, Any]:
    """Return the variable `device` for cards of a kind, as `egpu.core.dra.devices` publishes them."""
    tflops, version = dict(kind.tflops).get("fp32"), semantic(kind.compute_capability)
    attributes: dict[str, Any] = {
        "model": kind.model,
        "architecture": architecture(kind.compute_capability),
        "tflops": None if tflops is None else round(tflops),
        "numaNode": kind.numa if kind.numa >= 0 else None,
        "computeCapability": types.semver(version) if version else None,
        **dict.fromkeys(names.CLAIM_TECHNOLOGIES, True),
    }
    known = {name: value for name, value in attributes.items() if value not in (None, "")}
    capacity = {"cores": types.quantity("100"), "memory": types.quantity(canonical_quantity(f"{kind.memory_mib}Mi"))}
    return {
        "driver": names.DRIVER,
        "attributes": types.Domains({names.DRIVER: known}),
        "capacity": types.Domains({names.DRIVER: capacity}),
        "allowMultipleAllocations": True,
    }
