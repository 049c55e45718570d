"""Manifests as `kubectl create -f` takes them: documents of a YAML file, each created at its kind's path."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final, cast

import yaml

import egpu
from egpu_base.errors import InvalidInput, NotFound
from egpu_base.kubernetes import Client

_PACKAGE: Final = Path(egpu.__file__).resolve().parent

Document = dict[str, Any]

PLURALS: Final = {
    "Pod": "pods",
    "Namespace": "namespaces",
    "ConfigMap": "configmaps",
    "Secret": "secrets",
    "ElasticGPU": "elasticgpus",
    "ElasticGPUClaim": "elasticgpuclaims",
    "ElasticGPUClass": "elasticgpuclasses",
}
CLUSTER_SCOPED: Final = frozenset({"Namespace", "ElasticGPU", "ElasticGPUClass"})


def examples() -> Path:
    """Return the folder of example manifests: in the installed package, or in the source tree."""
    for folder in (_PACKAGE / "examples", _PACKAGE.parent.parent / "examples"):
        if folder.is_dir():
            return folder
    raise NotFound("the example manifests are not installed; look into the project's examples folder")


def read(path: Path) -> list[Document]:
    """Read the documents of a file. Raises InvalidInput unless they are objects with kind and name."""
    try:
        documents = [document for document in yaml.safe_load_all(path.read_text()) if document is not None]
    except (OSError, yaml.YAMLError) as error:
        raise InvalidInput(str(path), f"cannot be read: {error}") from error
    for document in documents:
        if not isinstance(document, dict) or cast("Document", document).get("kind") not in PLURALS:
            raise InvalidInput(str(path), f"has a document that is not one of {', '.join(PLURALS)}")
    return cast("list[Document]", documents)


async def create(client: Client, documents: Sequence[Document], *, namespace: str = "default") -> list[str]:
    """Create them in order. Return `kind/name` of each. Raises AlreadyExists, or Refused with the server's reason."""
    created: list[str] = []
    for document in documents:
        kind, name = document["kind"], document["metadata"]["name"]
        await client.raw("POST", _path(document, namespace), body=document)
        created.append(f"{kind.lower()}/{name}")
    return created


def _path(document: Document, namespace: str) -> str:
    version, kind = str(document["apiVersion"]), str(document["kind"])
    root = f"/apis/{version}" if "/" in version else f"/api/{version}"
    if kind in CLUSTER_SCOPED:
        return f"{root}/{PLURALS[kind]}"
    return f"{root}/namespaces/{document['metadata'].get('namespace', namespace)}/{PLURALS[kind]}"
