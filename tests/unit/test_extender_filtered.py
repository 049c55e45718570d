"""What the extender remembers of its filters: bits per node, for a while, and only so much."""

from collections.abc import Sequence

import numpy as np
import pytest

from egpu.apps.extender import filter_results
from egpu.apps.extender.filter_results import REMEMBER_SECONDS, FilterResults
from egpu.core.placement.node_names import KnownNodes, NodeNames
from egpu_base.errors import Conflict

KNOWN = KnownNodes()


def note(memory: FilterResults, uid: str, nodes: Sequence[str], known: KnownNodes = KNOWN) -> None:
    """It was asked about one node more, which does not fit."""
    asked = NodeNames(["full", *nodes], known)
    memory.note(uid, asked, np.arange(len(asked)) > 0)


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def test_the_newest_answer_counts_and_no_other_node() -> None:
    memory = FilterResults()
    note(memory, "a", [f"n{number}" for number in range(20)])
    note(memory, "b", ["n17"])
    for node in ("n0", "n8", "n19"):
        memory.check("a", node)
    memory.check("b", "n17")
    for uid, node in (("b", "n16"), ("b", "n18"), ("a", "n20"), ("a", "full"), ("c", "n0")):
        with pytest.raises(Conflict, match="schedule it again"):
            memory.check(uid, node)
    note(memory, "a", ["n1"])
    with pytest.raises(Conflict):
        memory.check("a", "n0")


def test_an_answer_is_forgotten_with_time_and_with_too_many_others(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock()
    memory = FilterResults(clock)
    note(memory, "a", ["n"])
    clock.now = REMEMBER_SECONDS
    memory.check("a", "n")
    clock.now += 1
    with pytest.raises(Conflict):
        memory.check("a", "n")
    monkeypatch.setattr(filter_results, "MAX_PODS", 2)
    for uid in ("b", "c", "d"):
        note(memory, uid, ["n"])
    with pytest.raises(Conflict):
        memory.check("b", "n")
    note(memory, "e", ["x", "n"], KnownNodes())
    memory.check("e", "x")
    with pytest.raises(Conflict):
        memory.check("d", "n")
