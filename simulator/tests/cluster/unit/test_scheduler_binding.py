"""What the scheduler does when a binding fails."""

from typing import Any

import httpx2
import msgspec
import pytest

from egpu_base.api.kubernetes import Pod
from egpu_base.errors import Unavailable
from egpu_base.kubernetes import Client
from egpu_sim.cluster.scheduler.loop import Placed, Scheduler
from egpu_sim.cluster.scheduler.queue import QueuedPod


class NoExtender:
    def is_interested(self, _: Pod) -> bool:
        return False


async def test_claims_are_released_before_the_pod_can_be_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    extender: Any = NoExtender()
    async with Client(httpx2.AsyncClient(base_url="http://api.test")) as client:
        scheduler: Any = Scheduler(client, extender)
        pod = msgspec.convert({"kind": "Pod", "metadata": {"name": "p", "uid": "u"}, "spec": {"containers": []}}, Pod)
        held: list[bool] = []

        async def fails(_: object) -> None:
            raise Unavailable("claim default/c got allocated elsewhere in the meantime")

        async def released(_: object) -> None:
            held.append(scheduler._usage.holds("u"))

        async def said(*_: object) -> None:
            held.append(scheduler._usage.holds("u"))

        monkeypatch.setattr(scheduler._devices, "bind", fails)
        monkeypatch.setattr(scheduler._devices, "release", released)
        monkeypatch.setattr(scheduler, "_failed", said)
        scheduler._usage.hold(pod, "n0")
        plan: Any = object()
        await scheduler._bind(QueuedPod(pod, 0.0), Placed("n0", plan))
        # While the pod is held, a change of it does not put it into the queue.
        assert held == [True, False]
