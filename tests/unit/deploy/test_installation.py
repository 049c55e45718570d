"""What deploy/ installs: valid in the Kubernetes versions that it is for, and the same whoever prints it."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import kubernetes_validate
import msgspec
import pytest
import yaml

from egpu.adapters.installation import Document, as_yaml, installation, patch, source
from egpu.adapters.values import AS_DEPLOYED, Values, parse
from egpu.core.gpu_nodes import AFFINITY, DISCOVERED, SELECTED
from egpu_base.api.kubernetes import Node, NodeSpec, Taint
from egpu_base.api.objects import ObjectMeta
from egpu_base.errors import InvalidInput
from egpu_sim.cluster.controllers.daemon_sets import DaemonSet, takes

ROOT = Path(__file__).resolve().parents[3]
DEPLOY = ROOT / "deploy"
KUBERNETES = ("1.34", "1.35", "1.36", "1.37")
EVERYTHING = parse("""
image: {repository: registry.example/elastic-gpu, tag: "1", pullPolicy: Always, pullSecrets: [{name: registry}]}
criticalPodsQuota: true
securityContextConstraints: true
agent: {nodeSelector: {example.com/gpu: "yes"}, pool: true, kubeletDir: /data/kubelet, cdiStaticDir: /var/cdi/static}
scheduler: {mode: existing, others: [volcano]}
extender: {remote: true}
vocabularies: [hami]
""")


def key(document: Document) -> str:
    meta = document["metadata"]
    return f"{document['kind']} {meta.get('namespace', '')}/{meta['name']}"


def nulls(value: Any, path: str = "") -> Iterator[str]:
    """Where a list has an empty item: what YAML makes of a lone dash, and no API server takes."""
    if isinstance(value, dict):
        for name, child in value.items():
            yield from nulls(child, f"{path}.{name}")
    elif isinstance(value, list):
        for index, child in enumerate(value):
            if child is None:
                yield f"{path}[{index}]"
            yield from nulls(child, f"{path}[{index}]")


@pytest.mark.parametrize("values", [AS_DEPLOYED, EVERYTHING], ids=["as it is", "everything chosen"])
@pytest.mark.parametrize("version", KUBERNETES)
def test_every_object_is_valid_in(version: str, values: Values) -> None:
    for document in installation(DEPLOY, values):
        assert kubernetes_validate.validate(document, version, strict=True) == version


WRITTEN = [path for path in DEPLOY.rglob("*.yaml") if path.parent != DEPLOY / "chart" / "templates"]


@pytest.mark.parametrize(
    "file", [*WRITTEN, *(ROOT / "examples").glob("*.yaml")], ids=lambda path: str(path.relative_to(ROOT))
)
def test_no_list_has_an_empty_item(file: Path) -> None:
    assert [where for document in yaml.safe_load_all(file.read_text()) for where in nulls(document)] == []


def test_a_lone_dash_is_found() -> None:
    assert list(nulls(yaml.safe_load("env:\n- {name: A}\n- # B\n- {name: C}"))) == [".env[1]"]


def containers(values: Values) -> Iterator[tuple[str, dict[str, Any], dict[str, Any]]]:
    """The workload's name, its pod and each of its containers."""
    for document in installation(DEPLOY, values):
        if document["kind"] in ("Deployment", "DaemonSet"):
            pod = document["spec"]["template"]["spec"]
            for container in pod["containers"]:
                yield document["metadata"]["name"], pod, container


@pytest.mark.parametrize("values", [AS_DEPLOYED, EVERYTHING], ids=["as it is", "everything chosen"])
def test_all_but_agent_and_shim_have_no_rights_on_their_node(values: Values) -> None:
    for name, pod, container in containers(values):
        if name in ("elastic-gpu-agent", "elastic-gpu-shim"):
            assert container["securityContext"] == {"privileged": True, "runAsUser": 0}, "the image's user is nobody"
            continue
        assert pod["securityContext"]["runAsNonRoot"] is True
        assert pod["securityContext"]["runAsUser"] > 0
        assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
        assert container["securityContext"] == {
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"]},
        }
        assert not any("hostPath" in volume for volume in pod["volumes"])
        assert not pod.get("hostPID")
    assert re.search(r"(?m)^USER (\d+):\1$", (DEPLOY / "Containerfile").read_text())


