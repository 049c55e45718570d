"""Profiles of a card: what fits as fractions fits as percent and MiB, in every order, and never more than a card does.

As percent a little more may fit: seven eighths and a sixth are 100 % (84 and 16).
"""

from fractions import Fraction

from hypothesis import given
from hypothesis import strategies as st

from egpu.api import names
from egpu.api.vocabularies import VGPUS
from support.objects import cluster, container, fits, place, pod

STEPS = st.lists(st.tuples(st.sampled_from([one.parts for one in VGPUS]), st.booleans()), max_size=40)


@given(steps=STEPS, memory_mib=st.sampled_from([8192, 15360, 16384, 24576, 40960, 81920, 81559]))
def test_a_profile_is_never_refused_where_its_fraction_is_free(steps: list[tuple[int, bool]], memory_mib: int) -> None:
    cache = cluster(memory_mib=memory_mib)
    held: list[tuple[str, int]] = []
    for number, (parts, goes) in enumerate(steps):
        if goes and held:
            gone, _ = held.pop(number % len(held))
            cache.pod_deleted(f"uid-{gone}")
        asking = pod(f"p{number}", container("app", {f"{names.VGPU}-{parts}": 1}))
        together = sum((Fraction(1, each) for _, each in held), Fraction(1, parts))
        found = bool(fits(cache, asking))
        assert found or together > 1
        if found:
            place(cache, asking)
            held.append((asking.name, parts))
        assert sum(100 // each for _, each in held) <= 100
        assert cache.ledger.overcommits() == []
