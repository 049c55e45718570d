"""Fixtures over the simulated world, for tests of the simulator and of the product."""

import ssl
from collections.abc import AsyncGenerator, Generator

import httpx2
import pytest

from egpu_sim.cluster.apiserver import ADMIN, ServerHandle
from egpu_sim.machines.machine import Machine
from support.simulated_gpu import machine
from support.waiting import DEADLINE_SECONDS


@pytest.fixture(scope="module")
def sim(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Generator[Machine]:
    """Make the simulated machine of a module, with the cards that its CARDS names: a profile and a number."""
    profile, count = request.module.CARDS
    with machine(tmp_path_factory.mktemp("sim"), profile, count) as made:
        yield made


@pytest.fixture
async def api(server: ServerHandle) -> AsyncGenerator[httpx2.AsyncClient]:
    """Connect as an administrator to the API server that the file's `server` is."""
    context = ssl.create_default_context(cadata=server.ca.decode())
    headers = {"authorization": f"Bearer {server._tokens.issue(ADMIN)}"}
    async with httpx2.AsyncClient(
        base_url=server.url, verify=context, headers=headers, timeout=DEADLINE_SECONDS
    ) as client:
        yield client