@pytest.mark.parametrize("values", [AS_DEPLOYED, EVERYTHING], ids=["as it is", "everything chosen"])
def test_what_refers_to_something_finds_it(values: Values) -> None:
    """What schemas do not see and an API server or the kubelet does."""
    documents = installation(DEPLOY, values)
    there = {key(document) for document in documents}
    assert len(there) == len(documents)
    workloads = [one for one in documents if one["kind"] in ("Deployment", "DaemonSet")]
    assert len(workloads) == 6
    for workload in workloads:
        spec, pod = workload["spec"], workload["spec"]["template"]["spec"]
        labels = workload["spec"]["template"]["metadata"]["labels"]
        assert spec["selector"]["matchLabels"].items() <= labels.items()
        assert f"ServiceAccount {workload['metadata']['namespace']}/{pod['serviceAccountName']}" in there
        volumes = [volume["name"] for volume in pod["volumes"]]
        assert len(set(volumes)) == len(volumes)
        assert {mount["name"] for container in pod["containers"] for mount in container["volumeMounts"]} == set(volumes)
        for volume in pod["volumes"]:
            if named := volume.get("configMap"):
                assert f"ConfigMap {workload['metadata']['namespace']}/{named['name']}" in there
        for container in pod["containers"]:
            environment = [variable["name"] for variable in container["env"]]
            assert len(set(environment)) == len(environment)
            assert set(re.findall(r"\$\((\w+)\)", " ".join(container["args"]))) <= set(environment)
            ports = {port["name"] for port in container.get("ports", [])}
            probes = () if workload["metadata"]["name"] == "elastic-gpu-shim" else ("livenessProbe", "readinessProbe")
            for probe in (container[name] for name in probes):
                port = (probe.get("httpGet") or probe["tcpSocket"])["port"]
                assert isinstance(port, int) or port in ports
    for document in documents:
        if document["kind"] == "Service":
            selected = [one for one in workloads if document["spec"]["selector"].items() <= labels_of(one).items()]
            named = {
                port["name"] for one in selected for port in one["spec"]["template"]["spec"]["containers"][0]["ports"]
            }
            assert {port["targetPort"] for port in document["spec"]["ports"]} <= named
        for subject in document.get("subjects", []):
            assert f"ServiceAccount {subject['namespace']}/{subject['name']}" in there
        if (role := document.get("roleRef")) and not role["name"].startswith("system:"):
            assert any(one.startswith(f"{role['kind']} ") and one.endswith(f"/{role['name']}") for one in there)


def test_a_kube_scheduler_whose_extender_is_gone_gives_up_the_lead() -> None:
    """It is ended with its lease, and the other pod's takes over."""
    (pod,) = (
        one["spec"]["template"]["spec"]
        for one in installation(DEPLOY, AS_DEPLOYED)
        if one["kind"] == "Deployment" and one["metadata"]["name"] == "elastic-gpu-scheduler"
    )
    extender, scheduler = pod["containers"]
    (health,) = (port["containerPort"] for port in extender["ports"] if port["name"] == "health")
    assert scheduler["livenessProbe"]["httpGet"]["port"] == health


def test_nothing_but_a_person_ends_a_shim() -> None:
    """Every program that has an executor on its node would end with it."""
    shim, agent = (next(one for one in installation(DEPLOY, AS_DEPLOYED) if key(one).endswith(f"/{name}") and
                        one["kind"] == "DaemonSet") for name in ("elastic-gpu-shim", "elastic-gpu-agent"))  # fmt: skip
    assert shim["spec"]["updateStrategy"] == {"type": "OnDelete"}
    pods = [one["spec"]["template"]["spec"] for one in (shim, agent)]
    (container,) = pods[0]["containers"]
    assert "livenessProbe" not in container
    assert pods[0]["priorityClassName"] == "system-node-critical", "others are evicted, and killed for memory"
    assert {"operator": "Exists", "effect": "NoExecute"} in pods[0]["tolerations"]
    assert pods[0]["automountServiceAccountToken"] is False
    for same in ("nodeSelector", "affinity", "tolerations", "priorityClassName", "hostPID"):
        assert pods[0][same] == pods[1][same]
    assert "--shim" in pods[1]["containers"][0]["args"]
    state = "--state-dir=/var/lib/elasticgpu"
    assert all(state in pod["containers"][0]["args"] for pod in pods), "they meet there"


