"""Links between the cards of a node, and which set of several cards has the fastest links.

A set is as good as its slowest pair, then as the sum over its pairs: programs send data around a ring of links.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Final, Protocol


class Linked(Protocol):
    """A card, as `egpu.core.placement.ledger.Card`."""

    @property
    def uuid(self) -> str: ...

    @property
    def links(self) -> Mapping[str, str]: ...


Ranks = tuple[tuple[int, ...], ...]
"""The speed of the link between each pair of columns; more is faster, 0 is unknown."""

NVLINK: Final = "nvlink"
_RANKS: Final = {"SYS": 1, "NODE": 2, "PHB": 3, "PXB": 4, "PIX": 5, "internal": 5}
"""The kinds of links that NVML reports: between sockets, within a NUMA node, over the host bridge, over several PCIe
switches, over one switch, on one board. NVLink is faster than all of them."""
_NVLINK_RANK: Final = 6
LEAST: Final[Mapping[str, int]] = {NVLINK: _NVLINK_RANK, "pcie": _RANKS["PHB"], "numa": _RANKS["NODE"]}
"""The links that a demand may require of every pair, with the least rank of each."""
WORDS: Final[Mapping[str, str]] = {
    NVLINK: "joined by NVLink",
    "pcie": "under one PCIe host bridge",
    "numa": "on one NUMA node",
}
MAX_STEPS: Final = 20_000
"""Cards tried per node before the best set so far is taken. All-to-all links need a handful, eight of sixteen cards in
a ring some thousands. Beyond, a pod that requires links may have to wait although a set exists."""


def rank(kind: str) -> int:
    """Return the speed of a link of this kind, as agents publish it; 0 for an unknown kind."""
    return _NVLINK_RANK if kind.upper().startswith("NV") else _RANKS.get(kind, 0)


def ranks_of(cards: Sequence[Linked]) -> Ranks | None:
    """Return the links of the cards, in the order of columns; None if no link is known."""
    if not any(card.links for card in cards):
        return None
    return tuple(tuple(rank(card.links.get(other.uuid, "")) for other in cards) for card in cards)


def link_domains(cards: Sequence[Linked]) -> list[int]:
    """Return, per column, the first column that NVLink joins with it, directly or over other cards; -1 for none."""
    domains = list(range(len(cards)))
    places = {card.uuid: column for column, card in enumerate(cards)}
    for column, card in enumerate(cards):
        for uuid, kind in card.links.items():
            if rank(kind) == _NVLINK_RANK and uuid in places:
                low, high = sorted((domains[column], domains[places[uuid]]))
                domains = [low if one == high else one for one in domains]
    return [domain if domains.count(domain) > 1 else -1 for domain in domains]


def joined(ranks: Ranks | None, columns: Iterable[int], links: str) -> bool:
    """Return whether every pair of the columns meets the requirement (a key of LEAST, or "" for none)."""
    if not links:
        return True
    chosen = list(columns)
    if ranks is None:
        return len(chosen) < 2
    return all(ranks[a][b] >= LEAST[links] for at, a in enumerate(chosen) for b in chosen[:at])


def slowest(cards: Sequence[Linked]) -> str:
    """Return the kind of the slowest link; "" for fewer than two cards, or if it is unknown."""
    kinds = [card.links.get(other.uuid, "") for at, card in enumerate(cards) for other in cards[:at]]
    return min(kinds, key=rank, default="")


class _Search:
    """A depth-first search over sets, in the order of the candidates, that skips sets that cannot be better."""

    def __init__(self, ranks: Ranks, candidates: Sequence[int], count: int, least: int) -> None:
        self.ranks, self.candidates, self.count, self.least = ranks, candidates, count, least
        self.best: tuple[int, ...] | None = None
        self.value = (-1, -1)
        self.steps = 0
        self.top = max((ranks[a][b] for at, a in enumerate(candidates) for b in candidates[:at]), default=0)
        self.pairs = count * (count - 1) // 2

    def run(self, start: int, chosen: tuple[int, ...], slowest: int, total: int) -> None:
        if len(chosen) == self.count:
            if (slowest, total) > self.value:
                self.best, self.value = chosen, (slowest, total)
            return
        open_pairs = self.pairs - len(chosen) * (len(chosen) - 1) // 2
        for at in range(start, len(self.candidates) - (self.count - len(chosen)) + 1):
            if self.steps >= MAX_STEPS or (slowest, total + open_pairs * self.top) <= self.value:
                return
            self.steps += 1
            column = self.candidates[at]
            links = [self.ranks[column][other] for other in chosen]
            low = min(slowest, *links) if links else slowest
            if low >= self.least:
                self.run(at + 1, (*chosen, column), low, total + sum(links))


def best_set(ranks: Ranks, candidates: Sequence[int], count: int, links: str = "") -> tuple[int, ...] | None:
    """Return the `count` candidates with the fastest links, earlier candidates among equals. None if no set meets the
    requirement `links` (or none was found within bounds)."""
    search = _Search(ranks, candidates, count, LEAST[links] if links else 0)
    search.run(0, (), search.top, 0)
    return search.best
