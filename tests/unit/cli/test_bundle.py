"""A report for maintainers has what they need, and no secret, wherever one may be."""

import asyncio
import json
import os
import tarfile
import weakref
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx2
import pytest

from egpu.api import names
from egpu.cli import bundle
from egpu.cli.bundle import write_bundle
from egpu.cli.findings import Finding, State
from egpu.cli.redaction import MAX_TEXT, REMOVED, Json, redacted, without_secrets
from egpu_base.api.kubernetes import Pod
from egpu_base.api.objects import Object
from support.fake_api import FakeAPI, status
from support.waiting import DEADLINE_SECONDS

SYSTEM = "elastic-gpu-system"
JWT = "eyJhbGciOiJSUzI1NiIsImtpZCI6IjEifQ.eyJzdWIiOiJhZG1pbiJ9.c2VlZGVkLXNpZ25hdHVyZQ"
SECRETS = {
    "secret": "s3cr3t-of-a-Secret", "config": "s3cr3t-of-a-ConfigMap", "env": "s3cr3t-of-env",
    "args": "s3cr3t-of-args", "command": "s3cr3t-of-command", "annotation": "s3cr3t-of-an-annotation",
    "applied": "s3cr3t-of-last-applied", "label": "s3cr3t-of-a-label", "managed": "s3cr3t-of-managed-fields",
    "volume": "s3cr3t-of-a-volume", "ended": "s3cr3t-of-a-termination-message", "event": "s3cr3t-of-an-event",
    "bearer": "s3cr3t-of-a-bearer", "password": "s3cr3t-of-a-password", "url": "s3cr3t-of-a-url",
    "kubeconfig": "s3cr3t-of-a-kubeconfig", "finding": "s3cr3t-of-a-finding", "ours": "s3cr3t-of-our-annotation",
    "user log": "s3cr3t-of-a-users-log", "taint": "s3cr3t-of-a-taint", "address": "s3cr3t-of-an-address",
    "waiting": "s3cr3t-of-a-waiting-message", "pem": "s3cr3t/of/a/pem", "jwt": JWT, "query": "s3cr3t-of-a-query",
    "parameter": "s3cr3t-of-a-parameter", "escaped": "s3cr3t-of-escaped-json",
}  # fmt: skip

LOG = f"""{{"event": "prepared", "pod": "default/trainer"}}
Authorization: Bearer {SECRETS["bearer"]}
{{"headers": {{"authorization": "Bearer {SECRETS["bearer"]}"}}, "db_password": "{SECRETS["password"]}"}}
{{"event": "asked {{\\"token\\": \\"{SECRETS["escaped"]}\\"}}"}}
GET https://admin:{SECRETS["url"]}@registry.example/v2/?access_key={SECRETS["query"]}&x=1
apiVersion: v1 kind: Config users: [{{name: a, user: {{token: {SECRETS["kubeconfig"]}}}}}]
    client-key-data: {SECRETS["kubeconfig"]}
started with --pool-secret {SECRETS["password"]}
{JWT}
-----BEGIN PRIVATE KEY-----
{SECRETS["pem"]}
-----END PRIVATE KEY-----
card GPU-0c5b2f4e-9f3d-4a51-8d0e-6b7f1c2a3d4e is healthy
"""


def of_user(name: str = "trainer") -> dict[str, Any]:
    """A pod with secrets wherever a user may put one."""
    container = {
        "name": "app",
        "image": "registry.example/train:1",
        "env": [{"name": "DB", "value": SECRETS["env"]}],
        "args": [SECRETS["args"]],
        "command": ["sh", "-c", SECRETS["command"]],
        "resources": {"limits": {names.GPU_CORE: "20", names.SLOT: "1"}},
    }
    annotations = {
        names.DEMAND: '{"version":1,"containers":{}}',
        names.CARD_SELECTOR: f"password={SECRETS['ours']}",
        "vault.example/token": SECRETS["annotation"],
        f"{names.GROUP}/unknown": SECRETS["annotation"],
        "kubectl.kubernetes.io/last-applied-configuration": json.dumps({"env": SECRETS["applied"]}),
    }
    ended = {"exitCode": 1, "reason": "Error", "message": SECRETS["ended"]}
    waiting = {"reason": "RunContainerError", "message": f"exec: {SECRETS['waiting']}: not found"}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": name,
            "namespace": "default",
            "annotations": annotations,
            "labels": {"team": SECRETS["label"]},
            "managedFields": [{"manager": SECRETS["managed"]}],
        },
        "spec": {"nodeName": "n0", "containers": [container], "volumes": [{"name": SECRETS["volume"]}]},
        "status": {
            "phase": "Running",
            "containerStatuses": [{"name": "app", "state": {"waiting": waiting}, "lastState": {"terminated": ended}}],
        },
    }


