"""Nodes with cards by their labels, platforms, and other programs that give out the cards."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from egpu.core.demand.selection import selects
from egpu.core.gpu_nodes import BY_DEFAULT, DISCOVERED, NODE_LABEL, SELECTED, Label, agent_pod, gpu_node, platform
from egpu.core.rivals import DRA, rival, rivals_by_node
from egpu_base.api.kubernetes import Container, Node, NodeSpec, NodeStatus, Pod, PodSpec
from egpu_base.api.objects import ObjectMeta


def node(*, provider_id: str = "", capacity: dict[str, str] | None = None, **labels: str) -> Node:
    named = {name.replace("__", "/").replace("_", "."): value for name, value in labels.items()}
    meta = ObjectMeta(name="n0", labels=named)
    return Node(metadata=meta, spec=NodeSpec(provider_id=provider_id), status=NodeStatus(capacity=dict(capacity or {})))


def labelled(label: str, value: str = "true") -> Node:
    return Node(metadata=ObjectMeta(name="n0", labels={label: value}))


@pytest.mark.parametrize("label", DISCOVERED, ids=lambda one: one.name)
def test_a_label_of_others_puts_an_agent_on_a_node(label: Label) -> None:
    value = label.value or "nvidia-t4"
    found = gpu_node(labelled(label.name, value))
    assert found is not None
    assert (found.known_by, found.served) == (f"{label.name}={value}", True)
    assert gpu_node(labelled(label.name, "amd")) is None or not label.value


def test_windows_nodes_get_no_agent() -> None:
    labels = {"kubernetes.azure.com/accelerator": "nvidia", "kubernetes.io/os": "windows"}
    found = gpu_node(Node(metadata=ObjectMeta(name="n0", labels=labels)))
    assert found is not None
    assert not found.served


def test_our_label_decides() -> None:
    found = gpu_node(labelled("elasticgpu.io/node"))
    assert found is not None
    assert found.served
    both = {"elasticgpu.io/node": "false", "nvidia.com/gpu.present": "true"}
    kept_away = Node(metadata=ObjectMeta(name="n0", labels=both))
    assert gpu_node(kept_away) is None
    assert not selects(BY_DEFAULT, kept_away)
    assert gpu_node(labelled("kubernetes.io/os", "linux")) is None


def test_the_node_selector_of_a_site_decides_instead() -> None:
    agents = agent_pod({"spec": {"template": {"spec": {"nodeSelector": {"a": "1"}, "affinity": SELECTED}}}})
    own, discovered = gpu_node(labelled("a", "1"), agents), gpu_node(labelled("nvidia.com/gpu.present"), agents)
    assert own is not None
    assert own.served
    assert discovered is not None
    assert not discovered.served
    away = Node(metadata=ObjectMeta(name="n0", labels={"a": "1", "elasticgpu.io/node": "false"}))
    assert not selects(agents, away)


LABELS = st.dictionaries(
    st.sampled_from([NODE_LABEL, "kubernetes.io/os", *(one.name for one in DISCOVERED)]),
    st.sampled_from(["true", "false", "nvidia", "amd", "linux", "windows", ""]),
)


@given(LABELS)
def test_the_affinity_says_what_its_words_say(labels: dict[str, str]) -> None:
    ours, windows = labels.get(NODE_LABEL), labels.get("kubernetes.io/os") == "windows"
    named = any(one.name in labels and one.value in ("", labels[one.name]) for one in DISCOVERED)
    wanted = ours == "true" or (named and ours != "false" and not windows)
    assert selects(BY_DEFAULT, Node(metadata=ObjectMeta(name="n0", labels=labels))) == wanted


def test_capacity_of_another_plugin_makes_a_node_known() -> None:
    found = gpu_node(node(capacity={"nvidia.com/gpu": "8"}))
    assert found is not None
    assert (found.known_by, found.served) == ("capacity nvidia.com/gpu", False)
    assert gpu_node(node(capacity={"nvidia.com/gpu": "0"})) is None


@pytest.mark.parametrize(
    ("version", "known", "name"),
    [
        ("v1.33.5-eks-113cf36", node(), "EKS"),
        ("v1.33.5-gke.1080000", node(), "GKE"),
        ("v1.33.5+k3s1", node(), "k3s"),
        ("v1.33.5+rke2r1", node(), "RKE2"),
        ("v1.33.5", labelled("kubernetes.azure.com/cluster"), "AKS"),
        ("v1.33.5", labelled("node.openshift.io/os_id", "rhcos"), "OpenShift"),
        ("v1.33.5", node(provider_id="kind://docker/kind/kind-worker"), "kind"),
        ("v1.33.5", node(), ""),
    ],
)
def test_platforms_are_known_by_version_and_nodes(version: str, known: Node, name: str) -> None:
    assert platform(version, [known]) == name


PLUGINS = "/var/lib/kubelet/device-plugins"


def pod(container: str = "plugin", path: str = PLUGINS, **labels: str) -> Pod:
    named = {name.replace("__", "/").replace("_", "-"): value for name, value in labels.items()}
    volumes = [{"name": "v", "hostPath": {"path": path}}] if path else [{"name": "v", "emptyDir": {}}]
    spec = PodSpec(node_name="n0", containers=[Container(name=container)], volumes=volumes)
    return Pod(metadata=ObjectMeta(name="p", namespace="x", labels=named), spec=spec)


@pytest.mark.parametrize(
    ("labels", "name"),
    [
        ({"app": "nvidia-device-plugin-daemonset"}, "GPU Operator's device plugin"),
        ({"name": "nvidia-device-plugin-ds"}, "NVIDIA's device plugin"),
        ({"k8s_app": "nvidia-gpu-device-plugin"}, "GKE's device plugin"),
        ({"app.kubernetes.io__component": "hami-device-plugin"}, "HAMi's device plugin"),
    ],
)
def test_other_programs_are_known_by_their_labels(labels: dict[str, str], name: str) -> None:
    found = rival(pod(**labels))
    assert found is not None
    assert found.name == name
    assert found.mend


def test_nvidias_dra_driver_counts_only_where_it_gives_out_cards() -> None:
    component = {"nvidia_dra_driver_gpu_component": "kubelet-plugin"}
    assert rivals_by_node([pod("gpus", **component)]) == {"n0": DRA}
    assert rivals_by_node([pod("compute-domains", **component), pod(app="web")]) == {}


@pytest.mark.parametrize(
    ("path", "counts"),
    [
        (PLUGINS, True),
        ("/var/lib/kubelet/plugins_registry/", True),
        ("/var/lib/k0s/kubelet/plugins", True),
        ("/var/lib/", True),
        ("/", True),
        ("", False),
        ("/data/models", False),
        ("/dev", False),
    ],
)
def test_a_tenants_label_alone_makes_no_other_program(path: str, counts: bool) -> None:
    """Else each tenant could end the offer of every node on which its pods run."""
    plugin = pod("c", path, app="nvidia-device-plugin")
    driver = pod("gpus", path, nvidia_dra_driver_gpu_component="kubelet-plugin")
    assert (rival(plugin) is not None, rival(driver) is not None) == (counts, counts)
    assert rivals_by_node([plugin]).keys() == ({"n0"} if counts else set())
