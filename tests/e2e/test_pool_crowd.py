"""Many leases at once, each with a real executor."""

import os

import pytest
from pool_crowd import crowd

from support import local_pool

LEASES = int(os.environ.get("EGPU_TEST_CROWD_LEASES", "100"))

pytestmark = pytest.mark.skipif(not local_pool.built(), reason="the executor and the remote client are not built")


@pytest.mark.timeout(300 + LEASES)
async def test_a_pool_full_of_small_leases_is_full_and_then_empty() -> None:
    found = await crowd(LEASES)
    assert "no room for 1 × 100 % and 64 MiB now" in found.refusal
    assert "crowd-1: " in found.refusal
    assert found.left == []
    grown = {name: after - found.before_mib[name] for name, after in found.after_mib.items()}
    assert max(grown.values()) < 16 + 0.05 * LEASES, f"MiB that stay: {grown}"