def event(message: str, component: str, name: str = "trainer") -> dict[str, Any]:
    return {
        "metadata": {"name": f"{name}.{abs(hash(message)):x}", "namespace": "default"},
        "involvedObject": {"kind": "Pod", "namespace": "default", "name": name},
        "reason": "Failed",
        "message": message,
        "reportingComponent": component,
    }


def seeded() -> FakeAPI:
    """An API server with an installation, a user's pod, and secrets in many places."""
    api = FakeAPI()
    agent = {
        "metadata": {"name": "agent-1", "namespace": SYSTEM, "labels": dict([bundle.PART_OF])},
        "spec": {"containers": [{"name": "agent", "env": [{"name": "TOKEN", "value": SECRETS["env"]}]}]},
    }
    node = {
        "metadata": {"name": "n0", "annotations": {names.INJECTION: "CDI", "csi.example": SECRETS["annotation"]}},
        "spec": {"taints": [{"key": "k", "value": SECRETS["taint"], "effect": "NoSchedule"}]},
        "status": {
            "capacity": {names.SLOT: "48", "cpu": "8", "example.com/other": "1"},
            "addresses": [{"type": "Hostname", "address": SECRETS["address"]}],
        },
    }
    plain = {"metadata": {"name": "web", "namespace": "default"}, "spec": {"containers": [{"name": "nginx"}]}}
    for plural, one in (("pods", of_user()), ("pods", agent), ("pods", plain), ("nodes", node)):
        api.put(plural, one)
    api.put("secrets", {"metadata": {"name": "s", "namespace": "default"}, "data": {"a": SECRETS["secret"]}})
    api.put("configmaps", {"metadata": {"name": "c", "namespace": "default"}, "data": {"a": SECRETS["config"]}})
    api.put(
        "elasticgpuclaims", {"metadata": {"name": "notebook", "namespace": "default"}, "status": {"phase": "Bound"}}
    )
    for message, component in (
        (f"exec: {SECRETS['event']}: not found", "kubelet"),
        ("Allocate failed due to no slot, which is unexpected", "kubelet"),
        (f"has 9 GiB, token={SECRETS['event']}", "elastic-gpu-agent"),
    ):
        api.put("events", event(message, component))
    api.put("events", event("of another pod", "elastic-gpu-agent", "web"))
    api.fault = answers
    return api


def answers(_: FakeAPI, request: httpx2.Request) -> httpx2.Response | None:
    """Answer what the fake server does not have: its version, and logs."""
    match request.url.path.split("/"):
        case [*_, "version"]:
            return httpx2.Response(200, json={"gitVersion": "v1.36.0"})
        case [*_, "pods", pod, "log"]:
            return httpx2.Response(200, text=LOG if pod == "agent-1" else SECRETS["user log"])
        case _:
            return None


FINDINGS = {"agents": Finding(State.WRONG, f"password: {SECRETS['finding']}", "mend it", "docs")}


async def report(api: FakeAPI, file: Path) -> dict[str, bytes]:
    """Write a report, and return its files by name."""
    async with api.client() as client:
        await write_bundle(client, SYSTEM, file, findings=FINDINGS)
    with tarfile.open(file) as archive:
        members = {one.name: archive.extractfile(one) for one in archive.getmembers()}
        return {name.removeprefix("egpu-report/"): data.read() for name, data in members.items() if data is not None}


async def test_no_secret_is_in_a_report(tmp_path: Path) -> None:
    files = await report(seeded(), tmp_path / "report.tar.gz")
    text = "\n".join([*files, *(data.decode() for data in files.values())])
    assert [name for name, secret in SECRETS.items() if secret in text] == []
    assert "s3cr3t" not in text


async def test_a_report_has_what_a_maintainer_needs(tmp_path: Path) -> None:
    api, file = seeded(), tmp_path / "report.tar.gz"
    files = await report(api, file)
    assert file.stat().st_mode & 0o777 == 0o600
    assert {"findings.json", "versions.json", "left-out.json", "logs/agent-1/agent.log"} <= set(files)
    assert json.loads(files["versions.json"])["kubernetes"] == "v1.36.0"
    assert json.loads(files["findings.json"])["agents"]["state"] == "wrong"
    pods = {one["metadata"]["name"]: one for one in json.loads(files["objects/pods.json"])}
    assert set(pods) == {"trainer", "agent-1"}, "a pod without a GPU is not our business"
    assert pods["trainer"]["spec"]["containers"][0]["resources"] == {"limits": {names.GPU_CORE: "20", names.SLOT: "1"}}
    assert names.DEMAND in pods["trainer"]["metadata"]["annotations"]
    (node,) = json.loads(files["objects/nodes.json"])
    assert node["status"]["capacity"] == {names.SLOT: "48", "cpu": "8"}
    messages = {one["message"] for one in json.loads(files["objects/events.json"])}
    assert "Allocate failed due to no slot, which is unexpected" in messages
    assert f"has 9 GiB, token={REMOVED}" in messages
    assert "of another pod" not in messages
    log = files["logs/agent-1/agent.log"].decode()
    assert "card GPU-0c5b2f4e-9f3d-4a51-8d0e-6b7f1c2a3d4e is healthy" in log
    assert '"pod": "default/trainer"' in log
    assert not [path for _, path in api.log if "secrets" in path or "configmaps" in path]


