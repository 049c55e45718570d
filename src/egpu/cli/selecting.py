"""Row selection and the summary line of `egpu get`."""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from enum import StrEnum
from fnmatch import fnmatchcase
from typing import Any

from egpu.cli.output import Table
from egpu.cli.snapshot import Snapshot
from egpu_base.api.objects import Object
from egpu_base.errors import InvalidInput

Record = Mapping[str, Any]


class What(StrEnum):
    """The kinds that `egpu get` lists."""

    NODES = "nodes"
    GPUS = "gpus"
    CLAIMS = "claims"
    PODS = "pods"
    LEASES = "leases"
    SERVERS = "servers"


KEYS: Mapping[What, Sequence[str]] = {
    What.NODES: ("node",),
    What.GPUS: ("node", "uuid"),
    What.CLAIMS: ("namespace", "name"),
    What.PODS: ("namespace", "pod", "container"),
}
"""The fields that identify a record."""
KNOWN: Mapping[What, frozenset[str]] = {
    What.NODES: frozenset({"node", "labels", "model", "free"}),
    What.GPUS: frozenset({"node", "labels", "model", "free", "mode"}),
    What.CLAIMS: frozenset({"node", "labels"}),
    What.PODS: frozenset({"node", "labels"}),
    What.LEASES: frozenset(),
    What.SERVERS: frozenset(),
}
"""The options that select rows of each kind."""


@dataclass(frozen=True, kw_only=True)
class Selection:
    """Conditions for rows. `node`: names, with the wildcards `*` and `?`. `labels`: a selector in kubectl's syntax, for
    labels of a claim or pod, or of a card's node. `model`: a part of the name, upper or lower case."""

    node: Sequence[str] = ()
    labels: str = ""
    model: str = ""
    mode: str = ""
    free: bool = False

    def check(self, what: What) -> None:
        """Raise InvalidInput for an option that does not apply to `what`."""
        for name in (field.name for field in fields(self)):
            if getattr(self, name) and name not in KNOWN[what]:
                raise InvalidInput(name, f"{what} cannot be selected by this option. Leave it out")

    def of(self, what: What, table: Table, snapshot: Snapshot) -> Table:
        """Return the selected rows. Raises InvalidInput for an invalid selector."""
        tests = list[Callable[[Record], bool]]()
        if self.node:
            tests.append(lambda record: any(fnmatchcase(record["node"] or "", each) for each in self.node))
        if self.labels:
            chosen, key = self._labelled(what, snapshot), KEYS[what][: 1 if what is What.GPUS else 2]
            tests.append(lambda record: tuple(record[part] for part in key) in chosen)
        if self.model:
            tests.append(lambda record: any(self.model.lower() in model.lower() for model in _models(record)))
        if self.mode:
            tests.append(lambda record: self.mode in (record["mode"], record["mode"].rpartition("/")[2]))
        if self.free:
            tests.append(_is_free)
        return table.where(lambda record: all(test(record) for test in tests)) if tests else table

    def _labelled(self, what: What, snapshot: Snapshot) -> set[tuple[str, ...]]:
        from egpu_base.kubernetes.label_selectors import label_selector  # slow to load, and rarely needed

        try:
            matches = label_selector(self.labels)
        except ValueError as error:
            raise InvalidInput("selector", str(error)) from error
        by_kind: Mapping[What, Iterable[Object]] = {What.CLAIMS: snapshot.claims, What.PODS: snapshot.pods}
        found = [
            one for one in by_kind.get(what, snapshot.nodes) if matches is None or matches(one.metadata.labels or {})
        ]
        return {(one.namespace, one.name) if what in by_kind else (one.name,) for one in found}


def _models(record: Record) -> Sequence[str]:
    return record["models"] if "models" in record else [record["model"]]


def _is_free(record: Record) -> bool:
    """Return whether a card is unused and takes work, or whether a node has an unused card."""
    if "freeCards" in record:
        return record["freeCards"] > 0
    takes_work = (
        record["healthy"] and not record["cordoned"] and not record["byResourceClaims"] and not record["contested"]
    )
    return record["mode"] == "free" and takes_work


def summary(what: What, records: Sequence[Record]) -> str:
    """Return the totals of the rows in one line."""
    match what:
        case What.GPUS:
            free = sum(_is_free(one) for one in records)
            nodes = len({one["node"] for one in records})
            counted = f"{_count(len(records), 'card')} on {_count(nodes, 'node')}, {free} free"
            return f"{counted}; {_given(records, len(records))}"
        case What.NODES:
            cards, free = sum(one["cards"] for one in records), sum(one["freeCards"] for one in records)
            ready = sum(one["status"] == "Ready" for one in records)
            counted = f"{_count(len(records), 'node')}, {ready} ready; {_count(cards, 'card')}, {free} free"
            return f"{counted}; {_given(records, cards)}"
        case What.CLAIMS | What.PODS:
            phases = Counter(one["phase"] or "Pending" for one in records).most_common()
            kind = "claim" if what is What.CLAIMS else "container"
            return f"{_count(len(records), kind)}: {', '.join(f'{count} {phase}' for phase, count in phases)}"
        case What.LEASES | What.SERVERS:
            raise AssertionError(f"{what} belong to a pool, not to a cluster")


def _given(records: Sequence[Record], cards: int) -> str:
    core = sum(one["corePercentGiven"] for one in records) / max(cards, 1)
    memory = sum(one["memoryMiB"] for one in records)
    share = 100 * sum(one["memoryMiBGiven"] for one in records) / max(memory, 1)
    return f"{core:.0f} % of compute and {share:.0f} % of memory allocated"


def _count(number: int, what: str) -> str:
    return f"{number} {what}" if number == 1 else f"{number} {what}s"
