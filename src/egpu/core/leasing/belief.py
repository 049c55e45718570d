"""The accepted parts of a server's report: its own cards, leases that the broker gave it, and leases that the broker
could have given it.

A lease is named after its key (`lease_name`), which only the broker and the lease's own servers know. A server that
reports a lease which the pool does not have from it must present the key that makes the name, so no server can report a
lease that runs elsewhere. An invented lease must at least fit on its cards, beside all others of the report.
"""

import dataclasses
import math
from typing import Final, NamedTuple

from msgspec.structs import replace

from egpu.api import names
from egpu.api.allocation import CardShare
from egpu.api.text import check_plain, escaped
from egpu.core.leasing.moves import is_second
from egpu.core.leasing.records import MOST_IDLE_SECONDS, LeaseRecord, Report, RunningLease, lease_name
from egpu.core.leasing.state import Lease
from egpu.core.leasing.table import LeaseTable
from egpu.core.placement.cards import Card
from egpu_base.errors import Refused

MAX_CARDS: Final = names.MAX_CARDS_PER_NODE
"""The most cards of one server."""
MAX_PARTS: Final = 8
"""The most servers of one lease: a client library connects to so many."""
MAX_TEXT: Final = 512
MAX_PRECISIONS: Final = 16
MAX_LIBRARIES: Final = 32
MAX_PREVENTS: Final = 16
"""Things of a program that prevent a move, as one answer names them."""
MAX_NUMBER: Final = 2**31


def believed(report: Report, table: LeaseTable, *, max_leases: int) -> tuple[Report, tuple[str, ...]]:
    """Return the report without the leases that are not accepted, and their names. The pool has at most `max_leases`.

    Raises Refused for values that none of our servers report.
    """
    _check(report)
    free = {card.uuid: _Left(100, card.memory_mib) for card in report.cards}
    possible = [one for one in report.leases if _is_possible(one)]
    granted = [one for one in possible if _was_granted(one.record, report.server, table)]
    for one in granted:
        _take(free, one.record)  # the pool granted it, whatever the room is now
    accepted = {(one.record.lease, one.record.place): one for one in granted}
    room = max_leases - len(table.leases)
    for one in possible:
        record, found = one.record, table.leases.get(one.record.lease)
        if (record.lease, record.place) in accepted or not _may_be_granted(one, found) or not _fits(free, record):
            continue
        if found is None:
            if room <= 0:
                continue
            room -= 1
        _take(free, record)
        accepted[record.lease, record.place] = one
    doubted = tuple(
        escaped(one.record.lease[:MAX_TEXT])
        for one in report.leases
        if (one.record.lease, one.record.place) not in accepted
    )
    leases = tuple(_plain(one) for one in accepted.values())
    return dataclasses.replace(report, leases=leases), doubted


def _was_granted(record: LeaseRecord, server: str, table: LeaseTable) -> bool:
    found = table.leases.get(record.lease)
    if found is None or found.key != record.key:
        return False
    part = found.parts.get(server)
    return (part is not None and part.place == record.place) or is_second(found, server, record.place)


def _may_be_granted(one: RunningLease, found: Lease | None) -> bool:
    """Return whether the broker may have granted this lease: the key fits, and no other server reports this part."""
    record = one.record
    if record.lease != lease_name(record.key) or not 0 <= record.part < record.parts <= MAX_PARTS:
        return False
    if found is None:
        return True
    if (found.key, found.peer, found.holder, found.request, found.expected_parts) != (
        record.key, record.peer, record.holder, record.request, record.parts
    ):  # fmt: skip
        return False
    if one.arriving or one.left:  # a second place, which another broker ordered
        second = found.second
        return found.is_learned and (second is None or (second.state == "left") == one.arriving)
    others = [part.running.record.part for part in found.parts.values() if part.running is not None]
    return len(found.parts) < record.parts and record.part not in others


class _Left(NamedTuple):
    """What is left of a card. Of its memory, `shared_mib` are room that leases share, as much as the largest needs."""

    core: int
    memory_mib: int
    shared_mib: int = 0

    def without(self, share: CardShare) -> "_Left":
        """Return what is left beside one more share."""
        own = share.resident_mib or share.memory_mib
        shared = max(self.shared_mib, share.memory_mib - own)
        return _Left(self.core - share.core, self.memory_mib - own - (shared - self.shared_mib), shared)


