"""Values that platforms need: directories of the node, Secrets of a registry, a quota, and OpenShift's constraints."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from egpu.adapters.installation import Document, installation
from egpu.adapters.values import AS_DEPLOYED, Values, parse
from egpu.apps.install.objects import KINDS
from egpu.apps.install.trying import Shape, pod

DEPLOY = Path(__file__).resolve().parents[3] / "deploy"


def workloads(values: Values) -> Iterator[Document]:
    for document in installation(DEPLOY, values):
        if document["kind"] in ("Deployment", "DaemonSet"):
            yield document


def daemon(name: str, values: Values) -> dict[str, Any]:
    (found,) = (one for one in workloads(values) if one["metadata"]["name"] == f"elastic-gpu-{name}")
    return found["spec"]["template"]["spec"]


def places(pod: dict[str, Any]) -> dict[str, tuple[str, str]]:
    """Return the path on the node and in the container of each volume."""
    inside = {mount["name"]: mount["mountPath"] for mount in pod["containers"][0]["volumeMounts"]}
    return {volume["name"]: (volume["hostPath"]["path"], inside[volume["name"]]) for volume in pod["volumes"]}


@pytest.mark.parametrize("name", ["agent", "shim"])
def test_kubelets_directory_moves_but_its_device_plugins_do_not(name: str) -> None:
    """kubelet has device plugins in /var/lib/kubelet/device-plugins, whatever its --root-dir is."""
    pod = daemon(name, parse("agent: {kubeletDir: /data/kubelet}"))
    assert "--kubelet-dir=/data/kubelet" in pod["containers"][0]["args"]
    assert places(pod)["device-plugins"] == ("/var/lib/kubelet/device-plugins", "/data/kubelet/device-plugins")
    for volume, (outside, inside) in places(pod).items():
        if volume != "device-plugins":
            assert outside == inside or volume == "cgroup"
            assert not outside.startswith("/var/lib/kubelet")
    moved = {"pod-resources", "plugins-registry", "plugins"} & places(pod).keys()
    assert all(places(pod)[volume][0].startswith("/data/kubelet/") for volume in moved)
    assert len(moved) == (3 if name == "agent" else 0)


def test_cdi_directories_move() -> None:
    pod = daemon("agent", parse("agent: {cdiStaticDir: /var/cdi/static, cdiDynamicDir: /var/cdi/dynamic}"))
    given = [one for one in pod["containers"][0]["args"] if one.startswith("--cdi-dir=")]
    assert given == ["--cdi-dir=/var/cdi/static", "--cdi-dir=/var/cdi/dynamic"], "the last one is written to"
    assert places(pod)["etc-cdi"] == ("/var/cdi/static", "/var/cdi/static")
    assert places(pod)["run-cdi"] == ("/var/cdi/dynamic", "/var/cdi/dynamic")


@pytest.mark.parametrize("mode", ["own", "existing"])
def test_every_pod_and_the_tried_one_pull_with_the_secrets(mode: str) -> None:
    values = parse(f"image: {{pullSecrets: [{{name: a}}, {{name: b}}]}}\nscheduler: {{mode: {mode}}}")
    wanted = [{"name": "a"}, {"name": "b"}]
    assert [one["spec"]["template"]["spec"]["imagePullSecrets"] for one in workloads(values)] == 6 * [wanted]
    assert pod("n", Shape("image", pull_secrets=wanted))["spec"]["imagePullSecrets"] == wanted
    assert "imagePullSecrets" not in pod("n", Shape("image"))["spec"]


def test_the_tried_pod_has_a_runtime_class_if_asked() -> None:
    assert pod("n", Shape("image", runtime_class="nvidia"))["spec"]["runtimeClassName"] == "nvidia"
    assert "runtimeClassName" not in pod("n", Shape("image"))["spec"]


def test_a_quota_counts_the_priority_classes_of_our_pods() -> None:
    values = parse("criticalPodsQuota: true")
    (quota,) = (one for one in installation(DEPLOY, values, namespace="gpus") if one["kind"] == "ResourceQuota")
    (scope,) = quota["spec"]["scopeSelector"]["matchExpressions"]
    critical = {
        name
        for one in workloads(values)
        if (name := one["spec"]["template"]["spec"].get("priorityClassName", "")).startswith("system-")
    }
    assert critical == set(scope["values"])
    assert quota["metadata"]["namespace"] == "gpus"
    assert KINDS["ResourceQuota"].stage < KINDS["Deployment"].stage
    assert not any(one["kind"] == "ResourceQuota" for one in installation(DEPLOY, AS_DEPLOYED))


def test_openshifts_constraints_permit_every_account_what_its_pods_need() -> None:
    values = parse("securityContextConstraints: true")
    given = {
        (subject["namespace"], subject["name"]): one["roleRef"]["name"].removeprefix("system:openshift:scc:")
        for one in installation(DEPLOY, values, namespace="gpus")
        if one["kind"] == "RoleBinding" and one["roleRef"]["name"].startswith("system:openshift:scc:")
        for subject in one["subjects"]
    }
    needed = {
        ("gpus", pod["serviceAccountName"]): "privileged" if privileged(pod) else "nonroot-v2"
        for pod in (one["spec"]["template"]["spec"] for one in workloads(values))
    }
    assert given == needed


def privileged(pod: dict[str, Any]) -> bool:
    return any(one.get("securityContext", {}).get("privileged", False) for one in pod["containers"])
