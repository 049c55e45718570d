"""The driver of a simulated machine, as agents cut its cards: any step may be their last, and none may take a running
container's instance."""

from collections import Counter
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from unittest.mock import patch

from egpu.adapters.cards.mig import NvmlInstances
from egpu.adapters.cards.nvml import NvmlInventory
from egpu.api.allocation import CardShare
from egpu.api.mig import InstancePlace
from egpu.apps.agent.cards import mig_instances as agent_module


class Killed(BaseException):
    """No handler of the product's catches it, as none runs after SIGKILL."""


class WatchedDriver(NvmlInstances):
    """The simulated driver, whose steps may be an agent's last; `problems` has what should not have been asked for."""

    def __init__(self, inventory: NvmlInventory) -> None:
        super().__init__(inventory.on_card)
        self.left: int | None = None
        self.in_use: dict[str, list[CardShare]] = {}
        """What running containers have, by pod."""
        self.problems: list[str] = []
        self.steps: Counter[str] = Counter()

    def step(self, what: str = "write") -> None:
        if self.left is not None:
            self.left -= 1
            if self.left < 0:
                raise Killed
        self.steps[what] += 1

    def create_gpu_instance(self, uuid: str, place: InstancePlace) -> None:
        self.step("make")
        super().create_gpu_instance(uuid, place)

    def create_compute_instance(self, uuid: str, place: InstancePlace) -> None:
        self.step()
        super().create_compute_instance(uuid, place)

    def destroy_compute_instances(self, uuid: str, place: InstancePlace) -> None:
        self.step("destroy")
        for user, shares in self.in_use.items():
            if any(share.uuid == uuid and share.instance == place for share in shares):
                self.problems.append(f"{place} of {uuid} is destroyed, and {user} runs on it")
        super().destroy_compute_instances(uuid, place)

    def destroy_gpu_instance(self, uuid: str, place: InstancePlace) -> None:
        self.step()
        super().destroy_gpu_instance(uuid, place)

    @contextmanager
    def writes_too(self) -> Generator[None]:
        """Inside, the agents' record is written in such steps as well."""
        write = agent_module.write_atomically

        def mortal(path: Path, data: bytes) -> None:
            self.step()
            write(path, data)

        with patch.object(agent_module, "write_atomically", mortal):
            yield
