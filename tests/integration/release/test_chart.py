"""The Helm chart, rendered by Helm's own library, is what `egpu manifests` prints."""

import re
from pathlib import Path
from typing import Any

import pytest
import yaml
from helm_python import Chart, HelmError, lint

import egpu
from egpu.adapters.installation import Document, installation
from egpu.adapters.values import parse
from egpu_base.errors import InvalidInput

DEPLOY = Path(__file__).resolve().parents[3] / "deploy"
CHART = DEPLOY / "chart"
AGENT = {
    "runtimeClass": "nvidia",
    "cdi": "always",
    "kubeletDir": "/var/lib/k0s/kubelet",
    "cdiStaticDir": "/var/cdi/static",
    "cdiDynamicDir": "/var/cdi/dynamic",
}
CHOICES = {
    "image": {
        "repository": "registry.example/elastic-gpu",
        "tag": "dev",
        "pullPolicy": "Always",
        "pullSecrets": [{"name": "a"}],
    },
    "criticalPodsQuota": True,
    "securityContextConstraints": True,
    "agent": {"nodeSelector": {"example.com/gpu": "true"}, "pool": True} | AGENT,
    "scheduler": {"mode": "existing", "tag": "v1.36.2", "others": ["volcano", "other"]},
    "extender": {"remote": True},
    "vocabularies": ["hami"],
}
TOLERATION = {"key": "gpus", "operator": "Exists", "effect": "NoSchedule"}
SPREAD = {"podAntiAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": []}}
OF_PODS: dict[str, Any] = {
    "podAnnotations": {"example.com/team": "ml: 1"},
    "podLabels": {"example.com/cost": "7"},
    "extraArgs": ["--log-level=debug"],
    "resources": {"limits": {"memory": "1Gi"}},
}
OF_PLACES: dict[str, Any] = {"tolerations": [TOLERATION], "affinity": SPREAD, "priorityClassName": "gpus"}
TERM = {"matchExpressions": [{"key": "example.com/gpu", "operator": "Exists"}]}
OF_NODES = {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [TERM]}}}
SELECTED = OF_PODS | OF_PLACES | {"nodeSelector": {"example.com/infra": "true"}}
SETTINGS: dict[str, Any] = {
    "agent": OF_PODS | OF_PLACES | {"affinity": OF_NODES},
    "shim": OF_PODS,
    **dict.fromkeys(("controller", "webhook", "extender", "dashboard"), SELECTED),
}
OWN = {"scheduler": {"image": "registry.example/kube-scheduler", "tag": "v1.36.2", "others": ["volcano"]}}
EVERYTHING = CHOICES | SETTINGS | {name: CHOICES[name] | SETTINGS[name] for name in ("agent", "extender")}


TAGGED: dict[str, Any] = {"scheduler": {"tag": "v1.36.2"}}
"""Without a tag, Helm takes the cluster's version."""
REMOTE: dict[str, Any] = {"scheduler": {"mode": "existing"}, "extender": {"remote": True}}


def by_name(documents: list[Document]) -> dict[str, Document]:
    named = {
        f"{one['kind']} {one['metadata'].get('namespace', '')}/{one['metadata']['name']}": one for one in documents
    }
    assert len(named) == len(documents)
    return named


def rendered(values: dict[str, Any], namespace: str) -> dict[str, Document]:
    """Templates as Helm renders them, and the definitions that it takes as they are."""
    with Chart.load(CHART) as chart:
        texts = chart.render(values, name="elastic-gpu", namespace=namespace)
    sources = [text for name, text in texts.items() if name.endswith(".yaml")]
    sources += [path.read_text() for path in (CHART / "crds").iterdir()]
    return by_name([one for text in sources for one in yaml.safe_load_all(text) if one])


@pytest.mark.parametrize("namespace", ["gpus", "123"])
@pytest.mark.parametrize(
    "values",
    [TAGGED, CHOICES, SETTINGS | OWN, EVERYTHING, TAGGED | {"agent": {"pool": True}}, REMOTE],
    ids=["as it is", "choices", "settings", "everything", "pool", "remote"],
)
def test_helm_and_kustomize_install_the_same(values: dict[str, Any], namespace: str) -> None:
    documents = installation(DEPLOY, parse(yaml.safe_dump(values)), namespace=namespace)
    assert rendered(values, namespace) == by_name([one for one in documents if one["kind"] != "Namespace"])