@pytest.mark.parametrize("name", ["agent", "shim"])
def test_nodes_find_themselves_by_the_labels_of_one_list(name: str) -> None:
    (written,) = yaml.safe_load_all((DEPLOY / f"{name}.yaml").read_text())
    assert written["spec"]["template"]["spec"]["affinity"] == AFFINITY
    chosen = {key(one): one for one in installation(DEPLOY, EVERYTHING)}
    pod = chosen[f"DaemonSet elastic-gpu-system/elastic-gpu-{name}"]["spec"]["template"]["spec"]
    assert pod["affinity"] == SELECTED, "with a node selector of its own, a site still keeps nodes out"
    own = parse(yaml.safe_dump({"agent": {"affinity": {"nodeAffinity": {}}}}))
    placed = {key(one): one for one in installation(DEPLOY, own)}
    pod = placed[f"DaemonSet elastic-gpu-system/elastic-gpu-{name}"]["spec"]["template"]["spec"]
    assert pod["affinity"] == {"nodeAffinity": {}}


@pytest.mark.parametrize("name", ["agent", "shim"])
@pytest.mark.parametrize(
    ("labels", "runs"),
    [
        ({"cloud.google.com/gke-accelerator": "nvidia-l4"}, True),
        ({"nvidia.com/gpu.present": "true", "elasticgpu.io/node": "false"}, False),
        ({"elasticgpu.io/node": "true"}, True),
        ({"kubernetes.azure.com/accelerator": "nvidia", "kubernetes.io/os": "windows"}, False),
        ({}, False),
    ],
)
def test_a_controller_of_daemon_sets_puts_them_on_these_nodes(name: str, labels: dict[str, str], *, runs: bool) -> None:
    documents = {key(one): one for one in installation(DEPLOY, AS_DEPLOYED)}
    owner = msgspec.convert(documents[f"DaemonSet elastic-gpu-system/elastic-gpu-{name}"], DaemonSet)
    taint = Taint(key="nvidia.com/gpu", value="present", effect="NoSchedule")
    node = Node(metadata=ObjectMeta(name="n0", labels=labels), spec=NodeSpec(taints=[taint]))
    assert takes(owner, node) == runs


def test_every_label_of_the_list_is_documented_with_its_writer() -> None:
    page = (ROOT / "docs/operate/managed-clusters.md").read_text()
    rows = [row for row in page.splitlines() if row.startswith("| `")]
    for label in DISCOVERED:
        text = f"{label.name}={label.value}" if label.value else label.name
        (row,) = (row for row in rows if row.startswith(f"| `{text}` |"))
        assert label.writer in row


def labels_of(workload: Document) -> dict[str, str]:
    return workload["spec"]["template"]["metadata"]["labels"]


def test_a_site_has_its_way() -> None:
    plain = {key(one): one for one in installation(DEPLOY, parse("scheduler: {mode: existing}"))}
    chosen = {key(one): one for one in installation(DEPLOY, EVERYTHING, namespace="gpus")}
    more = {"ResourceQuota gpus/elastic-gpu-critical-pods"}
    more |= {f"RoleBinding gpus/elastic-gpu-{name}" for name in ("privileged", "nonroot")}
    assert {one.replace("elastic-gpu-system", "gpus") for one in plain} | more == chosen.keys()
    assert "elastic-gpu-system" not in as_yaml(list(chosen.values()))
    for kind, name in (("Deployment", "controller"), ("Deployment", "extender"), ("DaemonSet", "agent")):
        (container,) = chosen[f"{kind} gpus/elastic-gpu-{name}"]["spec"]["template"]["spec"]["containers"]
        assert (container["image"], container["imagePullPolicy"]) == ("registry.example/elastic-gpu:1", "Always")
    agent = chosen["DaemonSet gpus/elastic-gpu-agent"]["spec"]["template"]["spec"]
    assert agent["nodeSelector"] == {"example.com/gpu": "yes"}
    assert "--pool-pki=/etc/elasticgpu/pool" in agent["containers"][0]["args"]
    (webhook,) = chosen["Deployment gpus/elastic-gpu-webhook"]["spec"]["template"]["spec"]["containers"]
    for container in (agent["containers"][0], webhook):
        assert [arg for arg in container["args"] if arg.startswith("--vocabularies")] == ["--vocabularies=hami"]
    assert {"--scheduler-name=", "--other-schedulers=volcano"} <= set(webhook["args"])
    (extender,) = chosen["Deployment gpus/elastic-gpu-extender"]["spec"]["template"]["spec"]["containers"]
    assert "--listen=0.0.0.0:3456" in extender["args"]
    assert "--listen=127.0.0.1:3456" not in extender["args"]


