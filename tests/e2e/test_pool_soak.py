"""A pool under mixed load while programs, executors, daemons, the broker and connections are killed at random."""

import os

import pytest
from pool_soak import STRIKES, soak

from support import local_pool

SECONDS = float(os.environ.get("EGPU_TEST_SOAK_SECONDS", "20"))
"""600 is the full run."""
SEED = int(os.environ.get("EGPU_TEST_SOAK_SEED", "1"))

pytestmark = pytest.mark.skipif(not local_pool.built(), reason="the executor and the remote client are not built")


@pytest.mark.timeout(SECONDS + 600)
async def test_nothing_is_lost_wrong_or_left_while_pieces_of_the_pool_are_killed() -> None:
    tally = await soak(SECONDS, SEED)
    assert not tally.problems, "\n".join(
        [*tally.problems, *tally.struck, *(f"{k}: {v}" for k, v in tally.logs.items())]
    )
    assert {*tally.strikes} == {*STRIKES}, f"it was over before everything was struck: {tally.strikes}"
    assert tally.ended["right"] > 0
