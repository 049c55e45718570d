"""Unmodified kubectls against the simulated API server: Debian's 1.20 and, where it has one, the machine's own."""

import base64
import json
import os
import select
import shutil
import signal
import ssl
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import httpx2
import pytest
import yaml

from egpu.api.objects import ElasticGPU, ElasticGPUClaim, ElasticGPUClass
from integration.kubectl import ROOT, Kubectl, debian_kubectl
from support.waiting import DEADLINE_SECONDS

SEEDS = ["gpushare", "qgpu", "vcuda", "whole-card"]


def binaries() -> list[tuple[str, Path | None]]:
    """(name, binary); None for Debian's, which is fetched when first used."""
    found: list[tuple[str, Path | None]] = [("1.20", None)]
    if own := shutil.which("kubectl", path="/usr/local/bin:/usr/bin:/bin"):
        found.append(("own", Path(own)))
    return found


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The server as a process of its own, with our definitions; the admin's kubeconfig."""
    directory = tmp_path_factory.mktemp("apiserver")
    command = [sys.executable, "-m", "egpu_sim.cluster.apiserver", "--directory", str(directory)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    try:
        ready, _, _ = select.select([process.stdout], [], [], 30)
        assert ready, "the server did not start within 30 s"
        kubeconfig = Path(process.stdout.readline().strip())
        tool = Kubectl(debian_kubectl(), kubeconfig, directory)
        created = tool("apply", "-f", str(ROOT / "deploy" / "crds")).splitlines()
        assert len(created) == 3
        assert all(line.endswith(" created") for line in created)
        assert "unchanged" in tool("apply", "-f", str(ROOT / "deploy" / "crds"))
        yield kubeconfig
    finally:
        process.send_signal(signal.SIGTERM)
        assert process.wait(DEADLINE_SECONDS) == 0


@pytest.fixture(params=[path for _, path in binaries()], ids=[name for name, _ in binaries()])
def kubectl(request: pytest.FixtureRequest, server: Path, tmp_path: Path) -> Iterator[Kubectl]:
    """One kubectl; what its test left is removed."""
    yield Kubectl(request.param or debian_kubectl(), server, tmp_path)
    empty(server)


def empty(kubeconfig: Path) -> None:
    """Remove everything a test may have left (by HTTP: a kubectl takes half a second to start)."""
    config = yaml.safe_load(kubeconfig.read_text())
    cluster = config["clusters"][0]["cluster"]
    context = ssl.create_default_context(cadata=base64.b64decode(cluster["certificate-authority-data"]).decode())
    headers = {"authorization": f"Bearer {config['users'][0]['user']['token']}"}
    local, ours = "/api/v1/namespaces/default", "/apis/elasticgpu.io/v1alpha1"
    with httpx2.Client(base_url=cluster["server"], verify=context, headers=headers) as api:
        for path in (
            *(f"{local}/{plural}" for plural in ("pods", "configmaps", "secrets", "events", "resourcequotas")),
            "/apis/apps/v1/namespaces/default/deployments",
            "/apis/batch/v1/namespaces/default/jobs",
            f"{ours}/namespaces/default/elasticgpuclaims",
            f"{ours}/elasticgpuclasses",
            "/api/v1/nodes",
        ):
            assert api.delete(path, params={"gracePeriodSeconds": "0"}).status_code == 200, path


NODE = """
apiVersion: v1
kind: Node
metadata: {name: node-a}
status:
  capacity: {cpu: "4", memory: 8Gi, pods: "110", elasticgpu.io/slot: 40}
  conditions:
  - {type: Ready, status: "True", reason: KubeletReady, lastHeartbeatTime: null, lastTransitionTime: null}
"""
POD = """
apiVersion: v1
kind: Pod
metadata: {name: web, labels: {app: web}}
spec:
  containers:
  - name: main
    image: busybox:1
    env: [{name: A, value: "1"}, {name: B, value: "2"}]
"""


def bind(kubectl: Kubectl, pod: str, node: str, tmp_path: Path) -> None:
    target = {"kind": "Node", "name": node}
    binding = {"apiVersion": "v1", "kind": "Binding", "metadata": {"name": pod}, "target": target}
    file = tmp_path / "binding.json"
    file.write_text(json.dumps(binding))
    kubectl("create", "--raw", f"/api/v1/namespaces/default/pods/{pod}/binding", "-f", str(file))


def test_versions_and_discovery(kubectl: Kubectl) -> None:
    assert "v1.36.0+egpu" in kubectl("version")
    resources = kubectl("api-resources")
    for name in ("pods", "leases", "elasticgpuclaims", "mutatingwebhookconfigurations"):
        assert name in resources
    assert "elasticgpu.io/v1alpha1" in kubectl("api-versions").split()


@pytest.mark.parametrize("seed", SEEDS)
def test_the_seeds_apply_unchanged_and_twice(kubectl: Kubectl, seed: str) -> None:
    file = str(ROOT / "examples" / f"seed-{seed}.yaml")
    first = kubectl("apply", "-f", file)
    assert all(line.endswith(" created") for line in first.splitlines())
    again = kubectl("apply", "-f", file).splitlines()
    # a quantity written as a number differs from the text that every API server keeps, so kubectl always patches it
    expected = " configured" if seed == "whole-card" else " unchanged"
    assert all(line.endswith(expected) for line in again), again
    kubectl("delete", "-f", file)


def test_apply_changes_only_what_changed(kubectl: Kubectl) -> None:
    kubectl("apply", "-f", "-", stdin=POD)
    kubectl("label", "pod", "web", "mine=yes")
    assert "configured" in kubectl("apply", "-f", "-", stdin=POD.replace("busybox:1", "busybox:2"))
    pod = json.loads(kubectl("get", "pod", "web", "-o", "json"))
    assert pod["spec"]["containers"][0]["image"] == "busybox:2"
    assert pod["metadata"]["labels"] == {"app": "web", "mine": "yes"}
    refused = kubectl.run("apply", "-f", "-", stdin=POD.replace('value: "1"', 'value: "9"'))
    assert refused.returncode == 1
    assert "pod updates may not change fields" in refused.stderr


def test_validation_names_unknown_fields(kubectl: Kubectl) -> None:
    refused = kubectl.run("apply", "-f", "-", stdin=POD.replace("containers:", "contaners:"))
    assert refused.returncode == 1
    assert "contaners" in refused.stderr
    refused = kubectl.run("apply", "-f", "-", stdin=POD.replace("image: busybox:1", "image: 5"))
    assert refused.returncode == 1


def test_server_side_apply_creates_changes_and_finds_conflicts(kubectl: Kubectl) -> None:
    apply = ("apply", "--server-side", "--field-manager=mine", "-f", "-")
    assert kubectl(*apply, stdin=POD).split()[1:] == ["serverside-applied"]
    kubectl(*apply, stdin=POD.replace("busybox:1", "busybox:2"))
    others = POD.replace("busybox:1", "busybox:3")
    refused = kubectl.run("apply", "--server-side", "--field-manager=theirs", "-f", "-", stdin=others)
    assert refused.returncode == 1
    assert 'conflict with "mine": .spec.containers[name="main"].image' in refused.stderr
    kubectl("apply", "--server-side", "--field-manager=theirs", "--force-conflicts", "-f", "-", stdin=others)
    pod = json.loads(kubectl("get", "pod", "web", "-o", "json"))
    assert pod["spec"]["containers"][0]["image"] == "busybox:3"


def test_kinds_that_make_pods_are_written_and_scaled(kubectl: Kubectl) -> None:
    kubectl("create", "deployment", "crew", "--image=busybox:1")
    kubectl("scale", "deployment", "crew", "--replicas=3")
    header, row = kubectl("get", "deployments").splitlines()
    assert header.split() == ["NAME", "READY", "UP-TO-DATE", "AVAILABLE", "AGE"]
    assert row.split()[:2] == ["crew", "0/3"]
    kubectl("create", "job", "once", "--image=busybox:1", "--", "true")
    job = json.loads(kubectl("get", "job", "once", "-o", "json"))
    assert job["spec"]["template"]["spec"]["containers"][0]["command"] == ["true"]
    assert job["spec"]["selector"]["matchLabels"] == {"batch.kubernetes.io/controller-uid": job["metadata"]["uid"]}
    kubectl("delete", "deployment/crew", "job/once")


def test_a_quota_is_counted_and_kept(kubectl: Kubectl) -> None:
    kubectl("create", "quota", "small", "--hard=pods=1")
    kubectl("create", "-f", "-", stdin=POD)
    refused = kubectl.run("create", "-f", "-", stdin=POD.replace("name: web", "name: web-2"))
    assert "exceeded quota: small, requested: pods=1, used: pods=1, limited: pods=1" in refused.stderr
    assert "1     1" in kubectl("describe", "quota", "small")
    kubectl("delete", "pod", "web", "--force")
    kubectl("create", "-f", "-", stdin=POD.replace("name: web", "name: web-2"))
    kubectl("delete", "quota", "small")


def test_get_in_every_form(kubectl: Kubectl) -> None:
    kubectl("create", "-f", "-", stdin=POD)
    header, row = kubectl("get", "pods").splitlines()
    assert header.split() == ["NAME", "READY", "STATUS", "RESTARTS", "AGE"]
    assert row.split()[:4] == ["web", "0/1", "Pending", "0"]
    assert "NOMINATED NODE" in kubectl("get", "pods", "-o", "wide")
    assert kubectl("get", "pod", "web", "-o", "jsonpath={.spec.containers[0].env[1].value}") == "2"
    assert "name: web" in kubectl("get", "pod", "web", "-o", "yaml")
    assert kubectl("get", "pods", "-l", "app in (web)", "-o", "name").strip() == "pod/web"
    assert kubectl("get", "pods", "--field-selector", "status.phase=Running", "-o", "name") == ""
    assert "web" in kubectl("get", "pods", "-A", "--sort-by=.metadata.name", "--show-labels")
    assert "web" in kubectl("get", "all")


def test_describe_and_events(kubectl: Kubectl, tmp_path: Path) -> None:
    kubectl("create", "-f", "-", stdin=NODE)
    kubectl("create", "-f", "-", stdin=POD)
    bind(kubectl, "web", "node-a", tmp_path)
    uid = kubectl("get", "pod", "web", "-o", "jsonpath={.metadata.uid}")
    event = {
        "apiVersion": "v1",
        "kind": "Event",
        "metadata": {"name": f"web.{time.time_ns():x}"},
        "involvedObject": {"kind": "Pod", "namespace": "default", "name": "web", "uid": uid},
        "reason": "Landed",
        "message": "it has a card",
        "type": "Normal",
    }
    kubectl("create", "-f", "-", stdin=json.dumps(event))
    described = kubectl("describe", "pod", "web")
    assert "it has a card" in described
    assert "node-a" in described
    assert "elasticgpu.io/slot" in kubectl("describe", "node", "node-a")
    assert "Landed" in kubectl("get", "events")


def test_label_annotate_patch_edit_and_replace(kubectl: Kubectl, tmp_path: Path) -> None:
    kubectl("create", "-f", "-", stdin=POD)
    kubectl("label", "pod", "web", "tier=front")
    kubectl("annotate", "pod", "web", "note=a b")
    kubectl("patch", "pod", "web", "-p", '{"spec":{"containers":[{"name":"main","image":"busybox:3"}]}}')
    kubectl("patch", "pod", "web", "--type=merge", "-p", '{"metadata":{"labels":{"tier":null}}}')
    kubectl("patch", "pod", "web", "--type=json", "-p", '[{"op":"add","path":"/metadata/labels/j","value":"1"}]')
    pod = json.loads(kubectl("get", "pod", "web", "-o", "json"))
    assert pod["metadata"]["labels"] == {"app": "web", "j": "1"}
    assert pod["metadata"]["annotations"]["note"] == "a b"
    assert [e["name"] for e in pod["spec"]["containers"][0]["env"]] == ["A", "B"]
    editor = tmp_path / "editor"
    editor.write_text('#!/bin/sh\nsed -i "s/busybox:3/busybox:4/" "$1"\n')
    editor.chmod(0o755)
    environment = {**os.environ, "KUBECONFIG": str(kubectl.kubeconfig), "HOME": str(tmp_path), "EDITOR": str(editor)}
    subprocess.run([str(kubectl.binary), "edit", "pod", "web"], env=environment, check=True, capture_output=True)
    pod = json.loads(kubectl("get", "pod", "web", "-o", "json"))
    assert pod["spec"]["containers"][0]["image"] == "busybox:4"
    pod["metadata"]["labels"]["r"] = "1"
    kubectl("replace", "-f", "-", stdin=json.dumps(pod))
    stale = kubectl.run("replace", "-f", "-", stdin=json.dumps(pod))
    assert "the object has been modified" in stale.stderr


def test_typed_writes(kubectl: Kubectl) -> None:
    """What newer kubectls send in protobuf."""
    kubectl("create", "configmap", "c", "--from-literal=a=b")
    kubectl("create", "secret", "generic", "s", "--from-literal=x=y")
    kubectl("create", "serviceaccount", "robot")
    kubectl("create", "namespace", "tmp")
    assert kubectl("get", "cm", "c", "-o", "jsonpath={.data}") in ('{"a":"b"}', "map[a:b]")
    assert kubectl("get", "secret", "s", "-o", "jsonpath={.data.x}") == "eQ=="
    assert kubectl("auth", "can-i", "create", "pods").strip() == "yes"
    assert "*.*" in kubectl("auth", "can-i", "--list")
    kubectl("delete", "namespace/tmp", "serviceaccount/robot")


def test_cordon_and_drain(kubectl: Kubectl, tmp_path: Path) -> None:
    kubectl("create", "-f", "-", stdin=NODE)
    kubectl("create", "-f", "-", stdin=POD)
    bind(kubectl, "web", "node-a", tmp_path)
    kubectl("cordon", "node-a")
    assert "Ready,SchedulingDisabled" in kubectl("get", "nodes")
    drained = kubectl.run("drain", "node-a", "--force", "--timeout=2s")
    assert "evicting pod default/web" in drained.stdout + drained.stderr
    # nobody plays the kubelet here, so the pod stays, marked
    assert kubectl("get", "pod", "web", "-o", "jsonpath={.metadata.deletionTimestamp}")
    kubectl("uncordon", "node-a")


def test_wait_and_watch(kubectl: Kubectl) -> None:
    kubectl("create", "-f", "-", stdin=POD)
    environment = {"KUBECONFIG": str(kubectl.kubeconfig), "HOME": str(kubectl.home), "PATH": "/usr/bin:/bin"}
    command = [str(kubectl.binary), "get", "pods", "-w", "--no-headers"]
    watch = subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True)
    command = [str(kubectl.binary), "wait", "pod/web", "--for=delete", "--timeout=20s"]
    waiter = subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        assert watch.stdout is not None
        assert watch.stdout.readline().split()[:3] == ["web", "0/1", "Pending"]
        kubectl("patch", "pod", "web", "-p", '{"metadata":{"labels":{"x":"1"}}}')
        assert watch.stdout.readline().split()[0] == "web"
        kubectl("delete", "pod", "web")
        _, errors = waiter.communicate(timeout=DEADLINE_SECONDS)
        assert waiter.returncode == 0, errors
    finally:
        watch.terminate()
        watch.wait(DEADLINE_SECONDS)
        if waiter.poll() is None:
            waiter.kill()


