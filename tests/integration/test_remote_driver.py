"""The programs that test the simulated driver, over the remote client: the same answers, whatever the transport."""

import dataclasses
import inspect
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import test_sim_driver as programs

from egpu.adapters.simulator import Machine
from remotegpu import Transport, remote
from simgpu import machine

# What is different by design, and said so by name: docs/wire.md and the attributes of devices tell.
DIFFERENT = {
    "test_host_memory",  # managed memory, and registered memory seen by kernels: not without one address space
    "test_what_is_not_simulated_says_so",  # it is the remote client that says so
}

TESTS = {
    name: test
    for name, test in inspect.getmembers(programs, inspect.isfunction)
    if name.startswith("test_") and list(inspect.signature(test).parameters) == ["sim"] and name not in DIFFERENT
}


@pytest.fixture(scope="module", params=["shm", "tcp", "bridge"])
def sim(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Machine]:
    transport: Transport = request.param
    folder = tmp_path_factory.mktemp(transport)
    with machine(folder, "A100-80G", 2) as made, remote(made, folder, transport, "--grace", "2") as (client, _, _):
        yield dataclasses.replace(made, driver_dir=client)


@pytest.mark.parametrize("name", sorted(TESTS))
def test_same_answers(sim: Machine, name: str) -> None:
    test: Callable[[Any], None] = TESTS[name]
    test(sim)
