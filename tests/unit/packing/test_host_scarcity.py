"""GPU has its price until pods without GPU are seen to use up the hosts first."""

import pytest

from egpu.core.policies.fleet import Fleet, Placement
from egpu.core.policies.host_scarcity import HostScarcity
from egpu.core.policies.price import KnownPrice
from egpu.core.policies.shapes import Machine, Mix, Shape

WITHOUT = Shape(cpu_milli=4_000, ram_mib=4_096, cards=0, core_milli=0)
SHARE = Shape(cpu_milli=2_000, ram_mib=8_192, cards=1, core_milli=500)
HUNGRY = Shape(cpu_milli=2_000, ram_mib=32_768, cards=1, core_milli=500)


def a_fleet(nodes: int = 100) -> Fleet:
    """Of 4 cards, 32 processors and 256 GiB each: for SHARE twice the processors, for HUNGRY just the memory."""
    return Fleet([Machine(f"n{at}", 32_000, 262_144, 4, "A100") for at in range(nodes)])


def fill(fleet: Fleet, shape: Shape, *, each: int) -> None:
    """`each` such pods on every node, one to a card."""
    for row in range(len(fleet)):
        for at in range(each):
            fleet.take(shape, Placement(row, (at,) if shape.cards else ()))


@pytest.mark.parametrize(
    ("shape", "without", "share"),
    [(SHARE, 0, 0.0), (SHARE, 1, 0.0), (SHARE, 4, 1.0), (HUNGRY, 4, 0.0)],
    ids=["no others", "few", "many", "memory is what they need themselves"],
)
def test_hosts_bind_where_others_use_them_up(shape: Shape, without: int, share: float) -> None:
    fleet = a_fleet()
    pod = WITHOUT if shape is SHARE else Shape(cpu_milli=100, ram_mib=16_384, cards=0, core_milli=0)
    binding = HostScarcity(Mix({shape: 1.0}), fleet)
    assert not binding.attend(fleet)
    fill(fleet, shape, each=2)
    fill(fleet, pod, each=without)
    assert binding.attend(fleet) == (share > 0)
    assert binding.share == share


def test_it_says_when_it_is_over() -> None:
    fleet = a_fleet()
    binding = HostScarcity(Mix({SHARE: 1.0}), fleet)
    fill(fleet, WITHOUT, each=1)
    assert binding.attend(fleet)
    assert not binding.attend(fleet), "nothing changed"
    fill(fleet, SHARE, each=3)
    assert binding.attend(fleet)
    assert binding.share == 0


def test_where_hosts_bind_pods_go_where_most_gpu_is_left() -> None:
    fleet = a_fleet(200)
    policy = KnownPrice.of(Mix({SHARE: 1.0}), fleet)
    fleet.take(SHARE, Placement(0, (0,)))
    assert policy.rank_nodes(fleet, SHARE, fleet.all_rows).argmax() == 0, "a node in use fills up"
    fill(fleet, WITHOUT, each=2)
    policy.attend(fleet)
    small = Shape(cpu_milli=100, ram_mib=128, cards=0, core_milli=0)
    scores = policy.rank_nodes(fleet, small, fleet.all_rows)
    assert scores.argmin() == 0
