"""An init container goes where its pod holds enough of a card already: exactly enough is enough, one less is not.

The pod's app has to go to card 0; card 1 is the fuller one, so what the app's share is not enough for goes there.
"""

import pytest

from egpu.api import names
from egpu.core.placement.fit import choose
from egpu_base.api.kubernetes import Container
from support.objects import cluster, container, place, pod

Amounts = tuple[int, int]
"""Percent and MiB."""


def asking(name: str, amounts: Amounts) -> Container:
    return container(name, {names.GPU_CORE: amounts[0], names.GPU_MEMORY: amounts[1]})


@pytest.mark.parametrize(
    ("other", "app", "warm", "index"),
    [
        ((30, 12000), (80, 1000), (10, 1000), 0),
        ((30, 12000), (80, 1000), (10, 1001), 1),
        ((30, 12000), (60, 5000), (60, 1000), 0),
        ((30, 12000), (60, 5000), (61, 1000), 1),
    ],
)
def test_it_uses_the_card_of_its_pod_as_far_as_the_pod_holds_it(
    other: Amounts, app: Amounts, warm: Amounts, index: int
) -> None:
    cache = cluster(cards=2)
    place(cache, pod("first", asking("app", (75, 1))))
    place(cache, pod("other", asking("app", other)))
    cache.pod_deleted("uid-first")
    request = cache.request(pod("p", asking("app", app), init=[asking("warm", warm)]))
    given = choose(request, cache.ledger, "n0").containers
    assert [given[name].cards[0].index for name in ("app", "warm")] == [0, index]
