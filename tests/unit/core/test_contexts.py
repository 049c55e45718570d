"""Slices that have no room for a context."""

import pytest

from egpu.core.contexts import context_mib, warning
from egpu_sim.machines.models import profiles


def test_every_simulated_model_is_known() -> None:
    for profile in profiles().values():
        assert abs(context_mib(profile.name) - profile.context_mib) <= 2, profile.name


@pytest.mark.parametrize(
    ("memory_mib", "models", "told"),
    [
        (256, ["NVIDIA A100-SXM4-80GB"], "about 448 MiB of a card (NVIDIA A100-SXM4-80GB)"),
        (448, ["NVIDIA A100-SXM4-80GB"], None),
        (256, ["NVIDIA A100-SXM4-80GB", "Tesla T4"], None),
        (83, ["NVIDIA A100-SXM4-80GB", "Tesla T4"], "about 84 MiB of a card (Tesla T4)"),
        (1, ["Voodoo2", "NVIDIA A100-SXM4-80GB"], None),
        (1, [], None),
        (0, ["Tesla T4"], None),
    ],
)
def test_a_slice_with_room_on_any_card_is_no_reason_to_warn(
    memory_mib: int, models: list[str], told: str | None
) -> None:
    said = warning(memory_mib, models)
    assert (said is None) == (told is None)
    assert told is None or told in str(said)
