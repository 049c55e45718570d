"""Resizing of running slices: valid requests, the order that follows, and when it is in force.

Growth is counted first and allowed afterwards. Shrinking is allowed first and counted afterwards: the order keeps the
old size as `held` until the node reports that its policy pages have the new one. So no process can ever use more than
is counted, whichever component is killed, and both values are in the object that carries the allocation.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from msgspec.structs import replace

from egpu.api import names
from egpu.api.allocation import CardShare, ContainerAllocation, ContainerDemand, PodAllocation
from egpu.api.objects import ElasticGPUClaim, Slice, SliceInForce
from egpu.core.placement.card_usage import Usage, card_usage, limit_sums
from egpu.core.placement.ledger import Holder, Ledger
from egpu.core.provisioners import provisioner
from egpu_base.api.kubernetes import Pod
from egpu_base.api.quantities import parse_memory_mib
from egpu_base.errors import DoesNotFit, InvalidDemand, InvalidInput, NotSupported


@dataclass(frozen=True)
class Size:
    """The size of a slice on each of its cards, in percent and MiB; None leaves a value unchanged."""

    core: int | None = None
    memory_mib: int | None = None


def asked_sizes(pod: Pod) -> dict[str, Size]:
    """Return the sizes that a pod's annotations request, by container. Raises InvalidDemand."""
    known = {container.name for container in pod.all_containers}
    found: dict[str, Size] = {}
    for key, text in sorted(pod.annotations.items()):
        prefix = next((one for one in names.RESIZE_PREFIXES if key.startswith(one)), None)
        if prefix is not None:
            container, field = key.removeprefix(prefix), f"metadata.annotations[{key}]"
            if container not in known:
                raise InvalidDemand(field, "names no container of this pod")
            size = parse_size(text, field)
            if found.setdefault(container, size) != size:
                raise InvalidDemand(field, f"container {container} has another size in another annotation; keep one")
    return found


def parse_size(text: str, field: str) -> Size:
    """Parse "core=40, memory=8Gi"; one of the two is optional. Raises InvalidDemand."""
    parsed: dict[str, int] = {}
    for part in text.split(","):
        name, equals, value = (word.strip() for word in part.partition("="))
        if not equals or name not in ("core", "memory") or name in parsed:
            raise InvalidDemand(field, f"{text!r} is not of the form core=PERCENT, memory=AMOUNT")
        if name == "memory":
            try:
                parsed[name] = parse_memory_mib(value, field=field)
            except InvalidInput as error:
                raise InvalidDemand(field, str(error)) from error
        elif not _is_whole(value, most=100) or int(value) < 1:
            raise InvalidDemand(field, f"core={value[:16]} is not a share of one card; give 1 to 100 percent")
        else:
            parsed[name] = int(value)
    if not 1 <= parsed.get("memory", 1) <= names.MAX_MEMORY_MIB:
        raise InvalidDemand(field, f"memory is not between 1 and {names.MAX_MEMORY_MIB} MiB")
    return Size(parsed.get("core"), parsed.get("memory"))


def _is_whole(text: str, *, most: int) -> bool:
    """Return whether the text is a whole number from 0 to `most`. Python refuses very long ones, so they are not
    read."""
    return text.isdecimal() and len(text) <= len(str(most)) and int(text) <= most


def asked_within(annotations: Mapping[str, str]) -> float | None:
    """Return the seconds to release what exceeds a smaller size; None: no limit. Raises InvalidDemand."""
    text = annotations.get(names.SHRINK_WITHIN)
    if text is None:
        return None
    if not _is_whole(text, most=names.MAX_SHRINK_SECONDS):
        reason = f"{text[:16]!r} is not a number of seconds up to {names.MAX_SHRINK_SECONDS}"
        raise InvalidDemand(f"metadata.annotations[{names.SHRINK_WITHIN}]", reason)
    return float(text)


def refused_size(old: Pod | None, pod: Pod) -> list[InvalidDemand]:
    """Return the problem of the sizes that a pod's annotations request, if they are new and not valid."""
    before = {} if old is None else old.annotations
    asks = (*names.RESIZE_PREFIXES, names.SHRINK_WITHIN)
    if not any(key.startswith(asks) and before.get(key) != value for key, value in pod.annotations.items()):
        return []
    try:
        asked_sizes(pod)
        asked_within(pod.annotations)
    except InvalidDemand as error:
        return [error]
    return []


def unsized(share: Slice | None) -> Slice | None:
    """Return the slice of a claim without its size."""
    return None if share is None else replace(share, core=0, memory_mib=0)


def check_edit(claim: ElasticGPUClaim, old: ElasticGPUClaim | None, demand: ContainerDemand) -> None:
    """Check that `old` may become `claim`, which asks for `demand`. Raises InvalidDemand for a change that a bound
    claim never allows; room is checked later."""
    held = old.status.allocation if old is not None else None
    if old is None or held is None:
        return
    if old.spec.selector != claim.spec.selector:
        raise InvalidDemand("spec.selector", "the claim is bound, so its selector cannot change; create another claim")
    asked_within(claim.annotations)
    try:
        check_same_cards(held.container, demand)
        if not held.container.exclusive:
            check_resizable(held.container)
    except NotSupported as error:
        raise InvalidDemand("spec.resources", f"the claim is bound and cannot change to this size: {error}") from error


