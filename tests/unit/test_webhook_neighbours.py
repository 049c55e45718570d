"""The webhook reads groups of other projects, also where they are not installed or may not be read."""

import asyncio
from typing import Any

import httpx2
import msgspec
import pytest
import yaml
from test_webhook_hostile import review

from egpu.api import names
from egpu.api.admission import AdmissionResponse
from egpu.apps.webhook.admission import Admission
from egpu.apps.webhook.neighbours import MOST_BYTES, READS
from egpu.core.json_patch import pointer
from egpu.core.neighbours.table import NEIGHBOURS
from egpu_base.api.kubernetes import Pod
from egpu_base.kubernetes import Client
from support.fake_api import FakeAPI, status
from support.neighbours import grouped

POD_GROUP = "scheduling.x-k8s.io/pod-group"
UNSERVED = "the server could not find the requested resource"


async def mutated(api: FakeAPI, asking: Pod) -> AdmissionResponse:
    return await Admission(api.client()).mutate(review(asking))


def added(answer: AdmissionResponse) -> dict[str, Any]:
    assert answer.patch is not None
    return {one["path"]: one.get("value") for one in msgspec.json.decode(answer.patch)}


def at(annotation: str) -> str:
    return pointer("metadata", "annotations", annotation)


def groups(api: FakeAPI, **spec: Any) -> None:
    api.put("podgroups", {"metadata": {"name": "g", "namespace": "ns"}, "spec": spec})


def read(api: FakeAPI) -> list[str]:
    return [path for _, path in api.log if "podgroups" in path or "jobsets" in path]


async def test_a_group_becomes_the_gang_of_its_pods() -> None:
    api = FakeAPI()
    groups(api, minMember=3)
    answer = await mutated(api, grouped("p", {POD_GROUP: "g"}))
    patch = added(answer)
    assert (patch[at(names.GANG)], patch[at(names.GANG_SIZE)]) == ("pod-group.g", "3+")
    assert patch[at(names.GANG_TIMEOUT)] == names.GANG_NEVER
    assert patch[pointer("metadata", "labels", names.GANG)] == "pod-group.g"
    assert answer.warnings is None
    assert read(api) == ["/apis/scheduling.x-k8s.io/v1alpha1/namespaces/ns/podgroups/g"]


async def test_a_pod_without_annotations_gets_them_all_the_same() -> None:
    api = FakeAPI()
    groups(api, minMember=2)
    bare = grouped("p", {POD_GROUP: "g"})
    assert bare.metadata.annotations is None
    paths = list(added(await mutated(api, bare)))
    assert paths.index("/metadata/annotations") < paths.index(at(names.GANG))


async def test_a_pod_without_a_gpu_belongs_to_no_gang_and_nothing_is_read() -> None:
    api = FakeAPI()
    groups(api, minMember=3)
    answer = await mutated(api, grouped("p", {POD_GROUP: "g"}, limits={}))
    assert (answer.allowed, answer.patch) == (True, None)
    assert read(api) == []


async def test_a_job_set_is_read_only_for_pods_that_ask() -> None:
    api = FakeAPI()
    jobset = {"jobset.sigs.k8s.io/jobset-name": "j"}
    api.put("jobsets", {"metadata": {"name": "j", "namespace": "ns"}, "spec": {"replicatedJobs": [{"replicas": 2}]}})
    assert at(names.GANG) not in added(await mutated(api, grouped("p", jobset)))
    assert read(api) == []
    asking = added(await mutated(api, grouped("p", jobset, {names.GANG_FROM: "owner"})))
    assert asking[at(names.GANG_SIZE)] == "2+"


async def test_a_newer_version_that_is_not_served_is_no_error() -> None:
    api = FakeAPI()
    groups(api, schedulingPolicy={"gang": {"minCount": 2}})

    def older(_: FakeAPI, request: httpx2.Request) -> httpx2.Response | None:
        return status(404, "NotFound", UNSERVED) if "/v1beta1/" in request.url.path else None

    api.fault = older
    answer = added(await mutated(api, grouped("p", scheduling_group={"podGroupName": "g"})))
    assert answer[at(names.GANG)] == "podgroup.g"


