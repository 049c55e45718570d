"""Slices that change their size while they run: what may be asked, what is then ordered, and when it is in force.

More is counted first and allowed afterwards; less is allowed first and counted afterwards: an order for less keeps what
it had as `held` until the node says that its pages are as small. So at every moment, whoever is killed, no more is
allowed than is counted, and both are in the object that carries the allocation.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from msgspec.structs import replace

from egpu.api import names
from egpu.api.allocation import CardShare, ContainerAllocation, ContainerDemand, PodAllocation
from egpu.api.kubernetes import Pod
from egpu.api.objects import ElasticGPUClaim, Slice, SliceInForce
from egpu.api.quantities import parse_memory_mib
from egpu.core.placement.ledger import Holder, Ledger
from egpu.core.placement.usage import card_usage
from egpu.core.provisioners import provisioner
from egpu.errors import DoesNotFit, InvalidDemand, InvalidInput, NotSupported


@dataclass(frozen=True)
class Size:
    """Of a slice on each of its cards: percent and MiB; None leaves it as it is."""

    core: int | None = None
    memory_mib: int | None = None


def resize_field(container: str) -> str:
    """The annotation by which a pod's owner resizes a container, as kubectl users write it."""
    return f"metadata.annotations[{names.RESIZE_PREFIX}{container}]"


def asked_sizes(pod: Pod) -> dict[str, Size]:
    """What the annotations of a pod ask its containers to be resized to, by container. Raises InvalidDemand."""
    known = {container.name for container in pod.all_containers}
    found: dict[str, Size] = {}
    for key, text in sorted(pod.annotations.items()):
        if key.startswith(names.RESIZE_PREFIX):
            container = key.removeprefix(names.RESIZE_PREFIX)
            if container not in known:
                raise InvalidDemand(resize_field(container), "names no container of this pod")
            found[container] = parse_size(text, resize_field(container))
    return found


def parse_size(text: str, field: str) -> Size:
    """Read "core=40, memory=8Gi", of which one may be left out. Raises InvalidDemand."""
    given: dict[str, int] = {}
    for part in text.split(","):
        name, equals, value = (word.strip() for word in part.partition("="))
        if not equals or name not in ("core", "memory") or name in given:
            raise InvalidDemand(field, f"{text!r} is not of the form core=PERCENT, memory=AMOUNT")
        if name == "memory":
            try:
                given[name] = parse_memory_mib(value, field=field)
            except InvalidInput as error:
                raise InvalidDemand(field, str(error)) from error
        elif not _is_whole(value, most=100) or int(value) < 1:
            raise InvalidDemand(field, f"core={value[:16]} is not a share of one card; give 1 to 100 percent")
        else:
            given[name] = int(value)
    if not 1 <= given.get("memory", 1) <= names.MAX_MEMORY_MIB:
        raise InvalidDemand(field, f"memory is not between 1 and {names.MAX_MEMORY_MIB} MiB")
    return Size(given.get("core"), given.get("memory"))


def _is_whole(text: str, *, most: int) -> bool:
    """Whether this is a whole number from 0 to `most`. Longer texts are not read: Python refuses very long ones."""
    return text.isdecimal() and len(text) <= len(str(most)) and int(text) <= most


def asked_within(annotations: Mapping[str, str]) -> float | None:
    """Seconds in which to give back what is beyond a smaller size; None: no end. Raises InvalidDemand."""
    text = annotations.get(names.SHRINK_WITHIN)
    if text is None:
        return None
    if not _is_whole(text, most=names.MAX_SHRINK_SECONDS):
        reason = f"{text[:16]!r} is not a number of seconds up to {names.MAX_SHRINK_SECONDS}"
        raise InvalidDemand(f"metadata.annotations[{names.SHRINK_WITHIN}]", reason)
    return float(text)


def refused_size(old: Pod | None, pod: Pod) -> list[InvalidDemand]:
    """What is wrong with the sizes that a pod's annotations ask for, if they are new; nothing where nothing is."""
    before = {} if old is None else old.annotations
    asks = (names.RESIZE_PREFIX, names.SHRINK_WITHIN)
    if not any(key.startswith(asks) and before.get(key) != value for key, value in pod.annotations.items()):
        return []
    try:
        asked_sizes(pod)
        asked_within(pod.annotations)
    except InvalidDemand as error:
        return [error]
    return []


def unsized(share: Slice | None) -> Slice | None:
    """All of a claim's slice but its size."""
    return None if share is None else replace(share, core=0, memory_mib=0)


def check_edit(claim: ElasticGPUClaim, old: ElasticGPUClaim | None, demand: ContainerDemand) -> None:
    """Whether `old` may become `claim`, which asks for `demand`. Raises InvalidDemand for what a bound claim can never
    be; whether there is room for more is seen later."""
    held = old.status.allocation if old is not None else None
    if old is None or held is None:
        return
    if old.spec.selector != claim.spec.selector:
        raise InvalidDemand("spec.selector", "the claim is bound to cards that were selected; make another claim")
    asked_within(claim.annotations)
    try:
        check_same_cards(held.container, demand)
        if not held.container.exclusive:
            check_resizable(held.container)
    except NotSupported as error:
        raise InvalidDemand("spec.resources", f"the claim is bound and cannot be resized so: {error}") from error


