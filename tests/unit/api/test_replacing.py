"""A merge patch that leaves nothing of what was."""

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from egpu.api.allocation import CardShare, ContainerAllocation
from egpu_base.api.wire import encode, replacing
from egpu_sim.cluster.apiserver.patching.json_patch import merge_patch

JSON = st.recursive(
    st.none() | st.integers(0, 3) | st.text(max_size=2),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.sampled_from("abc"), inner, max_size=3),
    max_leaves=8,
)


def without_nulls(value: Any) -> Any:
    return (
        {key: without_nulls(one) for key, one in value.items() if one is not None} if isinstance(value, dict) else value
    )


@given(st.dictionaries(st.sampled_from("abc"), JSON), st.dictionaries(st.sampled_from("abc"), JSON))
def test_the_old_one_patched_is_the_new_one(old: dict[str, Any], new: dict[str, Any]) -> None:
    assert merge_patch(without_nulls(old), replacing(old, new)) == without_nulls(new)


def test_a_field_back_at_its_default_does_not_stay_as_it_was() -> None:
    share = CardShare(uuid="GPU-1", index=0, minor=0, core=10, memory_mib=64)
    new = ContainerAllocation(provisioner="p", mode="shared", cards=(share,), revision=2)
    old = ContainerAllocation(provisioner="p", mode="shared", cards=(share,), revision=1, held=(share,))
    assert b"held" not in encode(new)
    assert encode(replacing(old, new)).count(b'"held":null') == 1
