"""Tenants on shared cards, half of them hostile in ways chosen at random: the honest ones get all that is theirs."""

import os
import random
from pathlib import Path

import pytest

from support import hostile_shares, local_pool, pace
from support.hostile_shares import POINTS, Sharer
from support.hostile_storm import storm
from support.long import or_long
from support.strangers import only_root

TENANTS, ROUNDS = 8, or_long(4, 6)
"""`make storm` is the full run: 50 and 200."""
SEED = int(os.environ.get("EGPU_TEST_STORM_SEED", "1"))


@only_root
@pytest.mark.skipif(not local_pool.built(), reason="the executor and the remote client are not built")
@pytest.mark.timeout(600)
async def test_honest_tenants_get_every_byte_and_percent_and_the_host_stays_as_it_was() -> None:
    tally = await storm(TENANTS, ROUNDS, SEED)
    assert not tally.problems, "\n".join([f"seed {SEED}", *tally.problems])
    assert tally.rounds == ROUNDS
    assert tally.attacks.total() == ROUNDS * TENANTS // 2
    assert tally.honest_bytes > 0
    assert tally.shares_measured > 0


@pytest.mark.parametrize("seed", range(or_long(2, 4)))
def test_what_a_tenant_writes_into_its_account_moves_nobody_s_share(tmp_path: Path, seed: int) -> None:
    sharers = [Sharer(f"tenant-{number}", 20, hostile=number % 2 == 1) for number in range(5)]
    program = pace.build(tmp_path)
    for got in hostile_shares.shares(program, tmp_path / "slots", sharers, random.Random(seed)):
        if not got.sharer.hostile:
            assert got.percent == pytest.approx(got.sharer.core, abs=POINTS), got.sharer.name
