"""The objects of an installation at the API server: where each kind is, how it is written, and how it goes.

Objects are written by server-side apply with one field manager. Fields that another installer wrote become ours.
Fields that anyone else wrote are a conflict, which names them.
"""

import asyncio
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from egpu.adapters.installation import Document
from egpu_base.errors import Conflict, NotFound, Refused, Unavailable
from egpu_base.kubernetes import Client

MANAGER: Final = "egpu-install"
"""Our field manager."""
INSTALLERS: Final = frozenset({MANAGER, "kubectl", "kubectl-client-side-apply", "kubectl-create", "kubectl-replace"})
"""Field managers of tools that install the same manifests. Their fields become ours."""
OWNER_LABEL: Final = "app.kubernetes.io/managed-by"
OWNER: Final = "egpu"
"""The label of everything that `egpu install` writes. An upgrade removes objects that have it and are no longer in the
manifests."""
APPLY: Final = "application/apply-patch+yaml"
ATTEMPTS: Final = 5
RETRY_SECONDS: Final = 1.0
_MANAGERS: Final = re.compile(r'conflicts? with "([^"]+)"')


@dataclass(frozen=True)
class Kind:
    """The place of a kind of object. `stage`: kinds are written by stages, in this order, and go in the reverse one."""

    api_version: str
    plural: str
    stage: int
    namespaced: bool = True

    def path(self, namespace: str = "", name: str = "") -> str:
        """Return the path of an object, or of all objects of the namespace, or of all namespaces."""
        root = f"/apis/{self.api_version}" if "/" in self.api_version else f"/api/{self.api_version}"
        inside = f"/namespaces/{namespace}" if self.namespaced and namespace else ""
        return f"{root}{inside}/{self.plural}" + (f"/{name}" if name else "")


_RBAC: Final = "rbac.authorization.k8s.io/v1"
_ADMISSION: Final = "admissionregistration.k8s.io/v1"
KINDS: Final[Mapping[str, Kind]] = {
    "Namespace": Kind("v1", "namespaces", 0, namespaced=False),
    "CustomResourceDefinition": Kind("apiextensions.k8s.io/v1", "customresourcedefinitions", 0, namespaced=False),
    "ServiceAccount": Kind("v1", "serviceaccounts", 1),
    "ResourceQuota": Kind("v1", "resourcequotas", 1),
    "ClusterRole": Kind(_RBAC, "clusterroles", 1, namespaced=False),
    "ClusterRoleBinding": Kind(_RBAC, "clusterrolebindings", 1, namespaced=False),
    "Role": Kind(_RBAC, "roles", 1),
    "RoleBinding": Kind(_RBAC, "rolebindings", 1),
    "ValidatingAdmissionPolicy": Kind(_ADMISSION, "validatingadmissionpolicies", 2, namespaced=False),
    "ValidatingAdmissionPolicyBinding": Kind(_ADMISSION, "validatingadmissionpolicybindings", 2, namespaced=False),
    "ConfigMap": Kind("v1", "configmaps", 2),
    "Service": Kind("v1", "services", 2),
    "PodDisruptionBudget": Kind("policy/v1", "poddisruptionbudgets", 2),
    "Deployment": Kind("apps/v1", "deployments", 3),
    "MutatingWebhookConfiguration": Kind(_ADMISSION, "mutatingwebhookconfigurations", 4, namespaced=False),
    "ValidatingWebhookConfiguration": Kind(_ADMISSION, "validatingwebhookconfigurations", 4, namespaced=False),
    "DaemonSet": Kind("apps/v1", "daemonsets", 5),
}
"""Every kind of `deploy/`. Agents come last: no node offers anything before the webhook sees pods that ask for it."""


def kind_of(document: Document) -> Kind:
    """Return the kind of a document of deploy/. Raises KeyError for one that deploy/ does not have."""
    return KINDS[document["kind"]]


def path_of(document: Document) -> str:
    """Return the path of a document's object."""
    metadata = document["metadata"]
    return kind_of(document).path(metadata.get("namespace", ""), metadata["name"])


