"""Divide a card's time between its containers at one moment. Pure: from limits and use to grants.

An idle container leaves its share to containers in mode `share`, by weight, each up to its ceiling; when it wakes up,
its own share is untouched. While several are active, each gets a window of a common period. So they run one after the
other, and each is timed for its own work.

Latency work that is not always busy has turns instead (native/turns), which interrupt the windows of the others: their
clock stands still meanwhile. So windows divide what turns leave, and turns take no more than the share of latency work.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from egpu.adapters.slices.pages import PPM, Window

PERIOD_US: Final = 20_000
#: For kernels so long that few would fit into a window.
LONG_PERIOD_US: Final = 100_000
LONG_KERNEL_NS: Final = 2_000_000


@dataclass(frozen=True, kw_only=True)
class Tenant:
    """One container on one card. Shares in ppm of the card's time; `ceiling_ppm` equals `core_ppm` in mode `cap`.

    `active`: it launched something lately. `wants_ppm`: the use that it would like, the ceiling when held back.
    `kernel_ns`: mean GPU time of its launches. `latency`: it has turns.
    """

    core_ppm: int
    ceiling_ppm: int
    weight: int
    active: bool
    wants_ppm: int
    kernel_ns: int = 0
    latency: bool = False


@dataclass(frozen=True)
class Grant:
    """The share that it may use now, and its window to start work (None: at any time)."""

    ppm: int
    window: Window | None


def divide(tenants: Sequence[Tenant]) -> list[Grant]:
    """Return one grant per tenant. Those of the active exceed the card only if their own shares do, or if turns decide
    meanwhile who has it."""
    together = _divide(tenants)
    others = [tenant for tenant in tenants if not tenant.latency]
    if len(others) == len(tenants):
        return together
    beside = iter(_divide(others, turns=True))
    return [
        Grant(grant.ppm, None) if tenant.latency else next(beside)
        for tenant, grant in zip(tenants, together, strict=True)
    ]


def _divide(tenants: Sequence[Tenant], *, turns: bool = False) -> list[Grant]:
    shares = [tenant.core_ppm for tenant in tenants]
    active = [index for index, tenant in enumerate(tenants) if tenant.active]
    spare = PPM - sum(shares[index] for index in active)
    # First up to the wanted use, then, if something is left, up to the possible one.
    for goal in ("wants_ppm", "ceiling_ppm"):
        spare = _hand_out(spare, tenants, active, shares, goal)
    windows = _windows(tenants, active, shares, turns=turns) if len(active) > 1 else {}
    return [Grant(min(share, PPM), windows.get(index)) for index, share in enumerate(shares)]


def _hand_out(spare: int, tenants: Sequence[Tenant], active: Sequence[int], shares: list[int], goal: str) -> int:
    """Raise `shares` towards each one's goal by weight; return the rest."""
    while spare > 0:
        below = {
            index: min(getattr(tenants[index], goal), tenants[index].ceiling_ppm) - shares[index] for index in active
        }
        below = {index: missing for index, missing in below.items() if missing > 0}
        weights = sum(tenants[index].weight for index in below)
        if not below or spare < len(below):
            break
        for index, missing in below.items():
            part = min(missing, max(1, spare * tenants[index].weight // weights))
            shares[index] += part
        spare = PPM - sum(shares[index] for index in active)
    return spare


def _windows(
    tenants: Sequence[Tenant], active: Sequence[int], shares: Sequence[int], *, turns: bool
) -> dict[int, Window]:
    """Return the windows of the active; beside `turns` they fill their period, which is what turns leave."""
    long = any(tenants[index].kernel_ns >= LONG_KERNEL_NS for index in active)
    period = LONG_PERIOD_US if long else PERIOD_US
    active_ppm = sum(shares[index] for index in active)
    whole = active_ppm if turns else max(PPM, active_ppm)
    windows: dict[int, Window] = {}
    start = 0
    for index in active:
        length = max(1, shares[index] * period // whole)
        # All periods begin at the same times, however often this is written anew.
        windows[index] = Window(epoch_ns=0, period_us=period, start_us=min(start, period - 1), length_us=length)
        start += length
    return windows
