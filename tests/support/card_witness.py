"""What is wrong with what lies on cards, by what the API server holds alone: rules written anew, not the ledger's."""

import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import msgspec

from egpu.api import names
from egpu.api.allocation import ContainerAllocation, decode_allocation
from egpu.api.mig import InstancePlace, InstanceProfile
from support.fake_api import FakeAPI, Json
from support.mixed_demands import BESIDE, WHOLE


@dataclass(frozen=True)
class Held:
    """A part of a card: who has it, what may lie beside it, and how much it is."""

    who: str
    beside: str
    core: int
    memory_mib: int
    instance: InstancePlace | None
    by_driver: bool


@dataclass(frozen=True)
class KnownCard:
    """`profiles`: what a card in MIG mode can be cut into, none of any other; `limits`: whether its driver limits
    memory by control group."""

    memory_mib: int
    profiles: Sequence[InstanceProfile]
    limits: bool


def holdings(api: FakeAPI) -> dict[str, list[Held]]:
    """Who has what of each card, by its UUID. What a claim has, its pods do not have once more."""
    found: dict[str, list[Held]] = {}
    claimed: set[str] = set()
    for claim in api.all("elasticgpuclaims"):
        given = (claim.get("status") or {}).get("allocation")
        if given:
            claimed.add(claim["metadata"]["name"])
            container = msgspec.convert(given["container"], ContainerAllocation)
            _add(found, f"claim {claim['metadata']['name']}", claim["metadata"]["annotations"][BESIDE], container)
    for pod in placed(api):
        beside = json.loads(pod["metadata"]["annotations"][BESIDE])
        for name, container in containers(pod).items():
            if container.claim not in claimed:
                _add(found, f"{pod['metadata']['name']}/{name}", beside[name], container)
    return found


def placed(api: FakeAPI) -> list[Json]:
    """Pods with cards that have not ended."""
    bound = [pod for pod in api.all("pods") if pod["spec"].get("nodeName")]
    return [pod for pod in bound if pod["status"]["phase"] not in ("Succeeded", "Failed")]


def containers(pod: Json) -> Mapping[str, ContainerAllocation]:
    return decode_allocation(pod["metadata"]["annotations"][names.ALLOCATION]).containers


def _add(found: dict[str, list[Held]], who: str, beside: str, given: ContainerAllocation) -> None:
    for share in given.cards:
        by_driver = given.memory_isolation == "driver"
        held = Held(who, beside, share.core, share.memory_mib, share.instance, by_driver)
        found.setdefault(share.uuid, []).append(held)


def wrong_with(card: KnownCard, held: Sequence[Held]) -> Iterator[str]:
    """What cannot be of so much on one card."""
    kinds = {one.beside for one in held}
    if len(kinds) > 1 or (WHOLE in kinds and len(held) > 1):
        yield "what lies beside each other should not: " + "; ".join(f"{one.who} beside {one.beside}" for one in held)
    if sum(one.core for one in held) > 100 or sum(one.memory_mib for one in held) > card.memory_mib:
        yield f"more is given out than there is: {held}"
    if any(one.by_driver for one in held) and not card.limits:
        yield f"its driver limits no memory: {held}"
    for one in held:
        if (one.instance is not None) != bool(card.profiles) or (one.instance is not None) != (one.beside == "mig"):
            yield f"{one} is no part of such a card"
    yield from _wrong_geometry(card.profiles, [one.instance for one in held if one.instance is not None])


def _wrong_geometry(profiles: Sequence[InstanceProfile], places: Sequence[InstancePlace]) -> Iterator[str]:
    """Slice by slice."""
    possible = {(each.name, start, each.size) for each in profiles for start in each.starts}
    yield from (f"{place} is no place of the card" for place in places if _as_triple(place) not in possible)
    slices = Counter(at for place in places for at in range(place.start, place.start + place.size))
    if any(count > 1 for count in slices.values()):
        yield f"instances overlap: {', '.join(map(str, places))}"
    most = {each.name: each.most for each in profiles}
    for name, count in Counter(place.profile for place in places).items():
        if count > most.get(name, 0):
            yield f"{count} instances of {name}"


def _as_triple(place: InstancePlace) -> tuple[str, int, int]:
    return place.profile, place.start, place.size
