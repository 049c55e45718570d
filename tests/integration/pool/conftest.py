"""The machine whose cards servers in the test's own process lend."""

from collections.abc import Iterator

import pytest

from egpu_sim.machines.machine import Machine
from support import simulated_gpu


@pytest.fixture(scope="session")
def machine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Machine]:
    """One for all files: a process reads one NVML, whose library stays with the machine that it was first loaded for,
    because that of each machine is a link to the same file."""
    with simulated_gpu.machine(tmp_path_factory.mktemp("machine"), count=2) as made:
        yield made
