"""The objects that deploy/ installs, with a site's own values.

deploy/ is a kustomize tree, and the only source. This module reads the parts of kustomize that the tree uses:
`resources`, `namespace`, `images`, and what its comments offer: a component, patches (RFC 6902: test, add, replace).
"""

import copy
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final, cast

import msgspec
import yaml

import egpu
from egpu.adapters import values
from egpu.adapters.values import AS_DEPLOYED, Agent, Values, of
from egpu.core.gpu_nodes import SELECTED
from egpu_base.api.wire import camel
from egpu_base.errors import InvalidInput, NotFound

Document = dict[str, Any]

NAMESPACE: Final = "elastic-gpu-system"
REMOTE: Final = "existing/extender-remote.yaml"
PATCHES: Final[Mapping[str, str]] = {"pool.yaml": "elastic-gpu-agent", REMOTE: "elastic-gpu-extender"}
"""Patches of deploy/, and the workload of each."""
EXISTING: Final = "existing"
"""The component of deploy/ for the cluster's existing kube-scheduler."""
PLATFORMS: Final[Mapping[str, str]] = {
    "platforms/critical-pods": "critical_pods_quota",
    "platforms/openshift": "security_context_constraints",
}
"""Components of deploy/ that add objects, and the value that asks for each."""
_KUBE_SCHEDULER: Final = "kube-scheduler"
"""The container beside the extender."""

_Loader: Final = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
"""libyaml reads deploy/ ten times faster; PyYAML may be built without it."""
_CDI: Final = "--cdi=auto"
"""An argument of agents in deploy/."""
_FIXED: Final = "device-plugins"
"""The part of kubelet's directory that is at the same place on every node. Source: DevicePluginPath of
k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1, whatever --root-dir is."""

_PACKAGE: Final = Path(egpu.__file__).resolve().parent
_CLUSTER_SCOPED: Final = frozenset(
    {
        "Namespace",
        "CustomResourceDefinition",
        "ClusterRole",
        "ClusterRoleBinding",
        "MutatingWebhookConfiguration",
        "ValidatingWebhookConfiguration",
        "ValidatingAdmissionPolicy",
        "ValidatingAdmissionPolicyBinding",
    }
)
WORKLOADS: Final = frozenset({"Deployment", "DaemonSet"})


def source() -> Path:
    """Return deploy/, in the installed package or in the source tree. Raises NotFound."""
    for folder in (_PACKAGE / "deploy", _PACKAGE.parent.parent / "deploy"):
        if folder.is_dir():
            return folder
    raise NotFound("the manifests are not installed; install the package again")


def installation(folder: Path, values: Values = AS_DEPLOYED, *, namespace: str = "", image: str = "") -> list[Document]:
    """Return every object of the kustomize tree in `folder`, changed by the values. Raises InvalidInput.

    `namespace` and `image` (a whole reference) replace those of the tree and the values.
    """
    root = _kustomization(folder)
    documents = _resources(folder, root)
    if values.scheduler.mode == EXISTING:
        documents = _with_component(documents, folder / EXISTING)
    for component in platforms(values):
        documents = _with_component(documents, folder / component)
    chosen = image or f"{values.image.repository}:{values.image.tag or egpu.__version__}"
    for document in documents:
        _into(document, namespace or str(root["namespace"]))
        if document["kind"] in WORKLOADS:
            _run(document, chosen, values)
    for name in patches(values):
        (workload,) = (one for one in documents if one["kind"] in WORKLOADS and _name(one) == PATCHES[name])
        patch(workload, yaml.safe_load((folder / name).read_text()))
    for workload in (one for one in documents if one["kind"] in WORKLOADS):
        for setting, value in of(values, _name(workload).removeprefix("elastic-gpu-")).items():
            settle(workload, setting, value)
    return documents


def _kustomization(folder: Path) -> Document:
    return cast("Document", yaml.load((folder / "kustomization.yaml").read_text(), _Loader))


def _resources(folder: Path, kustomization: Document) -> list[Document]:
    return [
        cast("Document", document)
        for resource in kustomization["resources"]
        for document in yaml.load_all((folder / resource).read_text(), _Loader)
    ]


def _with_component(documents: Sequence[Document], folder: Path) -> list[Document]:
    """Apply a component: add its resources, delete what a label selects, patch what kind and name select."""
    component = _kustomization(folder)
    found = [*documents, *_resources(folder, component)]
    for change in component.get("patches", ()):
        target, text = change["target"], yaml.safe_load(change["patch"])
        if "labelSelector" in target:
            label, _, value = target["labelSelector"].partition("=")
            found = [one for one in found if one["metadata"].get("labels", {}).get(label) != value]
        else:
            (chosen,) = (one for one in found if (one["kind"], _name(one)) == (target["kind"], target["name"]))
            patch(chosen, text)
    return found


def platforms(values: Values) -> list[str]:
    """Return the components for platforms that the values ask for."""
    return [name for name, value in PLATFORMS.items() if getattr(values, value)]


def patches(values: Values) -> list[str]:
    """Return the patches of deploy/ that the values ask for."""
    wanted = {"pool.yaml": values.agent.pool, REMOTE: values.extender.remote}
    return [name for name in PATCHES if wanted[name]]