def check_resizable(container: ContainerAllocation) -> None:
    """Raises NotSupported for a slice that has no size to change."""
    if container.exclusive:
        raise NotSupported("it has whole cards, whose size is what it is")
    if not provisioner(container.provisioner).resizable:
        raise NotSupported(f"{container.provisioner} gives slices of fixed sizes")
    if container.memory_isolation:
        raise NotSupported("the driver holds it to its memory, and keeps the limit that it started with")


def check_same_cards(container: ContainerAllocation, demand: ContainerDemand) -> None:
    """Raises NotSupported where `demand` is for another number of cards, or for whole ones and these are not."""
    if demand.cards != len(container.cards) or demand.exclusive != container.exclusive:
        whole = "whole" if container.exclusive else "shared"
        raise NotSupported(f"it has {len(container.cards)} {whole} cards, and neither number nor kind can change")


def sized(container: ContainerAllocation, size: Size) -> tuple[CardShare, ...]:
    """Its shares, were they of this size. Raises NotSupported."""
    check_resizable(container)
    return tuple(
        replace(
            share,
            core=share.core if size.core is None else size.core,
            memory_mib=share.memory_mib if size.memory_mib is None else size.memory_mib,
        )
        for share in container.cards
    )


def demanded(
    container: ContainerAllocation, demand: ContainerDemand, ledger: Ledger, node: str
) -> tuple[CardShare, ...]:
    """Its shares, were they what `demand` takes of those same cards of `node`.

    Raises NotSupported for another number of cards, or whole ones; DoesNotFit for what such a card never has, and while
    a card is away.
    """
    check_same_cards(container, demand)
    row = ledger.row(node)
    columns = {card.uuid: column for column, card in enumerate(ledger.cards(node))}
    if row is None or any(share.uuid not in columns for share in container.cards):
        raise DoesNotFit(f"a card of it on node {node} is away; it is tried again when it is back")
    # What the cards must be was asked when they were chosen.
    needs = provisioner(demand.provisioner).needs(replace(demand, select=()), ledger.totals(row))
    shares: list[CardShare] = []
    for share in container.cards:
        column = columns[share.uuid]
        if not needs.possible[column]:
            raise DoesNotFit(f"card {share.index} of node {node} can never give so much")
        shares.append(replace(share, core=int(needs.core[column]), memory_mib=int(needs.memory_mib[column])))
    if tuple(shares) != container.cards:
        check_resizable(container)
    return tuple(shares)


def ordered(
    container: ContainerAllocation, shares: tuple[CardShare, ...], within_seconds: float | None
) -> ContainerAllocation:
    """The allocation once it is to have `shares` of its cards: counted as the larger of what it may have by then."""
    both = tuple(
        replace(old, core=max(old.core, new.core), memory_mib=max(old.memory_mib, new.memory_mib))
        for old, new in zip(container.counted, shares, strict=True)
    )
    return replace(
        container,
        cards=shares,
        revision=container.revision + 1,
        held=() if both == shares else both,
        within_seconds=within_seconds,
    )


def settled(container: ContainerAllocation) -> ContainerAllocation:
    """The allocation once its cards' node has said that no more than `cards` is allowed and used."""
    return replace(container, held=())


def is_in_force(container: ContainerAllocation, user: tuple[str, str], said: Iterable[Iterable[SliceInForce]]) -> bool:
    """Whether a smaller size holds for `user` (pod UID, container), by what the node says of each of the cards."""
    return all(
        any(
            (one.pod, one.container) == user and one.revision >= container.revision and not one.over_mib for one in card
        )
        for card in said
    )


def check_room(ledger: Ledger, holder: Holder, allocation: PodAllocation) -> None:
    """Whether `holder` may hold `allocation` in place of what it holds. Raises DoesNotFit, with the numbers.

    Taking less of a card is always possible; more only of one that takes new work.
    """
    before = ledger.holding(holder)
    had = {} if before is None else card_usage(before)
    for key, usage in card_usage(allocation).items():
        old = had.get(key)
        if old is not None and usage.core <= old.core and usage.memory_mib <= old.memory_mib:
            continue
        card = next((one for one in ledger.cards(key.node) if one.uuid == key.uuid), None)
        if card is None:
            raise DoesNotFit(f"card {key.uuid} of node {key.node} is away")
        if not card.healthy:
            raise DoesNotFit(f"card {card.index} of node {key.node} {card.why_not}")
        others = [one for who, one in ledger.card_holders(key.node, key.uuid).items() if who != holder]
        core = 100 - sum(one.core for one in others)
        memory_mib = card.memory_mib - sum(one.memory_mib for one in others)
        if usage.core > core or usage.memory_mib > memory_mib:
            raise DoesNotFit(
                f"card {card.index} of node {key.node} has {core} % and {memory_mib} MiB for it, "
                f"{usage.core} % and {usage.memory_mib} MiB are asked for"
            )


def size_text(container: ContainerAllocation) -> str:
    """For people: what it has of each of its cards."""
    return ", ".join(f"{share.core} % and {share.memory_mib} MiB of card {share.index}" for share in container.cards)