def put_claims(api: FakeAPI) -> None:
    """A claim, a class and a slice of ours, and the same of another driver; a pod uses our claim."""
    for mine, driver in (("ours", names.DRIVER), ("theirs", "other.example")):
        opaque = {"driver": driver, "parameters": {"token": SECRETS["env"], "kind": "SliceConfig"}}
        request = {"name": "gpu", "exactly": {"deviceClassName": mine, "capacity": {"requests": {"cores": "30"}}}}
        result = {"request": "gpu", "driver": driver, "pool": "n0", "device": "gpu-0"}
        api.put("deviceclasses", {"metadata": {"name": mine}, "spec": {"config": [{"opaque": opaque}]}})
        api.put("resourceslices", {"metadata": {"name": mine}, "spec": {"driver": driver, "devices": [{"name": "d"}]}})
        claim = {
            "metadata": {"name": mine, "namespace": "default"},
            "spec": {"devices": {"requests": [request], "config": [{"opaque": opaque}]}},
            "status": {"allocation": {"devices": {"results": [result]}}},
        }
        api.put("resourceclaims", claim)
        spec = {"containers": [{"name": "app"}], "resourceClaims": [{"name": "gpu", "resourceClaimName": mine}]}
        api.put("pods", {"metadata": {"name": f"uses-{mine}", "namespace": "default"}, "spec": spec})


async def test_a_report_has_claims_of_our_cards_without_their_secrets(tmp_path: Path) -> None:
    api = seeded()
    put_claims(api)
    files = await report(api, tmp_path / "report.tar.gz")
    for plural in ("deviceclasses", "resourceslices", "resourceclaims"):
        (one,) = json.loads(files[f"objects/{plural}.json"])
        assert one["metadata"]["name"] == "ours"
    (claim,) = json.loads(files["objects/resourceclaims.json"])
    assert claim["spec"]["devices"]["requests"][0]["exactly"]["capacity"] == {"requests": {"cores": "30"}}
    assert claim["status"]["allocation"]["devices"]["results"][0]["device"] == "gpu-0"
    assert claim["configuration"] == [{"token": REMOVED, "kind": "SliceConfig"}]
    pods = {one["metadata"]["name"] for one in json.loads(files["objects/pods.json"])}
    assert "uses-ours" in pods
    assert "uses-theirs" not in pods
    assert SECRETS["env"] not in "\n".join(data.decode() for data in files.values())


async def test_pages_of_large_pods_are_asked_for_again_with_fewer(tmp_path: Path) -> None:
    api, limits = seeded(), list[int]()
    for number in range(24):
        annotations = {names.DEMAND: "{}", "x": "y" * 1_000_000}
        meta = {"name": f"large-{number}", "namespace": "default", "annotations": annotations}
        api.put("pods", of_user() | {"metadata": meta})

    def watches(server: FakeAPI, request: httpx2.Request) -> httpx2.Response | None:
        if request.url.path == "/api/v1/pods":
            limits.append(int(request.url.params["limit"]))
        return answers(server, request)

    api.fault = watches
    files = await report(api, tmp_path / "report.tar.gz")
    assert limits[0] > limits[1]
    assert len(json.loads(files["objects/pods.json"])) == 26


