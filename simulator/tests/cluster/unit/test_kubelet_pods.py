"""The simulated kubelet's rules that need no process: restarts, phases, admission, environment, images, quantities."""

from __future__ import annotations

import contextlib
import shutil
from pathlib import Path
from typing import Any

import httpx2
import msgspec
import pytest

from egpu_base.api.quantities import parse_quantity
from egpu_base.api.resources import whole_units
from egpu_base.errors import InvalidInput, NotSupported
from egpu_base.kubernetes import Client
from egpu_sim import native
from egpu_sim.cluster.kubelet import images, status
from egpu_sim.cluster.kubelet.admission import Rejected, check_fit, requested
from egpu_sim.cluster.kubelet.config import KubeletConfig
from egpu_sim.cluster.kubelet.containers import ContainerRecord, restarts_after
from egpu_sim.cluster.kubelet.environment import Sources, environment
from egpu_sim.cluster.kubelet.kubelet import Kubelet
from egpu_sim.cluster.kubelet.objects import Container, Pod
from egpu_sim.cluster.kubelet.runtime import Runtime, write_start_error


def pod(**spec: Any) -> Pod:
    return msgspec.convert(
        {
            "kind": "Pod",
            "metadata": {"name": "p", "namespace": "ns", "uid": "u", "annotations": {"a.b/c": "GPU-1,GPU-2"}},
            "spec": {"nodeName": "n", "containers": [{"name": "main"}], **spec},
        },
        Pod,
    )


def container(**fields: Any) -> Container:
    return msgspec.convert({"name": "main", "image": "x", **fields}, Container)


def record(directory: Path, name: str, *codes: int | None, finished: bool = False, **fields: Any) -> ContainerRecord:
    """A container with one run per code; None is a run that goes on."""
    found = ContainerRecord(msgspec.convert({"name": name, **fields}, Container), directory / "u" / name)
    for number, code in enumerate(codes):
        run = found.directory / str(number)
        run.mkdir(parents=True)
        (run / "pid").touch()
        if code is not None:
            (run / "exit").write_text(f"{code} 0 {(number + 1) * 10**9}\n")
    found.finished = finished
    return found


class ToldLate:
    """What a kubelet knows of its node, and what the API server knows by now."""

    def __init__(self, *, told: str, now: str) -> None:
        self.told, self.now = told, now
        self.asked = 0

    async def allocatable(self, *, fresh: bool) -> dict[str, int]:
        self.asked += fresh
        return {"cpu": whole_units("cpu", parse_quantity(self.now if fresh else self.told, field="cpu"))}


@pytest.mark.parametrize(
    ("told", "now", "fits", "asked"), [("4", "1", True, 0), ("1", "4", True, 1), ("1", "1", False, 1)]
)
async def test_before_a_pod_fails_for_good_the_api_server_is_asked_what_the_node_has(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, told: str, now: str, fits: bool, asked: int
) -> None:
    config = KubeletConfig("n", tmp_path / "kubeconfig", tmp_path)
    nobody = Client(httpx2.AsyncClient(base_url="http://api.test"))
    kubelet = Kubelet(config, client=nobody, runtime=Runtime(private_mounts=False))
    node = ToldLate(told=told, now=now)
    monkeypatch.setattr(kubelet, "node", node)
    wants = pod(containers=[{"name": "main", "resources": {"requests": {"cpu": "2"}}}])
    with contextlib.nullcontext() if fits else pytest.raises(Rejected, match="capacity: 1000"):
        await kubelet.admit(wants, waited_seconds=0.0)
    assert node.asked == asked


@pytest.mark.parametrize(
    ("policy", "init", "sidecar", "code", "again"),
    [
        ("Always", False, False, 0, True),
        ("OnFailure", False, False, 0, False),
        ("OnFailure", False, False, 1, True),
        ("Never", False, False, 1, False),
        ("Always", True, False, 0, False),
        ("Always", True, False, 1, True),
        ("Never", True, False, 1, False),
        ("Never", True, True, 0, True),
    ],
)
def test_restarts(policy: str, init: bool, sidecar: bool, code: int, again: bool) -> None:
    one = container(restartPolicy="Always" if sidecar else "")
    assert restarts_after(policy, one, init=init, code=code) is again


