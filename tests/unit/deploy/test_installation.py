"""What deploy/ installs: valid in the Kubernetes versions that it is for, and the same whoever prints it."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml

from egpu.adapters.installation import PATCHES, Document, Site, as_yaml, installation, patch, source
from egpu.errors import InvalidInput

ROOT = Path(__file__).resolve().parents[3]
DEPLOY = ROOT / "deploy"
KUBERNETES = ("1.34", "1.35", "1.36", "1.37")
EVERYTHING = Site(
    namespace="gpus",
    image="registry.example/elastic-gpu:1",
    pull_policy="Always",
    node_selector={"example.com/gpu": "yes"},
    patches=list(PATCHES),
    vocabularies=["hami"],
)


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


@pytest.mark.parametrize("site", [Site(), EVERYTHING], ids=["as it is", "everything chosen"])
@pytest.mark.parametrize("version", KUBERNETES)
def test_every_object_is_valid_in(version: str, site: Site) -> None:
    for document in installation(DEPLOY, site):
        assert kubernetes_validate.validate(document, version, strict=True) == version


WRITTEN = [path for path in DEPLOY.rglob("*.yaml") if path.parent != DEPLOY / "chart" / "templates"]


@pytest.mark.parametrize(
    "file", [*WRITTEN, *(ROOT / "examples").glob("*.yaml")], ids=lambda path: str(path.relative_to(ROOT))
)
def test_no_list_has_an_empty_item(file: Path) -> None:
    assert [where for document in yaml.safe_load_all(file.read_text()) for where in nulls(document)] == []


def test_a_lone_dash_is_found() -> None:
    assert list(nulls(yaml.safe_load("env:\n- {name: A}\n- # B\n- {name: C}"))) == [".env[1]"]


def containers(site: Site) -> Iterator[tuple[str, dict[str, Any], dict[str, Any]]]:
    """The workload's name, its pod and its container."""
    for document in installation(DEPLOY, site):
        if document["kind"] in ("Deployment", "DaemonSet"):
            pod = document["spec"]["template"]["spec"]
            (container,) = pod["containers"]
            yield document["metadata"]["name"], pod, container


@pytest.mark.parametrize("site", [Site(), EVERYTHING], ids=["as it is", "everything chosen"])
def test_all_but_agent_and_shim_have_no_rights_on_their_node(site: Site) -> None:
    found = {name: (pod, container) for name, pod, container in containers(site)}
    for name in ("elastic-gpu-agent", "elastic-gpu-shim"):
        pod, container = found.pop(name)
        assert container["securityContext"] == {"privileged": True, "runAsUser": 0}, "the image's own user is nobody"
    for pod, container in found.values():
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


@pytest.mark.parametrize("site", [Site(), EVERYTHING], ids=["as it is", "everything chosen"])
def test_what_refers_to_something_finds_it(site: Site) -> None:
    """What schemas do not see and an API server or the kubelet does."""
    documents = installation(DEPLOY, site)
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
        (container,) = pod["containers"]
        environment = [variable["name"] for variable in container["env"]]
        assert len(set(volumes)) == len(volumes)
        assert len(set(environment)) == len(environment)
        assert {mount["name"] for mount in container["volumeMounts"]} == set(volumes)
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
        if role := document.get("roleRef"):
            assert any(one.startswith(f"{role['kind']} ") and one.endswith(f"/{role['name']}") for one in there)


def test_nothing_but_a_person_ends_a_shim() -> None:
    """Every program that has an executor on its node would end with it."""
    shim, agent = (next(one for one in installation(DEPLOY, Site()) if key(one).endswith(f"/{name}") and
                        one["kind"] == "DaemonSet") for name in ("elastic-gpu-shim", "elastic-gpu-agent"))  # fmt: skip
    assert shim["spec"]["updateStrategy"] == {"type": "OnDelete"}
    pods = [one["spec"]["template"]["spec"] for one in (shim, agent)]
    (container,) = pods[0]["containers"]
    assert "livenessProbe" not in container
    assert pods[0]["priorityClassName"] == "system-node-critical", "others are evicted, and killed for memory"
    assert {"operator": "Exists", "effect": "NoExecute"} in pods[0]["tolerations"]
    assert pods[0]["automountServiceAccountToken"] is False
    for same in ("nodeSelector", "tolerations", "priorityClassName", "hostPID"):
        assert pods[0][same] == pods[1][same]
    assert "--shim" in pods[1]["containers"][0]["args"]
    state = "--state-dir=/var/lib/elasticgpu"
    assert all(state in pod["containers"][0]["args"] for pod in pods), "they meet there"


def labels_of(workload: Document) -> dict[str, str]:
    return workload["spec"]["template"]["metadata"]["labels"]


def test_a_site_has_its_way() -> None:
    plain = {key(one): one for one in installation(DEPLOY, Site())}
    chosen = {key(one): one for one in installation(DEPLOY, EVERYTHING)}
    assert {one.replace("elastic-gpu-system", "gpus") for one in plain} == chosen.keys()
    assert "elastic-gpu-system" not in as_yaml(list(chosen.values()))
    for kind, name in (("Deployment", "controller"), ("Deployment", "extender"), ("DaemonSet", "agent")):
        (container,) = chosen[f"{kind} gpus/elastic-gpu-{name}"]["spec"]["template"]["spec"]["containers"]
        assert (container["image"], container["imagePullPolicy"]) == (EVERYTHING.image, "Always")
    agent = chosen["DaemonSet gpus/elastic-gpu-agent"]["spec"]["template"]["spec"]
    assert agent["nodeSelector"] == {"example.com/gpu": "yes"}
    assert "--pool-pki=/etc/elasticgpu/pool" in agent["containers"][0]["args"]
    (webhook,) = chosen["Deployment gpus/elastic-gpu-webhook"]["spec"]["template"]["spec"]["containers"]
    for container in (agent["containers"][0], webhook):
        assert [arg for arg in container["args"] if arg.startswith("--vocabularies")] == ["--vocabularies=hami"]
    (extender,) = chosen["Deployment gpus/elastic-gpu-extender"]["spec"]["template"]["spec"]["containers"]
    assert "--listen=0.0.0.0:3456" in extender["args"]
    assert "--listen=127.0.0.1:3456" not in extender["args"]


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
    assert [key(one) for one in yaml.safe_load_all(as_yaml(installation(source(), Site())))] == [
        key(one) for one in installation(DEPLOY, Site())
    ]