def _fits(free: dict[str, _Left], record: LeaseRecord) -> bool:
    """Return whether its cards, all different, have that much left."""
    return 0 < len(record.cards) == len({share.uuid for share in record.cards}) and all(
        share.uuid in free
        and share.core >= 1
        and share.memory_mib >= max(1, share.resident_mib)
        and min(free[share.uuid].without(share)[:2]) >= 0
        for share in record.cards
    )  # fmt: skip


def _take(free: dict[str, _Left], record: LeaseRecord) -> None:
    for share in record.cards:
        free[share.uuid] = free.get(share.uuid, _Left(0, 0)).without(share)


def _plain(one: RunningLease) -> RunningLease:
    """Return it with its words as people may see them."""
    departure, look = one.departure, one.look
    if departure is not None:
        departure = replace(departure, why=escaped(departure.why[:MAX_TEXT]))
    if look is not None:
        look = replace(look, prevents=tuple(escaped(word[:MAX_TEXT]) for word in look.prevents[:MAX_PREVENTS]))
    return replace(one, failure=escaped(one.failure[:MAX_TEXT]), departure=departure, look=look)


# --- what no server of ours says --------------------------------------------------------------------------------------


def _check(report: Report) -> None:
    for what in ("server", "address", "host", "instance", "directory", "confinement", "epoch"):
        check_plain(what, getattr(report, what), at_most=MAX_TEXT, empty=what != "server")
    if len(report.libraries) > MAX_LIBRARIES:
        raise Refused(f"libraries: {len(report.libraries)} of them; the most is {MAX_LIBRARIES}")
    for name, version in report.libraries.items():
        check_plain("library", name, at_most=MAX_TEXT)
        check_plain(f"library {name}", version, at_most=MAX_TEXT, empty=True)
    _check_number("link", report.link_mbps)
    _check_number("parking memory", report.parking_mib)
    if len(report.thrashing) > MAX_CARDS:
        raise Refused(f"thrashing: {len(report.thrashing)} cards; the most is {MAX_CARDS}")
    for uuid in report.thrashing:
        check_plain("card", uuid, at_most=MAX_TEXT)
    if len(report.cards) > MAX_CARDS or len({card.uuid for card in report.cards}) != len(report.cards):
        raise Refused(f"cards: {len(report.cards)} cards, or one of them twice; the most is {MAX_CARDS}")
    for card in report.cards:
        _check_card(card)


def _check_card(card: Card) -> None:
    check_plain("card", card.uuid, at_most=MAX_TEXT)
    check_plain("model", card.model, at_most=MAX_TEXT, empty=True)
    if not 1 <= card.memory_mib <= names.MAX_MEMORY_MIB:
        raise Refused(f"card {card.uuid}: {card.memory_mib} MiB")
    for number in (card.index, card.minor, card.numa + 1):
        _check_number(f"card {card.uuid}", number)
    if len(card.tflops) > MAX_PRECISIONS or len(card.links) > MAX_CARDS:
        raise Refused(f"card {card.uuid}: {len(card.tflops)} precisions, {len(card.links)} links")
    for text in (*card.tflops, *card.links, *card.links.values()):
        check_plain(f"card {card.uuid}", text, at_most=MAX_TEXT)
    if not all(math.isfinite(one) and 0 <= one <= names.MAX_TFLOPS for one in card.tflops.values()):
        raise Refused(f"card {card.uuid}: TFLOPS out of range")


def _is_possible(one: RunningLease) -> bool:
    """Return whether its texts and numbers are valid for a lease."""
    record = one.record
    numbers = [*one.occupied_mib, *one.used_mib, one.sessions, record.part, record.parts, record.place, one.parked_mib]
    if one.departure is not None:
        numbers.append(one.departure.place)
    if one.look is not None:
        numbers += [one.look.number, len(one.look.prevents)]
    texts = [record.lease, record.holder, record.peer, record.request, record.key]
    for share in record.cards:
        numbers += [share.index, share.minor, share.core, share.memory_mib, share.card_memory_mib, share.resident_mib]
        texts += [share.uuid, share.model]
    return (
        len(one.occupied_mib) == len(record.cards) <= MAX_CARDS
        and len(one.used_mib) <= MAX_CARDS
        and all(0 <= number <= MAX_NUMBER for number in numbers)
        and 0 <= record.park_idle_seconds <= MOST_IDLE_SECONDS
        and all(len(text) <= MAX_TEXT and text.isprintable() for text in texts)
    )


def _check_number(what: str, number: int) -> None:
    if not 0 <= number <= MAX_NUMBER:
        raise Refused(f"{what}: {number} is not between 0 and {MAX_NUMBER}")