def test_a_setting_reaches_its_component_alone() -> None:
    plain = rendered({}, "gpus")
    for component, settings in SETTINGS.items():
        changed = rendered({component: settings}, "gpus")
        names = {name for name in plain if plain[name] != changed[name]}
        others = {"agent": {"elastic-gpu-agent", "elastic-gpu-shim"}, "extender": {"elastic-gpu-scheduler"}}
        wanted = others.get(component, {f"elastic-gpu-{component}"})
        assert {name.rpartition("/")[2] for name in names} == wanted


def test_our_kube_scheduler_has_the_clusters_version() -> None:
    pod = rendered({}, "gpus")["Deployment gpus/elastic-gpu-scheduler"]["spec"]["template"]["spec"]
    assert re.fullmatch(r"registry\.k8s\.io/kube-scheduler:v1\.\d+\.\d+", pod["containers"][1]["image"])


def test_helm_refuses_an_extender_for_others_beside_our_scheduler() -> None:
    with pytest.raises(HelmError, match=r"use scheduler\.mode existing"):
        rendered({"extender": {"remote": True}}, "gpus")


@pytest.mark.parametrize("values", [{}, EVERYTHING], ids=["as it is", "everything"])
@pytest.mark.parametrize("version", ["v1.34.0", "v1.37.0"])
def test_helm_finds_nothing_to_say(values: dict[str, Any], version: str) -> None:
    report = lint(CHART, values, strict=True, kube_version=version, namespace="gpus")
    assert report["errors"] == []
    assert [one["error"] for one in report["messages"]] == ["icon is recommended"]


@pytest.mark.parametrize(
    "values",
    [
        {"image": {"pullPolicy": "Sometimes"}},
        {"agent": {"nodeSelector": {"a": True}}},
        {"agent": {"cdi": "sometimes"}},
        {"agent": {"kubeletDir": "var/lib/kubelet"}},
        {"agent": {"kubeletDir": "/var/lib/kubelet/"}},
        {"agent": {"cdiDynamicDir": "/run/a: b"}},
        {"image": {"pullSecrets": ["a"]}},
        {"image": {"pullSecrets": [{"name": ""}]}},
        {"criticalPodsQuota": "yes"},
        {"extender": {"remote": "yes"}},
        {"scheduler": {"mode": "none"}},
        {"scheduler": {"others": "volcano"}},
        {"extendr": {}},
        {"webhook": {"tolerations": {"key": "a"}}},
        {"shim": {"affinity": SPREAD}},
        {"agent": {"nodeSelector": {"elasticgpu.io/node": None}}},
    ],
)
def test_values_that_cannot_be_are_refused(values: dict[str, Any]) -> None:
    with Chart.load(CHART) as chart, pytest.raises(HelmError):
        chart.validate_schema(values)
    with pytest.raises(InvalidInput, match="lists all values"):
        parse(yaml.safe_dump(values))


def test_an_affinity_that_chooses_no_node_is_refused_for_agents() -> None:
    """They would run on every node."""
    values = {"agent": {"affinity": SPREAD}}
    with Chart.load(CHART) as chart, pytest.raises(HelmError):
        chart.validate_schema(values)
    with pytest.raises(InvalidInput, match=r"use agent\.nodeSelector"):
        parse(yaml.safe_dump(values))


def test_the_notes_name_the_nodes_and_the_chart_its_version() -> None:
    with Chart.load(CHART) as chart:
        notes = chart.render(CHOICES, name="e", namespace="gpus")["elastic-gpu/templates/NOTES.txt"]
        assert chart.metadata["appVersion"] == egpu.__version__
        plain = chart.render({}, name="e", namespace="gpus")["elastic-gpu/templates/NOTES.txt"]
    assert "kubectl label node NODE example.com/gpu=true" in notes
    assert "kubectl label node NODE elasticgpu.io/node=true" in plain
    images = yaml.safe_load((DEPLOY / "kustomization.yaml").read_text())["images"]
    assert images == [{"name": "elastic-gpu", "newTag": egpu.__version__}]
