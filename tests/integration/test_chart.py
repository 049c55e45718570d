"""The Helm chart, rendered by Helm's own library, is what `egpu manifests` prints."""

from pathlib import Path
from typing import Any

import pytest
import yaml
from helm_python import Chart, HelmError, lint

import egpu
from egpu.adapters.installation import PATCHES, Document, Site, installation

DEPLOY = Path(__file__).resolve().parents[2] / "deploy"
CHART = DEPLOY / "chart"
AGENT = {"runtimeClass": "nvidia", "cdi": "always"}
CHOICES = {
    "image": {"repository": "registry.example/elastic-gpu", "tag": "dev", "pullPolicy": "Always"},
    "agent": {"nodeSelector": {"elasticgpu.io/node": None, "example.com/gpu": "true"}, "pool": True} | AGENT,
    "extender": {"remote": True},
    "vocabularies": ["hami"],
}
CHOSEN = Site(
    namespace="gpus",
    image="registry.example/elastic-gpu:dev",
    pull_policy="Always",
    node_selector={"example.com/gpu": "true"},
    vocabularies=["hami"],
    runtime_class="nvidia",
    cdi="always",
    patches=list(PATCHES),
)


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


@pytest.mark.parametrize(
    ("values", "site"),
    [
        ({}, Site(namespace="elastic-gpu-system")),
        ({}, Site(namespace="123")),
        (CHOICES, CHOSEN),
        ({"agent": {"pool": True}}, Site(namespace="gpus", patches=["pool.yaml"])),
        ({"extender": {"remote": True}}, Site(namespace="gpus", patches=["extender-remote.yaml"])),
    ],
    ids=["as it is", "a namespace of digits", "everything chosen", "pool", "remote"],
)
def test_helm_and_kustomize_install_the_same(values: dict[str, Any], site: Site) -> None:
    wanted = [one for one in installation(DEPLOY, site) if one["kind"] != "Namespace"]
    assert rendered(values, site.namespace) == by_name(wanted)


@pytest.mark.parametrize("values", [{}, CHOICES], ids=["as it is", "everything chosen"])
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
        {"extender": {"remote": "yes"}},
        {"extendr": {}},
    ],
)
def test_values_that_cannot_be_are_refused(values: dict[str, Any]) -> None:
    with Chart.load(CHART) as chart, pytest.raises(HelmError):
        chart.validate_schema(values)


def test_the_notes_name_the_nodes_and_the_chart_its_version() -> None:
    with Chart.load(CHART) as chart:
        notes = chart.render(CHOICES, name="e", namespace="gpus")["elastic-gpu/templates/NOTES.txt"]
        assert chart.metadata["appVersion"] == egpu.__version__
    assert "kubectl label node NODE example.com/gpu=true" in notes
    images = yaml.safe_load((DEPLOY / "kustomization.yaml").read_text())["images"]
    assert images == [{"name": "elastic-gpu", "newTag": egpu.__version__}]
