"""What deploy/ installs, with a site's own choices.

deploy/ is a kustomize tree, and the only source. Read here is what that tree uses of kustomize: `resources`,
`namespace`, `images`, and the patches (RFC 6902: test, add, replace) that its comments offer.
"""

import copy
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, cast

import yaml

import egpu
from egpu.errors import InvalidInput, NotFound

Document = dict[str, Any]

NAMESPACE: Final = "elastic-gpu-system"
SOME_IMAGE: Final = "elastic-gpu"
"""The name under which the manifests know the image; kustomization.yaml says which one it is."""

PATCHES: Final[Mapping[str, str]] = {"pool.yaml": "elastic-gpu-agent", "extender-remote.yaml": "elastic-gpu-extender"}
"""Patches of deploy/, and the workload that each is for."""

AS_DEPLOYED: Final = "--cdi=auto"
"""How deploy/ starts agents."""

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
_WORKLOADS: Final = frozenset({"Deployment", "DaemonSet"})


@dataclass(frozen=True, kw_only=True)
class Site:
    """What differs from cluster to cluster; empty means as deploy/ has it.

    `image` is a whole reference, `node_selector` chooses the agents' nodes, `runtime_class` is the agents', `cdi` their
    option of that name, `patches` are keys of PATCHES, `vocabularies` are the optional ones that are turned on.
    """

    namespace: str = ""
    image: str = ""
    pull_policy: str = ""
    node_selector: Mapping[str, str] = field(default_factory=dict[str, str])
    runtime_class: str = ""
    cdi: str = ""
    patches: Sequence[str] = ()
    vocabularies: Sequence[str] = ()


def source() -> Path:
    """deploy/: in the installed package, or in the source tree. Raises NotFound."""
    for folder in (_PACKAGE / "deploy", _PACKAGE.parent.parent / "deploy"):
        if folder.is_dir():
            return folder
    raise NotFound("the manifests are not installed; look into the project's deploy folder")


def installation(folder: Path, site: Site) -> list[Document]:
    """Every object of the kustomize tree in `folder`, changed as the site asks. Raises InvalidInput."""
    root = cast("Document", yaml.safe_load((folder / "kustomization.yaml").read_text()))
    documents = [
        cast("Document", document)
        for resource in root["resources"]
        for document in yaml.safe_load_all((folder / resource).read_text())
    ]
    images = {entry["name"]: _reference(entry) for entry in root.get("images", [])}
    if site.image:
        images[SOME_IMAGE] = site.image
    namespace = site.namespace or str(root["namespace"])
    for document in documents:
        _into(document, namespace)
        if document["kind"] in _WORKLOADS:
            _run(document, images, site)
    for name in site.patches:
        (workload,) = (one for one in documents if one["kind"] in _WORKLOADS and _name(one) == PATCHES[name])
        patch(workload, yaml.safe_load((folder / name).read_text()))
    return documents


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
    """What a step of a path means at its place: an index in a list, a name in an object."""
    return int(step) if isinstance(place, list) else step


def as_yaml(documents: Sequence[Document]) -> str:
    """A stream of documents, each in the order of its keys, without anchors."""
    return yaml.dump_all(documents, Dumper=_NoAliases, sort_keys=False, explicit_start=True, allow_unicode=True)


class _NoAliases(yaml.SafeDumper):
    def ignore_aliases(self, data: object) -> bool:
        return True


def _into(document: Document, namespace: str) -> None:
    """Namespaces as kustomize sets them: of the object, of a Namespace itself, of the accounts in a binding, and of the
    services that webhooks are behind."""
    if document["kind"] == "Namespace":
        document["metadata"]["name"] = namespace
    elif document["kind"] not in _CLUSTER_SCOPED:
        document["metadata"]["namespace"] = namespace
    for subject in document.get("subjects", []):
        subject["namespace"] = namespace
    for webhook in document.get("webhooks", []):
        webhook["clientConfig"]["service"]["namespace"] = namespace


def _run(workload: Document, images: Mapping[str, str], site: Site) -> None:
    pod = workload["spec"]["template"]["spec"]
    for container in pod["containers"]:
        container["image"] = images.get(container["image"], container["image"])
        if site.vocabularies:
            container["args"] = [_taking(argument, site.vocabularies) for argument in container["args"]]
        if site.pull_policy:
            container["imagePullPolicy"] = site.pull_policy
    if workload["kind"] == "DaemonSet":
        _on_node(pod, site)


def _on_node(pod: Document, site: Site) -> None:
    """What a site says of agents is for the shims beside them, too."""
    if site.node_selector:
        pod["nodeSelector"] = dict(site.node_selector)
    if site.runtime_class:
        pod["runtimeClassName"] = site.runtime_class
    arguments = pod["containers"][0]["args"]
    if site.cdi and AS_DEPLOYED in arguments:
        arguments[arguments.index(AS_DEPLOYED)] = f"--cdi={site.cdi}"


def _taking(argument: str, vocabularies: Sequence[str]) -> str:
    """The argument of webhook and agent that turns vocabularies on, filled in; any other as it is."""
    return argument + ",".join(vocabularies) if argument == "--vocabularies=" else argument


def _reference(entry: Mapping[str, str]) -> str:
    return f"{entry.get('newName', entry['name'])}:{entry['newTag']}"


def _name(document: Document) -> str:
    return str(document["metadata"]["name"])