def shown(document: Document) -> str:
    """Return kind and name, for people."""
    return f"{document['kind']} {document['metadata']['name']}"


def owned(document: Document) -> Document:
    """Return the document with the label of what `egpu install` writes."""
    labels = {**document["metadata"].get("labels", {}), OWNER_LABEL: OWNER}
    return {**document, "metadata": {**document["metadata"], "labels": labels}}


class Objects:
    """Reads, writes and deletes objects by their documents."""

    def __init__(self, client: Client) -> None:
        self._client = client

    async def find(self, document: Document) -> Document | None:
        """Return the object of this kind and name, or None; also None if its kind does not exist."""
        return await self.get(path_of(document))

    async def get(self, path: str) -> Document | None:
        """Return the object of a path, or None."""
        try:
            return await self._client.raw("GET", path)
        except NotFound:
            return None

    async def all(self, kind: Kind, *, labels: str = "", namespace: str = "") -> list[Document]:
        """Return all objects of a kind with these labels; none if the kind does not exist."""
        try:
            found = await self._client.raw("GET", kind.path(namespace), params={"labelSelector": labels})
        except NotFound:
            return []
        return found["items"]

    async def apply(self, document: Document, *, dry_run: bool = False) -> Document:
        """Write one object, and return it. Raises Conflict if someone else set a field differently, and the API
        server's errors. With `dry_run` nothing is written."""
        try:
            return await self._apply(document, force=False, dry_run=dry_run)
        except Conflict as error:
            managers = set(_MANAGERS.findall(str(error)))
            if not managers or managers - INSTALLERS:
                more = "Undo that change, or write the same value into --values"
                raise Conflict(f"{shown(document)} was changed by another program: {error}. {more}") from error
            return await self._apply(document, force=True, dry_run=dry_run)

    async def _apply(self, document: Document, *, force: bool, dry_run: bool) -> Document:
        params = {"fieldManager": MANAGER, "force": str(force).lower()} | ({"dryRun": "All"} if dry_run else {})
        for attempt in range(1, ATTEMPTS + 1):
            try:
                return await self._client.raw("PATCH", path_of(document), body=document, params=params, of=APPLY)
            except Unavailable:  # an apply can be repeated
                if attempt == ATTEMPTS:
                    raise
                await asyncio.sleep(RETRY_SECONDS)
        raise AssertionError("unreachable")

    async def delete(self, path: str) -> bool:
        """Delete the object of a path; False if there is none."""
        try:
            await self._client.raw("DELETE", path)
        except NotFound:
            return False
        return True

    async def merge(self, path: str, patch: Mapping[str, Any]) -> bool:
        """Send a merge patch; False if there is no such object."""
        try:
            await self._client.raw("PATCH", path, body=patch, of="application/merge-patch+json")
        except NotFound:
            return False
        return True

    async def allowed(self, kind: Kind, verb: str, namespace: str = "") -> bool:
        """Return whether we may do this to objects of the kind. Raises Refused if the API server does not say."""
        group = kind.api_version.rpartition("/")[0]
        attributes = {"group": group, "resource": kind.plural, "verb": verb}
        if kind.namespaced and namespace:
            attributes["namespace"] = namespace
        body = {
            "apiVersion": "authorization.k8s.io/v1",
            "kind": "SelfSubjectAccessReview",
            "spec": {"resourceAttributes": attributes},
        }
        path = "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews"
        answer = await self._client.raw("POST", path, body=body)
        if "status" not in answer:
            raise Refused("the API server does not say what you may do")
        return bool(answer["status"].get("allowed"))


def by_stage(documents: Sequence[Document]) -> dict[int, list[Document]]:
    """Return the documents by their stages, in ascending order; within one as `deploy/` has them."""
    stages: dict[int, list[Document]] = {}
    for document in sorted(documents, key=lambda one: kind_of(one).stage):
        stages.setdefault(kind_of(document).stage, []).append(document)
    return stages