def check_resizable(container: ContainerAllocation) -> None:
    """Check that a slice has a variable size. Raises NotSupported."""
    if container.exclusive:
        raise NotSupported("it has whole cards, whose size is fixed")
    if not provisioner(container.provisioner).resizable:
        raise NotSupported(f"{container.provisioner} provides slices of fixed sizes")
    if any(share.resident_mib for share in container.cards):
        raise NotSupported("it shares room on its card with other slices (parkingResident), which fixes its size")
    if container.memory_isolation:
        raise NotSupported("the driver limits its memory and cannot change the limit of a running container")


def check_same_cards(container: ContainerAllocation, demand: ContainerDemand) -> None:
    """Check that `demand` keeps the number of cards, and whole cards whole. Raises NotSupported."""
    if demand.cards != len(container.cards) or demand.exclusive != container.exclusive:
        whole = "whole" if container.exclusive else "shared"
        raise NotSupported(f"it has {len(container.cards)} {whole} cards, and neither number nor kind can change")


def sized(container: ContainerAllocation, size: Size) -> tuple[CardShare, ...]:
    """Return the shares in this size. Raises NotSupported."""
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
    """Return the shares that `demand` takes of the same cards of `node`.

    Raises NotSupported for another number of cards, or whole ones; DoesNotFit for more than such a card has, and while
    a card is missing.
    """
    check_same_cards(container, demand)
    row = ledger.row(node)
    columns = {card.uuid: column for column, card in enumerate(ledger.cards(node))}
    if row is None or any(share.uuid not in columns for share in container.cards):
        raise DoesNotFit(f"one of its cards on node {node} is missing; resizing is tried again when it is back")
    # The selection was checked when the cards were chosen.
    needs = provisioner(demand.provisioner).needs(replace(demand, select=()), ledger.totals(row))
    shares: list[CardShare] = []
    for share in container.cards:
        column = columns[share.uuid]
        if not needs.possible[column]:
            raise DoesNotFit(f"card {share.index} of node {node} never has as much")
        shares.append(replace(share, core=int(needs.core[column]), memory_mib=int(needs.memory_mib[column])))
    if tuple(shares) != container.cards:
        check_resizable(container)
    return tuple(shares)


def ordered(
    container: ContainerAllocation,
    shares: tuple[CardShare, ...],
    within_seconds: float | None,
    *,
    core_limit: int | None = None,
) -> ContainerAllocation:
    """Return the allocation with new `shares` of its cards, counted as the larger of both sizes, and another limit of
    compute; None: the same."""
    both = tuple(
        replace(old, core=max(old.core, new.core), memory_mib=max(old.memory_mib, new.memory_mib))
        for old, new in zip(container.counted, shares, strict=True)
    )
    return replace(
        container,
        cards=shares,
        core_limit=container.core_limit if core_limit is None else core_limit,
        revision=container.revision + 1,
        held=() if both == shares else both,
        within_seconds=within_seconds,
    )


def settled(container: ContainerAllocation) -> ContainerAllocation:
    """Return the allocation after its node has reported that only `cards` is allowed and used."""
    return replace(container, held=())


def is_in_force(container: ContainerAllocation, user: tuple[str, str], said: Iterable[Iterable[SliceInForce]]) -> bool:
    """Return whether a smaller size is in force for `user` (pod UID, container), by the node's report for each card."""
    return all(
        any(
            (one.pod, one.container) == user and one.revision >= container.revision and not one.over_mib for one in card
        )
        for card in said
    )


def check_room(ledger: Ledger, holder: Holder, allocation: PodAllocation) -> None:
    """Check that `holder` may hold `allocation` in place of its current one. Raises DoesNotFit, with the numbers.

    Less of a card is always possible; more only of a healthy one.
    """
    before = ledger.holding(holder)
    had = {} if before is None else card_usage(before)
    for key, usage in card_usage(allocation).items():
        old = had.get(key)
        if old is not None and _is_within(usage, old):
            continue
        card = next((one for one in ledger.cards(key.node) if one.uuid == key.uuid), None)
        if card is None:
            raise DoesNotFit(f"card {key.uuid} of node {key.node} is missing")
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
        limits, most = limit_sums((*others, usage))
        if most and limits > most:
            raise DoesNotFit(
                f"card {card.index} of node {key.node} would have slices with limits of {limits} % of compute, and a "
                f"class of them allows {most} %"
            )


def _is_within(usage: Usage, old: Usage) -> bool:
    """Return whether it is no more of anything."""
    return usage.core <= old.core and usage.memory_mib <= old.memory_mib and usage.core_limit <= old.core_limit


def size_text(container: ContainerAllocation) -> str:
    """Return the size on each card, for people."""
    return ", ".join(f"{share.core} % and {share.memory_mib} MiB of card {share.index}" for share in container.cards)