async def test_a_report_is_bounded(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(bundle, "MAX_OBJECTS", 1)
    monkeypatch.setattr(bundle, "LOG_BYTES", 40)
    files = await report(seeded(), tmp_path / "small.tar.gz")
    assert len(json.loads(files["objects/pods.json"])) == 1
    lacking = {one["what"]: one["why"] for one in json.loads(files["left-out.json"])}
    assert "1 of 2" in lacking["pods"]
    assert all(len(data) <= 40 for name, data in files.items() if name.startswith("logs/"))
    monkeypatch.setattr(bundle, "MAX_BYTES", 500)
    files = await report(seeded(), tmp_path / "smaller.tar.gz")
    assert "objects/nodes.json" in {one["what"] for one in json.loads(files["left-out.json"])}


class Whole(dict[str, Any]):
    """An object as the API server has it; unlike a plain dict, it can be watched for its end."""


async def test_of_filled_pods_a_report_keeps_its_part_alone_while_it_reads(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Tenants may fill their pods, and the command had all of them whole in memory."""
    alive, most = weakref.WeakSet[Whole](), 0

    async def objects(_client: object, kind: type[Object], *_: object) -> AsyncIterator[Json]:
        nonlocal most
        for number in range(50 if kind is Pod else 0):
            alive.add(one := Whole(of_user(f"pod-{number}")))
            most = max(most, len(alive))
            yield one

    monkeypatch.setattr(Whole, "__hash__", object.__hash__)
    monkeypatch.setattr(bundle, "_objects", objects)
    monkeypatch.setattr(bundle, "KIND_BYTES", 30_000)
    found = await report(seeded(), tmp_path / "report.tar.gz")
    assert most <= 2, "the one that is read, and the one before"
    pods = [one["metadata"]["name"] for one in json.loads(found["objects/pods.json"])]
    assert pods[-1] == "pod-49"
    assert 0 < len(pods) < 50
    assert f"{50 - len(pods)} of 50: " in found["left-out.json"].decode()


async def test_a_slow_server_ends_the_report_in_time(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    api = seeded()

    class Slow(FakeAPI):
        async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
            if "events" in request.url.path:
                await asyncio.Event().wait()
            return await super().handle_async_request(request)

    slow = Slow()
    slow.objects, slow.fault = api.objects, api.fault
    monkeypatch.setattr(bundle, "MAX_SECONDS", 0.2)
    files = await report(slow, tmp_path / "report.tar.gz")
    assert "objects/pods.json" in files
    assert json.loads(files["left-out.json"])[-1]["what"] == "the rest"


async def test_an_interrupted_report_leaves_no_file(tmp_path: Path) -> None:
    api, reached = seeded(), asyncio.Event()

    class Stuck(FakeAPI):
        async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
            if "events" in request.url.path:
                reached.set()
                await asyncio.Event().wait()
            return await super().handle_async_request(request)

    stuck = Stuck()
    stuck.objects, stuck.fault = api.objects, api.fault
    task = asyncio.create_task(report(stuck, tmp_path / "report.tar.gz"))
    async with asyncio.timeout(DEADLINE_SECONDS):
        await reached.wait()
    task.cancel()  # as asyncio.run does for Ctrl-C
    with pytest.raises(asyncio.CancelledError):
        await task
    assert os.listdir(tmp_path) == []


async def test_without_rights_in_the_whole_cluster_a_report_has_the_namespaces(tmp_path: Path) -> None:
    api = seeded()

    def forbidding(_: FakeAPI, request: httpx2.Request) -> httpx2.Response | None:
        if request.url.path in ("/api/v1/pods", "/api/v1/nodes"):
            return status(403, "Forbidden", 'x is forbidden: User "a" cannot list resource at the cluster scope')
        return answers(_, request)

    api.fault = forbidding
    files = await report(api, tmp_path / "report.tar.gz")
    assert {one["metadata"]["name"] for one in json.loads(files["objects/pods.json"])} == {"trainer", "agent-1"}
    assert {one["what"] for one in json.loads(files["left-out.json"])} == {"pods", "nodes"}


@pytest.mark.parametrize(
    "harmless",
    [
        "token is expired",
        "the secret of the pool is missing",
        "GPU-0c5b2f4e-9f3d-4a51-8d0e-6b7f1c2a3d4e",
        "training-of-the-large-model-7f9c4d5b6-x2x4z",
        "sha256:9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08",
        "/apis/elasticgpu.io/v1alpha1/elasticgpus?limit=500",
    ],
)
def test_harmless_words_stay(harmless: str) -> None:
    assert without_secrets(harmless) == harmless


@pytest.mark.parametrize("unit", ["a", "token", "A1a", "-----BEGIN X-----", "a://", "--", '"'])
def test_a_hostile_line_takes_no_quadratic_time(unit: str) -> None:
    assert len(without_secrets(unit * 200_000)) <= MAX_TEXT


def test_an_object_of_ours_keeps_its_spec_without_foreign_metadata() -> None:
    claim = {"metadata": {"name": "a", "managedFields": [1]}, "spec": {"eGPUClassName": "shared"}, "extra": 1}
    kept = redacted("elasticgpuclaims", claim)
    assert kept == {
        "metadata": {"name": "a", "annotations": {}, "labels": {}}, "spec": {"eGPUClassName": "shared"},
    }  # fmt: skip
