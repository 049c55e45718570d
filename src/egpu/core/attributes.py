"""Card selection: which cards a demand selects by their attributes, and which it prefers.

A requirement is a `matchExpressions` entry of Kubernetes: an attribute, an operator and values. A card must meet all of
them. Claims write them as objects, annotations and class parameters as text: "model in (A100, H100), memory > 40Gi".
"""

import functools
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

from egpu.api.allocation import CardRequirement
from egpu.api.mig import InstanceProfile
from egpu.core.selectors import objection
from egpu_base.api.quantities import parse_claim_memory
from egpu_base.errors import InvalidDemand, InvalidQuantity

MAX_REQUIREMENTS: Final = 16
MAX_VALUES: Final = 64
MAX_VALUE_CHARACTERS: Final = 128
MAX_SELECTOR_CHARACTERS: Final = 4096
"""Texts of tenants are read while all others wait, and are kept in caches."""
STRONGEST: Final = "strongest"
WEAKEST: Final = "weakest"
PREFERENCES: Final = (STRONGEST, WEAKEST)

Select = tuple[CardRequirement, ...]


class CardKind(NamedTuple):
    """The attributes of a card. `tflops` by precision, sorted. `numa` and `link_domain` are -1 for none; a link domain
    is the cards of a node that NVLink joins, named by their lowest index. `profiles`: the instances that a card in MIG
    mode can have; empty otherwise."""

    model: str
    memory_mib: int
    compute_capability: str = ""
    tflops: tuple[tuple[str, float], ...] = ()
    numa: int = -1
    link_domain: int = -1
    memory_isolation: str = ""
    """"driver" if the driver can limit memory by control group."""
    profiles: tuple[InstanceProfile, ...] = ()
    mps: str = ""
    """`egpu.core.provisioners.mps.READY` if the node can run an MPS server for it, otherwise why not."""

    @property
    def strength(self) -> tuple[float, int, float]:
        """The strength to compare by: TFLOPS (fp32), then memory, then compute capability."""
        return dict(self.tflops).get("fp32", 0.0), self.memory_mib, _version(self.compute_capability) or 0.0


def _version(text: str) -> float | None:
    """Return a compute capability as a number in which 8.10 is above 8.9; None for an invalid one."""
    found = re.fullmatch(r"(\d{1,3})(?:\.(\d{1,3}))?", text)
    return int(found[1]) * 1000.0 + int(found[2] or 0) if found else None


def _number(text: str) -> float | None:
    return float(text) if re.fullmatch(r"\d{1,9}(?:\.\d{1,6})?", text) else None


def _memory(text: str) -> float | None:
    try:
        return float(parse_claim_memory(text, field="", unit_mib=1))
    except InvalidQuantity:
        return None


@dataclass(frozen=True)
class _Attribute:
    """A numeric attribute: how to read it from a card and from a value (None: none), and an example."""

    of: Callable[[CardKind], float | None]
    read: Callable[[str], float | None]
    like: str


def _there(number: int) -> float | None:
    return float(number) if number >= 0 else None


MODEL: Final = "model"
_TFLOPS: Final = "tflops"
_NUMBERS: Final[Mapping[str, _Attribute]] = {
    "memory": _Attribute(lambda kind: float(kind.memory_mib), _memory, "40Gi, or 40960 (MiB)"),
    "computeCapability": _Attribute(lambda kind: _version(kind.compute_capability), _version, "8.0"),
    "numa": _Attribute(lambda kind: _there(kind.numa), _number, "0"),
    "linkDomain": _Attribute(lambda kind: _there(kind.link_domain), _number, "0"),
}
MODEL_TEXT: Final = "modelText"
"""The model as HAMi compares it: "1080" is in "NVIDIA-NVIDIA GeForce GTX 1080 Ti"."""
MEMORY_ISOLATION: Final = "memoryIsolation"
EXPRESSION: Final = "expression"
"""The key of a requirement that is a selector in CEL of a ResourceClaim. Nobody can write it in another way."""
_WORDS: Final[Mapping[str, Callable[[CardKind], str]]] = {
    MODEL: lambda kind: kind.model,
    MODEL_TEXT: lambda kind: f"NVIDIA-{kind.model}",
    MEMORY_ISOLATION: lambda kind: kind.memory_isolation,
}
KEYS: Final = (MODEL, *_NUMBERS, MODEL_TEXT, MEMORY_ISOLATION, _TFLOPS, f"{_TFLOPS}.PRECISION")