def test_logs(kubectl: Kubectl, tmp_path: Path) -> None:
    kubectl("create", "-f", "-", stdin=NODE)
    kubectl("annotate", "node", "node-a", f"elasticgpu.io/pod-logs={tmp_path}")
    kubectl("create", "-f", "-", stdin=POD)
    bind(kubectl, "web", "node-a", tmp_path)
    uid = kubectl("get", "pod", "web", "-o", "jsonpath={.metadata.uid}")
    file = tmp_path / f"default_web_{uid}" / "main" / "0.log"
    file.parent.mkdir(parents=True)
    times = ("2026-11-22T08:00:00.123456789Z", "2026-11-22T08:00:05.000000000Z")
    file.write_text(f"{times[0]} stdout F hello\n{times[1]} stderr F world\n")
    assert kubectl("logs", "web") == "hello\nworld\n"
    assert kubectl("logs", "web", "--timestamps") == f"{times[0]} hello\n{times[1]} world\n"
    assert kubectl("logs", "web", "--since-time=2026-11-22T08:00:03Z") == "world\n"
    assert kubectl("logs", "web", "--since=1s") == ""
    assert kubectl("logs", "web", "-c", "main", "--tail=1") == "world\n"
    assert kubectl.run("logs", "web", "-c", "nobody").returncode == 1


