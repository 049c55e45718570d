"""`egpu manifests`: what deploy/ installs, with a site's own choices, for `kubectl apply -f -`.

deploy/ is a kustomize tree, and the only source. Read here is what that tree uses of kustomize: `resources`,
`namespace`, `images`, and the patches (RFC 6902: test, add, replace) that its comments offer.
"""

import copy
import re
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Final, Literal, cast

import typer
import yaml

import egpu
from egpu.errors import InvalidInput, NotFound

Document = dict[str, Any]

NAMESPACE: Final = "elastic-gpu-system"
SOME_IMAGE: Final = "elastic-gpu"
"""The name under which the manifests know the image; kustomization.yaml says which one it is."""

PATCHES: Final[Mapping[str, str]] = {"pool.yaml": "elastic-gpu-agent", "extender-tls.yaml": "elastic-gpu-extender"}
"""Patches of deploy/, and the workload that each is for."""

AS_DEPLOYED: Final = "--cdi=auto"
"""How deploy/ starts agents."""

_PACKAGE: Final = Path(egpu.__file__).resolve().parent
_CLUSTER_SCOPED: Final = frozenset({"Namespace", "CustomResourceDefinition", "ClusterRole", "ClusterRoleBinding"})
_WORKLOADS: Final = frozenset({"Deployment", "DaemonSet"})
_DNS_LABEL: Final = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?")

Cdi = Literal["auto", "always", "never"]
PullPolicy = Literal["Always", "IfNotPresent", "Never"]


@dataclass(frozen=True, kw_only=True)
class Site:
    """What differs from cluster to cluster; empty means as deploy/ has it.

    `image` is a whole reference, `node_selector` chooses the agents' nodes, `runtime_class` is the agents', `cdi` their
    option of that name, `patches` are keys of PATCHES.
    """

    namespace: str = ""
    image: str = ""
    pull_policy: str = ""
    node_selector: Mapping[str, str] = field(default_factory=dict[str, str])
    runtime_class: str = ""
    cdi: str = ""
    patches: Sequence[str] = ()


def manifests(
    namespace: Annotated[str, typer.Option(help="Where everything is installed.")] = NAMESPACE,
    image: Annotated[str, typer.Option(help="Image of every component. Default: elastic-gpu and the version.")] = "",
    pull_policy: Annotated[PullPolicy | None, typer.Option(help="When nodes pull it. Default: Kubernetes'.")] = None,
    node_selector: Annotated[
        list[str],
        typer.Option(metavar="LABEL=VALUE", help="Nodes that get an agent. Default: elasticgpu.io/node=true."),
    ] = [],  # noqa: B006  typer wants a list, and does not change it
    runtime_class: Annotated[
        str, typer.Option(help="Runtime class of the agents, such as nvidia. Default: the nodes' own runtime.")
    ] = "",
    cdi: Annotated[Cdi | None, typer.Option(help="Slots are CDI devices. Default: where nodes can.")] = None,
    pool: Annotated[bool, typer.Option("--pool", help="Every agent takes part in the pool.")] = False,
    extender_tls: Annotated[
        bool, typer.Option("--extender-tls", help="kube-schedulers on several nodes ask the extender, in mutual TLS.")
    ] = False,
) -> None:
    """Print the manifests of an installation on Kubernetes, for `kubectl apply -f -`."""
    chosen = {"pool.yaml": pool, "extender-tls.yaml": extender_tls}
    site = Site(
        namespace=namespace,
        image=image,
        pull_policy=pull_policy or "",
        node_selector=dict(_label(text) for text in node_selector),
        runtime_class=runtime_class,
        cdi=cdi or "",
        patches=[name for name, wanted in chosen.items() if wanted],
    )
    if not _DNS_LABEL.fullmatch(namespace):
        raise InvalidInput("namespace", f"{namespace!r} is not a name of lower-case letters, digits and dashes")
    sys.stdout.write(as_yaml(installation(source(), site)))


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
    """Namespaces as kustomize sets them: of the object, of a Namespace itself, and of the accounts in a binding."""
    if document["kind"] == "Namespace":
        document["metadata"]["name"] = namespace
    elif document["kind"] not in _CLUSTER_SCOPED:
        document["metadata"]["namespace"] = namespace
    for subject in document.get("subjects", []):
        subject["namespace"] = namespace


def _run(workload: Document, images: Mapping[str, str], site: Site) -> None:
    pod = workload["spec"]["template"]["spec"]
    for container in pod["containers"]:
        container["image"] = images.get(container["image"], container["image"])
        if site.pull_policy:
            container["imagePullPolicy"] = site.pull_policy
    if workload["kind"] == "DaemonSet":
        _agent(pod, site)


def _agent(pod: Document, site: Site) -> None:
    if site.node_selector:
        pod["nodeSelector"] = dict(site.node_selector)
    if site.runtime_class:
        pod["runtimeClassName"] = site.runtime_class
    if site.cdi:
        arguments = pod["containers"][0]["args"]
        arguments[arguments.index(AS_DEPLOYED)] = f"--cdi={site.cdi}"


def _reference(entry: Mapping[str, str]) -> str:
    return f"{entry.get('newName', entry['name'])}:{entry['newTag']}"


def _name(document: Document) -> str:
    return str(document["metadata"]["name"])


def _label(text: str) -> tuple[str, str]:
    label, equals, value = text.partition("=")
    if not label or not equals:
        raise InvalidInput("node-selector", f"{text!r} is not LABEL=VALUE, such as elasticgpu.io/node=true")
    return label, value