def patch(document: Document, operations: Sequence[Mapping[str, Any]]) -> None:
    """Apply RFC 6902 operations in place. Raises InvalidInput for one that does not apply."""
    for operation in operations:
        path, value = str(operation["path"]), copy.deepcopy(operation["value"])
        *parents, last = path.strip("/").split("/")
        try:
            place: Any = document
            for step in parents:
                place = place[_key(place, step)]
            match operation["op"]:
                case "add" if last == "-":
                    place.append(value)
                case "replace" if place[_key(place, last)] is not None:
                    place[_key(place, last)] = value
                case "test" if place[_key(place, last)] == value:
                    pass
                case other:
                    raise InvalidInput(path, f"{other} does not apply here")
        except (KeyError, IndexError) as error:
            raise InvalidInput(path, "there is nothing to patch") from error


def _key(place: Any, step: str) -> Any:
    """Return a step of a path at its place: an index in a list, a name in an object."""
    return int(step) if isinstance(place, list) else step


def as_yaml(documents: Sequence[Document]) -> str:
    """Return a stream of documents, each in the order of its keys, without anchors."""
    return yaml.dump_all(documents, Dumper=_NoAliases, sort_keys=False, explicit_start=True, allow_unicode=True)


class _NoAliases(yaml.SafeDumper):
    def ignore_aliases(self, data: object) -> bool:
        return True


def _into(document: Document, namespace: str) -> None:
    """Set namespaces as kustomize does: in the object, in a Namespace itself, in the accounts of a binding, and in the
    services of webhooks."""
    if document["kind"] == "Namespace":
        document["metadata"]["name"] = namespace
    elif document["kind"] not in _CLUSTER_SCOPED:
        document["metadata"]["namespace"] = namespace
    for subject in document.get("subjects", []):
        subject["namespace"] = namespace
    for webhook in document.get("webhooks", []):
        webhook["clientConfig"]["service"]["namespace"] = namespace


def _run(workload: Document, image: str, values: Values) -> None:
    pod = workload["spec"]["template"]["spec"]
    container, *beside = pod["containers"]
    container["image"] = image
    container["args"] = [_filled(argument, values) for argument in container["args"]]
    for one in beside:
        assert one["name"] == _KUBE_SCHEDULER
        one["image"] = f"{values.scheduler.image}:{values.scheduler.tag or one['image'].rpartition(':')[2]}"
    if values.image.pull_policy:
        container["imagePullPolicy"] = values.image.pull_policy
    if workload["kind"] == "DaemonSet":
        _on_node(pod, values.agent)


def _on_node(pod: Document, agent: Agent) -> None:
    """Apply the agents' nodes and runtime to a pod; they hold for the shims beside them, too."""
    pod["nodeSelector"] = dict(agent.node_selector)
    if agent.node_selector:
        pod["affinity"] = SELECTED
    if agent.affinity:
        pod["affinity"] = agent.affinity
    if agent.runtime_class:
        pod["runtimeClassName"] = agent.runtime_class
    container = pod["containers"][0]
    moved = {
        AS_DEPLOYED.agent.kubelet_dir: agent.kubelet_dir,
        AS_DEPLOYED.agent.cdi_static_dir: agent.cdi_static_dir,
        AS_DEPLOYED.agent.cdi_dynamic_dir: agent.cdi_dynamic_dir,
    }
    container["args"] = [f"--cdi={agent.cdi}" if one == _CDI else _argument(one, moved) for one in container["args"]]
    for mount in container["volumeMounts"]:
        mount["mountPath"] = _moved(mount["mountPath"], moved)
    for volume in pod["volumes"]:
        if volume["name"] != _FIXED:
            volume["hostPath"]["path"] = _moved(volume["hostPath"]["path"], moved)


def _argument(argument: str, moved: Mapping[str, str]) -> str:
    """Return an argument with its directory, if it has one, at its new place."""
    flag, equals, value = argument.partition("=")
    return f"{flag}{equals}{_moved(value, moved)}"


def _moved(path: str, moved: Mapping[str, str]) -> str:
    """Return the path below the new place of its directory."""
    for old, new in moved.items():
        if path == old or path.startswith(f"{old}/"):
            return new + path.removeprefix(old)
    return path


def settle(workload: Document, setting: str, value: Any) -> None:
    """Apply one setting of `values.SETTINGS` to a workload."""
    template = workload["spec"]["template"]
    metadata, pod = template["metadata"], template["spec"]
    container = pod["containers"][0]  # ours; beside the extender may be a kube-scheduler
    match setting:
        case "pod_annotations":
            metadata["annotations"] = metadata.get("annotations", {}) | value
        case "pod_labels":
            metadata["labels"] = metadata["labels"] | value
        case "tolerations":
            pod["tolerations"] = [*pod.get("tolerations", []), *value]
        case "extra_args":
            container["args"] = [*container["args"], *value]
        case "resources":
            container["resources"] = value
        case values.PULL_SECRETS:
            pod["imagePullSecrets"] = list(msgspec.to_builtins(value))
        case _:
            pod[camel(setting)] = value


def _filled(argument: str, values: Values) -> str:
    """Fill in the lists in arguments of webhook and agent; return any other argument as it is."""
    lists = {"--vocabularies=": values.vocabularies, "--other-schedulers=": values.scheduler.others}
    return argument + ",".join(lists.get(argument, ()))


def _name(document: Document) -> str:
    return str(document["metadata"]["name"])
