"""A GPU pod that a kubelet had no room for is made again, if nobody else would."""

import asyncio
import base64
import copy
import gzip
import random
from typing import Any

import httpx2
import msgspec
import pytest

from egpu.api import names
from egpu.apps.controller.owed_pods import RECORD, OwedPods
from egpu.apps.controller.remade_pods import MOST_OWED
from egpu.core.remaking import delay_seconds, is_refused, remade
from egpu_base.api.kubernetes import Pod
from support.fake_api import FakeAPI, Json, status
from support.waiting import DEADLINE_SECONDS, until
from unit.test_controller_claims import controller

DEMAND = '{"version":1,"containers":{"app":{}}}'


def refused(**changes: Any) -> Json:
    """What a kubelet leaves of a pod that it refuses."""
    annotations = {
        names.DEMAND: DEMAND,
        names.ALLOCATION: "{}",
        names.cards_annotation("app"): "GPU-1",
        "team": "a",
        names.CLAIM_TEMPLATE_PREFIX + "app": "{}",
        names.CLAIM_PREFIXES[1] + "app": "p-app-0c5e",
    }
    pod: Json = {
        "kind": "Pod",
        "apiVersion": "v1",
        "metadata": {
            "name": "p",
            "namespace": "ns",
            "labels": {"app": "p"},
            "generateName": "p-",
            "annotations": annotations,
        },
        "spec": {"nodeName": "n0", "schedulerName": "elastic-gpu-scheduler", "containers": [{"name": "app"}]},
        "status": {"phase": "Failed", "reason": "OutOfcpu", "message": "Node didn't have enough resource: cpu"},
    }
    for field, value in changes.items():
        pod[field] = {**pod[field], **value}
    return pod


def read(obj: Json) -> Pod:
    return msgspec.convert(obj, Pod)


RAN = [{"name": "app", "state": {"terminated": {"exitCode": 1}}}]
WAITED = [{"name": "app", "state": {"waiting": {"reason": "ContainerCreating"}}}]
OWNED = [{"apiVersion": "batch/v1", "kind": "Job", "name": "j", "uid": "u", "controller": True}]


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({}, True),
        ({"status": {"reason": "OutOfmemory"}}, True),
        ({"status": {"containerStatuses": WAITED}}, True),
        ({"status": {"containerStatuses": RAN}}, False),
        ({"status": {"initContainerStatuses": RAN}}, False),
        ({"status": {"reason": "Evicted"}}, False),
        ({"status": {"reason": "UnexpectedAdmissionError"}}, False),
        ({"status": {"phase": "Pending"}}, False),
        ({"metadata": {"ownerReferences": OWNED}}, False),
        ({"metadata": {"deletionTimestamp": "2026-01-01T00:00:00Z"}}, False),
        ({"metadata": {"annotations": {}}}, False),
    ],
)
def test_only_a_bare_gpu_pod_that_never_ran_is_made_again(changes: dict[str, Any], expected: bool) -> None:
    assert is_refused(read(refused(**changes))) is expected


def test_the_new_pod_is_the_old_one_without_its_placement() -> None:
    old = refused(metadata={"uid": "u", "resourceVersion": "7", "finalizers": ["example.com/kept"]})
    before = copy.deepcopy(old)
    new = remade(old)
    assert old == before
    assert new["spec"] == {"schedulerName": "elastic-gpu-scheduler", "containers": [{"name": "app"}]}
    assert "status" not in new
    assert new["metadata"] == {
        "name": "p",
        "namespace": "ns",
        "labels": {"app": "p"},
        "finalizers": ["example.com/kept"],
        "annotations": {
            names.DEMAND: DEMAND,
            "team": "a",
            names.CLAIM_TEMPLATE_PREFIX + "app": "{}",
            names.REMADE: "1",
        },
    }


def test_a_pod_that_is_refused_again_and_again_waits_longer_each_time() -> None:
    obj, delays = refused(), list[float]()
    for _ in range(12):
        delays.append(delay_seconds(read(obj)))
        obj = {**refused(), "metadata": remade(obj)["metadata"]}
    assert delays[:4] == [0.0, 1.0, 2.0, 4.0]
    assert delays[-1] == 300.0
    assert delay_seconds(read(refused(metadata={"annotations": {names.REMADE: "-3"}}))) == 0.0