def test_phases(tmp_path: Path) -> None:
    def at(name: str, *codes: int | None, finished: bool = False, **fields: Any) -> ContainerRecord:
        return record(tmp_path / name, name, *codes, finished=finished, **fields)

    assert status.phase(pod(), [at("i1", None)], [at("a1")]) == "Pending"
    assert status.phase(pod(), [at("i2", 1, finished=True)], [at("a2")]) == "Failed"
    assert status.phase(pod(), [at("i3", 1)], [at("a3")]) == "Pending"
    assert status.phase(pod(), [], [at("a4", None), at("b4")]) == "Running"
    assert status.phase(pod(), [], [at("a5", 1)]) == "Running", "it waits for its next run"
    assert status.phase(pod(), [], [at("a6", 0, finished=True)]) == "Succeeded"
    assert status.phase(pod(), [], [at("a7", 0, finished=True), at("b7", 2, finished=True)]) == "Failed"
    sidecar = at("s8", 137, finished=True, restartPolicy="Always")
    assert status.phase(pod(), [sidecar], [at("a8", 0, finished=True)]) == "Succeeded"


def test_a_run_counts_once_its_command_has_begun(tmp_path: Path) -> None:
    starting = record(tmp_path, "main", None)
    starting.waiting = ("CreateContainerError", "mounts: /x does not exist")
    (tmp_path / "u" / "main" / "0" / "pid").unlink()
    built = status.build(pod(), inits=[], apps=[starting], node_ip="1.2.3.4", started_at=0, now=0)
    assert built["phase"] == "Pending"
    one = built["containerStatuses"][0]
    assert (one["ready"], one["restartCount"], "containerID" in one) == (False, 0, False)
    assert one["state"]["waiting"]["reason"] == "CreateContainerError"


def test_status_of_a_container_that_could_not_start(tmp_path: Path) -> None:
    failed = record(tmp_path, "main", None, finished=True)
    write_start_error(tmp_path / "u" / "main" / "0", "cannot mount")
    built = status.build(pod(), inits=[], apps=[failed], node_ip="1.2.3.4", started_at=0, now=0)
    ended = built["containerStatuses"][0]["state"]["terminated"]
    assert (built["phase"], ended["exitCode"], ended["reason"]) == ("Failed", 128, "StartError")
    assert ended["message"] == "cannot mount"


def test_status_of_a_crashing_container(tmp_path: Path) -> None:
    crashing = record(tmp_path, "main", 3, 4)
    crashing.waiting = ("CrashLoopBackOff", "back-off")
    built = status.build(pod(), inits=[], apps=[crashing], node_ip="1.2.3.4", started_at=0, now=0)
    one = built["containerStatuses"][0]
    assert one["state"] == {"waiting": {"reason": "CrashLoopBackOff", "message": "back-off"}}
    assert one["lastState"]["terminated"]["exitCode"] == 4
    assert one["restartCount"] == 1
    assert {each["type"]: each["status"] for each in built["conditions"]}["Ready"] == "False"
    crashing.finished = True
    built = status.build(pod(), inits=[], apps=[crashing], node_ip="1.2.3.4", started_at=0, now=0)
    assert built["containerStatuses"][0]["state"]["terminated"]["exitCode"] == 4
    assert built["containerStatuses"][0]["lastState"]["terminated"]["exitCode"] == 3


def test_crashes_wait_longer_each_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    crashing = record(tmp_path, "main", 1, 1, 1)
    monkeypatch.setattr("egpu_sim.cluster.kubelet.containers.time.time", lambda: 3.0)
    monkeypatch.setattr("egpu_sim.cluster.kubelet.runtime.began_at", lambda directory: 0.0)
    assert crashing.crash_delay(base_seconds=1, limit_seconds=60) == 4.0
    assert crashing.crash_delay(base_seconds=1, limit_seconds=2) == 2.0