def _attribute(key: str) -> _Attribute | None:
    if key == _TFLOPS or key.startswith(f"{_TFLOPS}."):
        precision = key.partition(".")[2] or "fp32"
        return _Attribute(lambda kind: dict(kind.tflops).get(precision), _number, "19.5")
    return _NUMBERS.get(key)


def requirement(key: str, operator: str, values: Sequence[str], *, field: str) -> CardRequirement:
    """Return a requirement. Raises InvalidDemand, naming `field`, if no card can be compared with it."""
    attribute = _attribute(key)
    if attribute is None and key not in _WORDS:
        raise InvalidDemand(field, f"cards have no attribute {key!r}; they have {', '.join(KEYS)}")
    match operator:
        case "Exists" | "DoesNotExist":
            wanted = not values
            expected = "no values"
        case "In" | "NotIn":
            wanted, expected = 0 < len(values) <= MAX_VALUES, f"1 to {MAX_VALUES} values"
        case "Gt" | "Lt":
            wanted, expected = len(values) == 1 and attribute is not None, "one number, and a numeric attribute"
        case _:
            raise InvalidDemand(field, f"{operator!r} is not one of In, NotIn, Gt, Lt, Exists, DoesNotExist")
    if not wanted:
        raise InvalidDemand(field, f"{key} {operator} takes {expected}")
    for value in values:
        if len(value) > MAX_VALUE_CHARACTERS:
            reason = f"a value of {key} has {len(value)} characters; the most is {MAX_VALUE_CHARACTERS}"
            raise InvalidDemand(field, reason)
        if not value or (attribute is not None and attribute.read(value) is None):
            like = attribute.like if attribute is not None else "A100"
            raise InvalidDemand(field, f"{value!r} is not a valid {key}; write for example {like}")
    return CardRequirement(key=key, operator=operator, values=tuple(values))


_SYMBOLS: Final = {"in": "In", "notin": "NotIn", "=": "In", "==": "In", "!=": "NotIn", ">": "Gt", "<": "Lt"}
_TERM: Final = re.compile(
    r"\s*+(?:(?P<absent>!)\s*+(?P<without>[\w.]++)"
    r"|(?P<key>[\w.]++)\s*+(?:(?P<set>in|notin)\s*+\((?P<values>[^()]*+)\)"
    r"|(?P<sign>==|=|!=|>|<)(?P<value>[^,()=<>!;]++))?)"
    r"\s*+(?:,|$)",
    re.ASCII,
)
"""Every repetition is possessive, so a text that does not match is read once."""


def parse_selector(text: str, field: str) -> Select:
    """Parse requirements in kubectl's syntax of label selectors, plus ">" and "<". Raises InvalidDemand."""
    if len(text) > MAX_SELECTOR_CHARACTERS:
        raise InvalidDemand(field, f"has {len(text)} characters; the most is {MAX_SELECTOR_CHARACTERS}")
    return _parsed(text, field)