def is_replaced(api: FakeAPI, old: Json) -> bool:
    """Return whether another pod has the name. Between the deletion of the old one and the new one, no pod has it."""
    return any(pod["metadata"]["uid"] != old["metadata"]["uid"] for pod in api.all("pods"))


async def test_the_controller_replaces_it_under_its_name() -> None:
    api = FakeAPI()
    old = api.put("pods", refused())
    async with controller(api):
        await until(lambda: is_replaced(api, old))
        new = api.get("pods", "p", "ns")
        assert "nodeName" not in new["spec"]
        assert names.ALLOCATION not in new["metadata"]["annotations"]
        await until(lambda: any(event["reason"] == "Remade" for event in api.all("events")))
        (event,) = (one for one in api.all("events") if one["reason"] == "Remade")
        assert "the kubelet of n0 had no room for it (OutOfcpu): Node didn't have enough" in event["message"]


async def test_a_pod_whose_successor_admission_refuses_is_kept() -> None:
    api = FakeAPI()
    old = api.put("pods", refused())

    def fault(_: FakeAPI, request: httpx2.Request) -> httpx2.Response | None:
        if request.method == "POST" and request.url.path.endswith("/pods"):
            assert request.url.params["dryRun"] == "All"
            return status(403, "Forbidden", "exceeded quota")
        return None

    api.fault = fault
    async with controller(api):
        await until(lambda: any(event["reason"] == "NotRemade" for event in api.all("events")))
        assert api.get("pods", "p", "ns")["metadata"]["uid"] == old["metadata"]["uid"]