def test_environment() -> None:
    one = container(
        env=[
            {"name": "CARDS", "valueFrom": {"fieldRef": {"fieldPath": "metadata.annotations['a.b/c']"}}},
            {"name": "ABSENT", "valueFrom": {"fieldRef": {"fieldPath": "metadata.annotations['none']"}}},
            {"name": "WHERE", "valueFrom": {"fieldRef": {"fieldPath": "spec.nodeName"}}},
            {"name": "IP", "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}},
            {"name": "BOTH", "value": "$(WHERE)/$(IP) $$(WHERE) $(UNKNOWN)"},
            {"name": "MAYBE", "valueFrom": {"configMapKeyRef": {"name": "m", "key": "k", "optional": True}}},
            {"name": "KEY", "valueFrom": {"secretKeyRef": {"name": "s", "key": "k"}}},
            {"name": "LIMIT", "valueFrom": {"resourceFieldRef": {"resource": "limits.cpu"}}},
            {"name": "MIB", "valueFrom": {"resourceFieldRef": {"resource": "limits.memory", "divisor": "1Mi"}}},
        ],
        envFrom=[{"prefix": "P_", "configMapRef": {"name": "c"}}],
        resources={"limits": {"cpu": "1500m", "memory": "1Gi"}},
    )
    sources = Sources(config_maps={"c": {"x": b"1"}}, secrets={"s": {"k": b"v"}})
    env = environment(pod(), one, node_ip="1.2.3.4", devices={"D": "d"}, sources=sources)
    assert env["CARDS"] == "GPU-1,GPU-2"
    assert env["ABSENT"] == ""
    assert env["BOTH"] == "n/1.2.3.4 $(WHERE) $(UNKNOWN)"
    assert "MAYBE" not in env
    assert (env["KEY"], env["LIMIT"], env["MIB"], env["P_x"], env["D"]) == ("v", "2", "1024", "1", "d")
    assert shutil.which("nvidia-smi", path=env["PATH"]) == str(native.path("tools/nvidia-smi"))


@pytest.mark.parametrize(
    "variable",
    [
        {"fieldRef": {"fieldPath": "status.nothing"}},
        {"secretKeyRef": {"name": "s", "key": "k"}},
        {"resourceFieldRef": {"resource": "limits.memory"}},
        {},
    ],
)
def test_environment_refuses_by_name(variable: dict[str, Any]) -> None:
    one = container(env=[{"name": "X", "valueFrom": variable}])
    with pytest.raises(InvalidInput, match=r"env\[X\]"):
        environment(pod(), one, node_ip="", devices={}, sources=Sources())


def test_images() -> None:
    assert images.argv(container(command=["a"], args=["b"])) == ["a", "b"]
    assert images.argv(container(image="registry.k8s.io/pause:3.9")) == ["sleep", "infinity"]
    with pytest.raises(NotSupported, match="example/unknown"):
        images.argv(container(image="example/unknown"))


def test_every_image_of_the_seed_manifests_is_known() -> None:
    for image in ("k8s.gcr.io/cuda-vector-add:v0.1", "nvidia/cuda:10.0-base", "example/cuda-app"):
        assert images.argv(container(image=image))


def test_admission() -> None:
    one = requested(pod())
    big = requested(pod(containers=[{"name": "a", "resources": {"requests": {"x/y": "3", "unknown/z": "9"}}}]))
    check_fit(big, [], {"x/y": 3, "pods": 1})
    with pytest.raises(Rejected, match="requested: 3, used: 3, capacity: 5") as caught:
        check_fit(big, [big], {"x/y": 5, "pods": 9})
    assert caught.value.reason == "OutOfx/y"
    with pytest.raises(Rejected) as caught:
        check_fit(one, [one], {"pods": 1})
    assert caught.value.reason == "OutOfpods"
