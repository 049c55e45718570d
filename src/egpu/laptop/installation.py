"""Everything that deploy/ installs except the workloads, which run as processes in the simulated cluster."""

from typing import Any, Final

from egpu.adapters.installation import installation, source
from egpu_base.kubernetes import Client

_PLURALS: Final = {
    "ClusterRole": "clusterroles",
    "ClusterRoleBinding": "clusterrolebindings",
    "CustomResourceDefinition": "customresourcedefinitions",
    "MutatingWebhookConfiguration": "mutatingwebhookconfigurations",
    "Namespace": "namespaces",
    "Role": "roles",
    "RoleBinding": "rolebindings",
    "ServiceAccount": "serviceaccounts",
    "ValidatingAdmissionPolicy": "validatingadmissionpolicies",
    "ValidatingAdmissionPolicyBinding": "validatingadmissionpolicybindings",
    "ValidatingWebhookConfiguration": "validatingwebhookconfigurations",
}


async def install(client: Client, *, namespace: str = "", webhook_port: int | None = None) -> None:
    """Install kinds, roles, admission rules and our namespace, as an administrator. `webhook_port`: of the webhook's
    Service. Raises the API server's errors."""
    for document in installation(source(), namespace=namespace):
        for hook in document.get("webhooks", ()) if webhook_port is not None else ():
            hook["clientConfig"]["service"]["port"] = webhook_port
        if document["kind"] in _PLURALS:
            await client.raw("POST", _path(document), body=document)


def _path(document: dict[str, Any]) -> str:
    version, namespace = str(document["apiVersion"]), document["metadata"].get("namespace")
    root = f"/apis/{version}" if "/" in version else f"/api/{version}"
    plural = _PLURALS[document["kind"]]
    return f"{root}/namespaces/{namespace}/{plural}" if namespace else f"{root}/{plural}"