async def test_a_kind_that_is_not_installed_makes_no_gang_and_the_author_is_warned() -> None:
    api = FakeAPI()
    api.fault = lambda _, request: status(404, "NotFound", UNSERVED) if "podgroups" in request.url.path else None
    answer = await mutated(api, grouped("p", {POD_GROUP: "g"}))
    assert at(names.GANG) not in added(answer)
    assert answer.warnings == [
        "the pods of the PodGroup g are placed one by one: this cluster does not serve podgroups.scheduling.x-k8s.io"
    ]


async def test_without_the_right_to_read_a_group_is_no_gang_and_a_wish_is_refused() -> None:
    api = FakeAPI()
    forbidden = 'podgroups "g" is forbidden: User "webhook" cannot get resource'

    def denied(_: FakeAPI, request: httpx2.Request) -> httpx2.Response | None:
        return status(403, "Forbidden", forbidden) if request.url.path.endswith("/g") else None

    api.fault = denied
    answer = await mutated(api, grouped("p", {POD_GROUP: "g"}))
    assert at(names.GANG) not in added(answer)
    assert "the webhook has no right to read it" in "".join(answer.warnings or [])
    wished = await mutated(api, grouped("p", {POD_GROUP: "g"}, {names.GANG_FROM: "owner"}))
    assert not wished.allowed


async def test_a_pod_group_that_does_not_exist_refuses_its_pods() -> None:
    api = FakeAPI()
    api.fault = lambda _, request: (
        status(404, "NotFound", 'podgroups.scheduling.x-k8s.io "g" not found')
        if "podgroups" in request.url.path
        else None
    )
    answer = await mutated(api, grouped("p", {POD_GROUP: "g"}))
    assert answer.status is not None
    assert "the PodGroup g does not exist; create it before its pods" in answer.status.message


async def test_an_object_of_megabytes_is_not_read_into_memory() -> None:
    """A pod costs its author little, and each would cost the webhook of all tenants a hundred MiB."""
    api = FakeAPI()
    groups(api, minMember=3, filled=[{}] * (MOST_BYTES // 2))
    answer = await mutated(api, grouped("p", {POD_GROUP: "g"}))
    assert answer.status is not None
    assert "the PodGroup g cannot be read: it has more than 512 KiB; make it smaller" in answer.status.message
    jobset = {"jobset.sigs.k8s.io/jobset-name": "j"}
    api.put("jobsets", {"metadata": {"name": "j", "namespace": "ns"}, "spec": {"filled": [{}] * (MOST_BYTES // 2)}})
    wished = await mutated(api, grouped("p", jobset, {names.GANG_FROM: "owner"}))
    assert wished.status is not None
    assert "the JobSet j cannot be read: it has more than 512 KiB; remove the annotation" in wished.status.message


async def test_few_objects_are_read_at_the_same_time(monkeypatch: pytest.MonkeyPatch) -> None:
    api, reading = FakeAPI(), 0
    groups(api, minMember=3)
    read_one = Client.raw

    async def counted(self: Client, method: str, path: str, *, most: int) -> Any:
        nonlocal reading
        reading += 1
        seen.append(reading)
        await asyncio.sleep(0)
        try:
            return await read_one(self, method, path, most=most)
        finally:
            reading -= 1

    seen: list[int] = []
    monkeypatch.setattr(Client, "raw", counted)
    admission = Admission(api.client())
    await asyncio.gather(*(admission.mutate(review(grouped(f"p{at}", {POD_GROUP: "g"}))) for at in range(20)))
    assert (len(seen), max(seen)) == (20, READS)


async def test_a_name_that_no_object_can_have_is_not_looked_up() -> None:
    api = FakeAPI()
    answer = await mutated(api, grouped("p", {POD_GROUP: "../../secrets/x"}))
    assert not answer.allowed
    assert read(api) == []


def test_the_webhook_may_read_every_kind_of_the_table(request: Any) -> None:
    role = (request.config.rootpath / "deploy/rbac/webhook.yaml").read_text()
    rules = [rule for one in yaml.safe_load_all(role) for rule in one.get("rules") or ()]
    for neighbour in NEIGHBOURS:
        assert any(
            neighbour.group in rule["apiGroups"] and neighbour.plural in rule["resources"] and "get" in rule["verbs"]
            for rule in rules
        ), neighbour
