"""The versioned store: its log answers watches and reads of the past, and says when it cannot."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from egpu_sim.cluster.apiserver.storage.store import Store, TooOld
from egpu_sim.cluster.trees import Json


def thing(name: str, value: int = 0) -> Json:
    return {"metadata": {"name": name, "namespace": "n"}, "value": value}


def test_revisions_rise_over_all_shelves() -> None:
    store = Store(first_revision=100)
    revisions = [store.put("a", thing("x")).revision, store.put("b", thing("x")).revision]
    revisions.append(store.remove("a", thing("x")).revision)
    assert revisions == [101, 102, 103]


def test_a_revision_from_before_this_store_is_too_old() -> None:
    store = Store(first_revision=100)
    assert store.shelf("a").since(100) == []
    with pytest.raises(TooOld):
        store.shelf("a").since(99)


def test_a_store_that_takes_over_has_all_objects_at_their_revisions_and_none_of_the_log() -> None:
    earlier = Store(first_revision=100)
    kept, gone = earlier.put("a", thing("x")), thing("y")
    earlier.put("b", gone)
    earlier.remove("b", gone)
    later, told = Store(first_revision=earlier.revision), list[tuple[str, str]]()
    later.listen(lambda shelf, change: told.append((shelf, change.kind)))
    later.take_over(earlier)
    assert (later.get("a", kept.key), later.shelf("b").items) == (kept, {})
    assert told == [("a", "ADDED")]
    assert later.shelf("a").since(103) == []
    with pytest.raises(TooOld):
        later.shelf("a").since(102)
    assert later.put("a", thing("z")).revision == 104


steps = st.lists(st.tuples(st.sampled_from("abc"), st.integers(0, 9), st.booleans()), max_size=60)


@given(steps)
def test_every_remembered_moment_can_be_read_again(changes: list[tuple[str, int, bool]]) -> None:
    """Whatever was listed at a revision is listed again later, or refused as too old; never something else."""
    store = Store(first_revision=10, log_limit=8)
    shelf = store.shelf("a")
    moments: dict[int, dict[str, int]] = {10: {}}
    for name, value, removing in changes:
        if removing and ("n", name) in shelf.items:
            store.remove("a", thing(name))
        else:
            store.put("a", thing(name, value))
        moments[store.revision] = {key[1]: item.obj["value"] for key, item in shelf.items.items()}
    assert len(shelf.log) < 16
    for revision, state in moments.items():
        try:
            past = shelf.at(revision)
        except TooOld:
            assert revision < shelf.forgotten
        else:
            assert {key[1]: item.obj["value"] for key, item in past.items()} == state
    remembered = [change.revision for change in shelf.log]
    assert [c.revision for c in shelf.since(shelf.forgotten)] == remembered == sorted(remembered)