def test_explain(kubectl: Kubectl) -> None:
    assert "List of environment variables" in kubectl("explain", "pod.spec.containers.env")
    assert "The cards to prefer among those that fit." in kubectl("explain", "elasticgpuclaim.spec")
    for kind in (ElasticGPU, ElasticGPUClass, ElasticGPUClaim):
        first, *_ = str(kind.__doc__).splitlines()
        assert first in " ".join(kubectl("explain", kind.__name__.lower()).split()), "it says what the docstring says"


def test_deletion_by_selector_and_dry_runs(kubectl: Kubectl) -> None:
    kubectl("apply", "-f", "-", "--dry-run=server", stdin=POD)
    assert kubectl("get", "pods", "-o", "name") == ""
    kubectl("apply", "-f", "-", stdin=POD)
    assert "unchanged" in kubectl("apply", "-f", "-", "--dry-run=server", stdin=POD)
    kubectl("delete", "pods", "-l", "app=web")
    assert kubectl("get", "pods", "-o", "name") == ""


def test_errors_say_what_kubectl_expects(kubectl: Kubectl) -> None:
    assert 'pods "none" not found' in kubectl.run("get", "pod", "none").stderr
    kubectl("create", "-f", "-", stdin=POD)
    assert "AlreadyExists" in kubectl.run("create", "-f", "-", stdin=POD).stderr
    assert "the server doesn't have a resource type" in kubectl.run("get", "ingressroutes").stderr