async def test_an_api_server_that_fails_in_between_loses_no_pod(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("egpu.apps.controller.remade_pods.RETRY_SECONDS", 0.01)
    api = FakeAPI()
    old = api.put("pods", refused())
    failures = 3

    def fault(_: FakeAPI, request: httpx2.Request) -> httpx2.Response | None:
        nonlocal failures
        gone = ("pods", "ns", "p") not in api.objects
        if gone and failures and request.method == "POST" and request.url.path.endswith("/pods"):
            failures -= 1
            return status(503 if failures % 2 else 403, "ServiceUnavailable")
        return None

    api.fault = fault
    async with controller(api):
        await until(lambda: is_replaced(api, old))
        assert failures == 0


def recorded(api: FakeAPI) -> bool:
    return any(one["metadata"]["name"] == RECORD and one.get("data") for one in api.all("secrets"))


class Killing(FakeAPI):
    """Leaves its client without an answer from one request on, as a process that is killed there. `applied`: that
    request still takes effect."""

    def __init__(self, method: str, *, applied: bool) -> None:
        super().__init__()
        self.at, self.applied = method, applied
        self.reached = asyncio.Event()
        self.armed = True

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        of_pods = request.url.path.startswith("/api/v1/namespaces/ns/pods") and "dryRun" not in request.url.params
        if self.armed and (self.reached.is_set() or (of_pods and request.method == self.at)):
            if not self.reached.is_set() and self.applied:
                await super().handle_async_request(request)
            self.reached.set()
            await asyncio.Event().wait()
        return await super().handle_async_request(request)


@pytest.mark.parametrize(("method", "applied"), [("DELETE", False), ("DELETE", True), ("POST", True)])
async def test_a_controller_that_is_killed_in_between_loses_no_pod(
    method: str, applied: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The next one finishes the work, however far the first one came. It makes one pod, not two."""
    monkeypatch.setattr("egpu.apps.controller.remade_pods.RETRY_SECONDS", 0.01)
    api = Killing(method, applied=applied)
    old = api.put("pods", refused())
    async with controller(api):
        await asyncio.wait_for(api.reached.wait(), DEADLINE_SECONDS)
    assert recorded(api)
    api.armed = False
    async with controller(api):
        await until(lambda: is_replaced(api, old) and not recorded(api))
        (new,) = api.all("pods")
        assert new["metadata"]["annotations"][names.REMADE] == "1"


async def test_a_pod_whose_deletion_failed_is_deleted_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("egpu.apps.controller.remade_pods.RETRY_SECONDS", 0.01)
    api = FakeAPI()
    old = api.put("pods", refused())
    failures = 2

    def fault(_: FakeAPI, request: httpx2.Request) -> httpx2.Response | None:
        nonlocal failures
        if request.method == "DELETE" and failures:
            failures -= 1
            return status(503, "ServiceUnavailable")
        return None

    api.fault = fault
    async with controller(api):
        await until(lambda: is_replaced(api, old) and not recorded(api))
        assert failures == 0


async def test_a_pod_that_cannot_be_recorded_is_not_deleted() -> None:
    api = FakeAPI()
    old = api.put("pods", refused())

    def fault(_: FakeAPI, request: httpx2.Request) -> httpx2.Response | None:
        if "/secrets" in request.url.path and request.method in ("POST", "PATCH"):
            return status(422, "Invalid", "data: Too long")
        return None

    api.fault = fault
    async with controller(api):
        await until(lambda: any(event["reason"] == "NotRemade" for event in api.all("events")))
        assert api.get("pods", "p", "ns")["metadata"]["uid"] == old["metadata"]["uid"]


async def test_a_pod_that_somebody_else_made_meanwhile_is_left_alone() -> None:
    api = FakeAPI()
    api.put("pods", refused())

    def fault(_: FakeAPI, request: httpx2.Request) -> httpx2.Response | None:
        if request.method == "DELETE" and request.url.path.endswith("/pods/p"):
            api.fault = None
            answer = api.serve(request)
            api.put("pods", {"kind": "Pod", "metadata": {"name": "p", "namespace": "ns"}, "spec": {"containers": []}})
            return answer
        return None

    api.fault = fault
    async with controller(api) as one:
        await until(lambda: api.fault is None)
        await until(lambda: ("GET", "/api/v1/namespaces/ns/pods/p") in api.log[-3:] or not one.claims.remade_pods._owed)
        assert names.REMADE not in api.get("pods", "p", "ns")["metadata"].get("annotations", {})


async def test_pods_that_cannot_go_leave_room_in_the_record_for_others(monkeypatch: pytest.MonkeyPatch) -> None:
    """A finalizer keeps a deleted pod for ever. All namespaces share one Secret of 1 MiB."""
    monkeypatch.setattr("egpu.apps.controller.remade_pods.RETRY_SECONDS", 0.01)
    api = FakeAPI()
    for number in range(MOST_OWED + 4):
        name = f"held{number}"
        kept = {"name": name, "uid": name, "namespace": "hostile", "finalizers": ["example.com/kept"]}
        api.put("pods", refused(metadata=kept))
    async with controller(api):
        await until(lambda: len(owed(api)) >= MOST_OWED)
        api.put("pods", refused(metadata={"name": "p0", "uid": "old0"}))
        await until(lambda: remade_pods(api) == 1)
        api.put("pods", refused(metadata={"name": "p1", "uid": "old1"}))  # the hostile ones have turns meanwhile
        await until(lambda: remade_pods(api) == 2)
        assert len(owed(api)) <= MOST_OWED + 1


async def test_a_pod_too_large_for_the_record_is_kept() -> None:
    api = FakeAPI()
    filled = {"filled": base64.b64encode(random.Random(1).randbytes(100_000)).decode()}
    old = api.put("pods", refused(metadata={"annotations": {**refused()["metadata"]["annotations"], **filled}}))
    async with controller(api):
        await until(lambda: any(event["reason"] == "NotRemade" for event in api.all("events")))
        assert api.get("pods", "p", "ns")["metadata"]["uid"] == old["metadata"]["uid"]
        assert not recorded(api)


async def test_a_damaged_record_is_left_out() -> None:
    api = FakeAPI()
    damaged = base64.b64encode(b"\x1f\x8b\x08\0\0\0\0\0\0\xff" + b"x" * 64).decode()
    data = {"a": damaged, "b": "?", "c": base64.b64encode(gzip.compress(b"[" * 100_000)).decode()}
    api.put("secrets", {"metadata": {"name": RECORD, "namespace": "ns"}, "data": data})
    assert list(await OwedPods(api.client(), "ns").all()) == []


def test_a_count_of_thousands_of_digits_is_no_number() -> None:
    assert delay_seconds(read(refused(metadata={"annotations": {names.REMADE: "9" * 5000}}))) == 0.0


def remade_pods(api: FakeAPI) -> int:
    return sum(one["reason"] == "Remade" for one in api.all("events"))


def owed(api: FakeAPI) -> dict[str, str]:
    return {uid: text for one in api.all("secrets") for uid, text in (one.get("data") or {}).items() if text}
