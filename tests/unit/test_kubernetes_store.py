"""The objects of a reflector's copy: packed or whole, they say the same."""

import pytest

from egpu_base.api.kubernetes import Container, Pod, PodSpec
from egpu_base.api.objects import ObjectMeta
from egpu_base.kubernetes import store as stores
from egpu_base.kubernetes.store import Store

BOTH = pytest.mark.parametrize("packed", [True, False])


@pytest.fixture(autouse=True)
def _few_recent(monkeypatch: pytest.MonkeyPatch) -> None:
    """So that of two objects one is packed."""
    monkeypatch.setattr(stores, "RECENT", 1)


def pod(name: str, *, uid: str = "", node: str = "") -> Pod:
    meta = ObjectMeta(name=name, namespace="ns", uid=uid or f"uid-{name}", annotations={"a": name * 50})
    return Pod(metadata=meta, spec=PodSpec(node_name=node, containers=[Container(name="app", image=name)]))


def filled(*pods: Pod, packed: bool) -> Store[Pod]:
    store = Store(Pod, packed=packed)
    for one in pods:
        store.put(one)
    return store


@BOTH
def test_what_was_put_is_found_by_name_and_by_uid(packed: bool) -> None:
    one, two = pod("one"), pod("two", node="n1")
    store = filled(one, two, packed=packed)
    assert (store.get("ns/one"), store.by_uid("uid-two"), list(store)) == (one, two, [one, two])
    assert (store.get("ns/three"), store.by_uid("uid-three"), store.get("one")) == (None, None, None)
    assert (len(store), store.keys()) == (2, {"ns/one", "ns/two"})


@BOTH
def test_the_uids_follow_what_comes_and_goes_after_they_were_asked_for(packed: bool) -> None:
    store = filled(pod("one"), packed=packed)
    assert store.by_uid("uid-one") == pod("one")
    store.put(pod("two"))
    assert store.by_uid("uid-two") == pod("two")
    assert store.pop("ns/one") == pod("one")
    assert (store.by_uid("uid-one"), store.pop("ns/one"), len(store)) == (None, None, 1)


@BOTH
def test_a_loop_goes_over_the_objects_as_they_were_when_it_began(packed: bool) -> None:
    store = filled(pod("one"), pod("two"), packed=packed)
    for one in store:
        store.pop(one.key)
        store.put(pod(f"other-{one.name}"))
    assert store.keys() == {"ns/other-one", "ns/other-two"}


def test_the_latest_are_kept_as_they_are_and_the_others_packed() -> None:
    one, two = pod("one"), pod("two")
    store = filled(one, two, packed=True)
    assert store.get("ns/two") is two
    found = store.get("ns/one")
    assert found == one
    assert found is not one
    store.put(one)
    assert store.get("ns/one") is one
    assert store.get("ns/two") is not two
