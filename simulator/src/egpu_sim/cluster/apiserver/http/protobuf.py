"""Requests in Kubernetes' protobuf, for the few kinds that newer kubectls write with typed clients.

kubectl 1.32 sends protobuf, without a fallback, for `kubectl create` of configmaps, secrets, namespaces, service
accounts, deployments, jobs, quotas and priority classes, and for `kubectl auth can-i` and `kubectl drain`. Answers are
always JSON, which these clients accept. The messages: `kubernetes.proto`.
"""

from collections.abc import Mapping

from google.protobuf.json_format import MessageToDict
from google.protobuf.message import DecodeError, Message

from egpu_sim.cluster.apiserver.generated import kubernetes_pb2 as kinds
from egpu_sim.cluster.apiserver.status import bad_request, unsupported_media_type
from egpu_sim.cluster.trees import Json, as_list, as_object

MEDIA_TYPE = "application/vnd.kubernetes.protobuf"
_MAGIC = b"k8s\x00"
_KINDS: Mapping[tuple[str, str], type[Message]] = {
    ("v1", "ConfigMap"): kinds.ConfigMap,
    ("v1", "Secret"): kinds.Secret,
    ("v1", "Namespace"): kinds.Namespace,
    ("v1", "ServiceAccount"): kinds.ServiceAccount,
    ("policy/v1", "Eviction"): kinds.Eviction,
    ("apps/v1", "Deployment"): kinds.Deployment,
    ("batch/v1", "Job"): kinds.Job,
    ("v1", "ResourceQuota"): kinds.ResourceQuota,
    ("scheduling.k8s.io/v1", "PriorityClass"): kinds.PriorityClass,
    ("authorization.k8s.io/v1", "SelfSubjectAccessReview"): kinds.SelfSubjectAccessReview,
    ("authorization.k8s.io/v1", "SelfSubjectRulesReview"): kinds.SelfSubjectRulesReview,
    ("authentication.k8s.io/v1", "SelfSubjectReview"): kinds.SelfSubjectReview,
}


def decode(raw: bytes) -> Json:
    """Return the object in a protobuf request as JSON, with 64-bit numbers as text, as protobuf writes JSON. Raises
    RequestRefused."""
    if not raw.startswith(_MAGIC):
        raise bad_request("the body of the request is not Kubernetes protobuf: it lacks the k8s prefix")
    try:
        envelope = kinds.Unknown.FromString(raw[len(_MAGIC) :])
        api_version, kind = envelope.type_meta.api_version, envelope.type_meta.kind
        # DeleteOptions come in the API version of the deleted object.
        message = kinds.DeleteOptions if kind == "DeleteOptions" else _KINDS.get((api_version, kind))
        if message is None:
            raise unsupported_media_type(
                f"this server reads {api_version} {kind} in application/json, not in {MEDIA_TYPE}"
            )
        found = _plain(MessageToDict(message.FromString(envelope.raw)))
        return {"apiVersion": api_version, "kind": kind, **as_object(found)}
    except DecodeError as error:
        raise bad_request(f"the body of the request is not Kubernetes protobuf: {error}") from error


def _plain(value: object) -> object:
    """Convert quantities, which are messages in protobuf, to texts."""
    tree, items = as_object(value), as_list(value)
    if tree.keys() == {"string"}:
        return tree["string"]
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in tree.items()}
    return [_plain(item) for item in items] if isinstance(value, list) else value