def test_our_scheduler_needs_nothing_of_the_control_plane() -> None:
    """An administrator of a managed cluster can change neither kube-scheduler nor its nodes."""
    own = {key(one): one for one in installation(DEPLOY, parse("scheduler: {tag: v1.36.2, others: [volcano, other]}"))}
    assert "Deployment elastic-gpu-system/elastic-gpu-extender" not in own
    scheduler = own["Deployment elastic-gpu-system/elastic-gpu-scheduler"]["spec"]
    assert scheduler["replicas"] == 2
    pod = scheduler["template"]["spec"]
    assert not {"nodeSelector", "tolerations", "hostNetwork"} & pod.keys()
    extender, kube_scheduler = pod["containers"]
    assert kube_scheduler["image"] == "registry.k8s.io/kube-scheduler:v1.36.2"
    text = own["ConfigMap elastic-gpu-system/elastic-gpu-scheduler"]["data"]["config.yaml"]
    configuration = yaml.safe_load(text)
    (asked,) = configuration["extenders"]
    assert f"--listen={asked['urlPrefix'].removeprefix('https://')}" in extender["args"]
    assert asked["urlPrefix"].startswith("https://127.0.0.1:")
    (profile,) = configuration["profiles"]
    (webhook,) = own["Deployment elastic-gpu-system/elastic-gpu-webhook"]["spec"]["template"]["spec"]["containers"]
    assert {f"--scheduler-name={profile['schedulerName']}", "--other-schedulers=volcano,other"} <= set(webhook["args"])
    files = {
        f"{mount['mountPath']}/{item['path']}"
        for mount in kube_scheduler["volumeMounts"]
        for volume in pod["volumes"]
        if volume["name"] == mount["name"]
        for item in volume.get("secret", {}).get("items", [])
    }
    assert {path for name, path in asked["tlsConfig"].items() if name.endswith("File")} == files


def test_the_extender_follows_the_election_of_the_kube_scheduler_beside_it() -> None:
    own = {key(one): one for one in installation(DEPLOY, AS_DEPLOYED, namespace="gpus")}
    extender, kube_scheduler = own["Deployment gpus/elastic-gpu-scheduler"]["spec"]["template"]["spec"]["containers"]
    lease = "elastic-gpu-scheduler"
    assert f"--follow={lease}" in extender["args"]
    assert f"--leader-elect-resource-name={lease}" in kube_scheduler["args"]
    assert "--leader-elect-resource-namespace=$(POD_NAMESPACE)" in kube_scheduler["args"]
    assert yaml.safe_load(own[f"ConfigMap gpus/{lease}"]["data"]["config.yaml"])["leaderElection"]["leaderElect"]
    (rule,) = own[f"Role gpus/{lease}"]["rules"]
    assert rule["resourceNames"] == [lease]
    roles = {one["roleRef"]["name"] for one in own.values() if one["kind"] == "ClusterRoleBinding"}
    assert {"system:kube-scheduler", "system:volume-scheduler"} <= roles


def test_beside_an_existing_scheduler_nothing_of_ours_is_left() -> None:
    existing = installation(DEPLOY, parse("scheduler: {mode: existing}"))
    assert [key(one) for one in existing if one["metadata"]["name"].startswith("elastic-gpu-scheduler")] == []
    own = {key(one) for one in installation(DEPLOY, AS_DEPLOYED)}
    assert {key(one) for one in existing} - own == {"Deployment elastic-gpu-system/elastic-gpu-extender"}


def test_an_extender_beside_our_scheduler_listens_to_nobody_else() -> None:
    with pytest.raises(InvalidInput, match=r"use scheduler.mode existing, or leave extender.remote out"):
        parse("extender: {remote: true}")


def test_a_patch_that_does_not_apply_says_where() -> None:
    for operation in (
        {"op": "test", "path": "/a/0", "value": 2},
        {"op": "replace", "path": "/b", "value": 2},
        {"op": "add", "path": "/a/5/b", "value": 2},
        {"op": "remove", "path": "/a/0", "value": 1},
    ):
        with pytest.raises(InvalidInput, match=str(operation["path"])):
            patch({"a": [1]}, [operation])


def test_the_package_finds_its_manifests() -> None:
    assert source().samefile(DEPLOY)
    assert [key(one) for one in yaml.safe_load_all(as_yaml(installation(source(), AS_DEPLOYED)))] == [
        key(one) for one in installation(DEPLOY, AS_DEPLOYED)
    ]