@functools.lru_cache(maxsize=1024)
def _parsed(text: str, field: str) -> Select:
    found: list[CardRequirement] = []
    at = 0
    while at < len(text):
        term = _TERM.match(text, at)
        if term is None:
            raise InvalidDemand(
                field,
                f"{text[at:].strip()!r} is not understood; write for example: model in (A100, H100), memory > 40Gi",
            )
        at = term.end()
        if term["absent"]:
            found.append(requirement(term["without"], "DoesNotExist", (), field=field))
        elif operator := term["set"] or term["sign"]:
            values = term["values"] if term["set"] else term["value"]
            listed = tuple(value.strip() for value in values.split(","))
            found.append(requirement(term["key"], _SYMBOLS[operator], listed, field=field))
        else:
            found.append(requirement(term["key"], "Exists", (), field=field))
    if not 0 < len(found) <= MAX_REQUIREMENTS:
        raise InvalidDemand(field, f"has {len(found)} requirements; write 1 to {MAX_REQUIREMENTS}, or remove it")
    return tuple(found)


def preference(text: str, *, field: str) -> str:
    """Return the text if it is one of PREFERENCES. Raises InvalidDemand."""
    if text not in PREFERENCES:
        raise InvalidDemand(field, f"{text!r} is not one of {', '.join(PREFERENCES)}")
    return text


@functools.lru_cache(maxsize=16_384)
def selects(select: Select, kind: CardKind) -> bool:
    """Return whether a card of this kind meets every requirement."""
    return all(_meets(kind, one) for one in select)


def _meets(kind: CardKind, one: CardRequirement) -> bool:
    if one.key == EXPRESSION:
        return not any(objection(value, kind) for value in one.values)
    attribute = _attribute(one.key)
    if attribute is None:
        words = _WORDS[one.key](kind)
        is_among = _has_text if one.key == MODEL_TEXT else _is_model
        has, among = bool(words), any(is_among(words, value) for value in one.values)
        above = below = False
    else:
        number = attribute.of(kind)
        has = number is not None
        wanted = [attribute.read(value) for value in one.values]
        among = has and number in wanted
        limit = wanted[0] if wanted else None
        above = number is not None and limit is not None and number > limit
        below = number is not None and limit is not None and number < limit
    return {"In": among, "NotIn": not among, "Gt": above, "Lt": below, "Exists": has, "DoesNotExist": not has}[
        one.operator
    ]


@functools.lru_cache(maxsize=4096)
def _is_model(model: str, value: str) -> bool:
    """Return whether the words of `value` follow one another in `model`: "A100" and "A100-SXM4" match "NVIDIA
    A100-SXM4-80GB", "A10" does not."""
    words, wanted = (re.split(r"[^a-z0-9]+", text.lower().strip()) for text in (model, value))
    return any(words[at : at + len(wanted)] == wanted for at in range(len(words) - len(wanted) + 1))


def _has_text(model: str, value: str) -> bool:
    """Return whether the text is a part of the model's name, in any case."""
    return value.lower() in model.lower()


def mismatch(select: Select, kind: CardKind) -> str | None:
    """Return the first requirement that a card of this kind does not meet, in words; None if it meets all."""
    for one in select:
        if one.key == EXPRESSION and (why := next(filter(None, (objection(text, kind) for text in one.values)), "")):
            return why
        if not _meets(kind, one):
            values = " or ".join(one.values)
            return {
                "In": f"{one.key} is not {values}",
                "NotIn": f"{one.key} is {values}",
                "Gt": f"{one.key} is not above {values}",
                "Lt": f"{one.key} is not below {values}",
                "Exists": f"{one.key} is not known",
                "DoesNotExist": f"{one.key} is present",
            }[one.operator]
    return None


def describe_selection(select: Select, prefer: str) -> str:
    """Describe a selection in words, such as " with model A100 or H100 and memory above 40Gi, the strongest"."""
    words = {"In": "", "NotIn": "not ", "Gt": "above ", "Lt": "below "}
    said = [
        f"selectors {' && '.join(one.values)}"
        if one.key == EXPRESSION
        else f"{'any' if one.operator == 'Exists' else 'no'} {one.key}"
        if one.operator in ("Exists", "DoesNotExist")
        else f"{one.key} {words[one.operator]}{' or '.join(one.values)}"
        for one in select
    ]
    return (f" with {' and '.join(said)}" if said else "") + (f", the {prefer}" if prefer else "")