def test_what_is_not_there_is_said_by_name(kubectl: Kubectl) -> None:
    def said(*arguments: str, stdin: str | None = None) -> str:
        done = kubectl.run(*arguments, stdin=stdin)
        assert done.returncode == 1, done.stdout
        assert "panic" not in done.stderr
        return done.stderr

    for kind in ("cronjobs", "pvc", "ingress"):
        assert "is not in the simulated cluster" in said("get", kind)
    job = {"apiVersion": "batch/v1", "kind": "CronJob", "metadata": {"name": "nightly"}}
    create = ("create", "-f", "-", "--validate=false")
    assert "CronJob is not in the simulated cluster" in said(*create, stdin=json.dumps(job))
    for version in ("v1", "v2"):
        scaler = {"apiVersion": f"autoscaling/{version}", "kind": "HorizontalPodAutoscaler", "metadata": {"name": "h"}}
        assert "HorizontalPodAutoscaler is not in the simulated cluster: nothing scales by itself; kubectl scale" in (
            said(*create, stdin=json.dumps(scaler))
        )
    kubectl("create", "-f", "-", stdin=POD)
    assert "pod web does not have a host assigned" in said("exec", "web", "--", "true")
    assert "not valid for pod web" in said("exec", "web", "-c", "none", "--", "true")
