"""Requests in Kubernetes' protobuf, for the few kinds that newer kubectls write with typed clients.

`kubectl create configmap|secret|namespace|serviceaccount`, `kubectl auth can-i` and `kubectl drain` of 1.32 send
protobuf and do not fall back. Answers are always JSON, which those clients accept. The messages: `kubernetes.proto`.
"""

from collections.abc import Mapping

from google.protobuf.json_format import MessageToDict
from google.protobuf.message import DecodeError, Message

from egpu.embedded.apiserver import kubernetes_pb2 as kinds
from egpu.embedded.apiserver.objects import Json
from egpu.embedded.apiserver.status import bad_request, unsupported_media_type

MEDIA_TYPE = "application/vnd.kubernetes.protobuf"
_MAGIC = b"k8s\x00"
_KINDS: Mapping[tuple[str, str], type[Message]] = {
    ("v1", "ConfigMap"): kinds.ConfigMap,
    ("v1", "Secret"): kinds.Secret,
    ("v1", "Namespace"): kinds.Namespace,
    ("v1", "ServiceAccount"): kinds.ServiceAccount,
    ("policy/v1", "Eviction"): kinds.Eviction,
    ("authorization.k8s.io/v1", "SelfSubjectAccessReview"): kinds.SelfSubjectAccessReview,
    ("authorization.k8s.io/v1", "SelfSubjectRulesReview"): kinds.SelfSubjectRulesReview,
    ("authentication.k8s.io/v1", "SelfSubjectReview"): kinds.SelfSubjectReview,
}


def decode(raw: bytes) -> Json:
    """The object in a protobuf request, as JSON; 64-bit numbers as text, as protobuf has them in JSON. Raises
    RequestRefused."""
    if not raw.startswith(_MAGIC):
        raise bad_request("the body of the request is not Kubernetes protobuf: it lacks the k8s prefix")
    try:
        envelope = kinds.Unknown.FromString(raw[len(_MAGIC) :])
        api_version, kind = envelope.type_meta.api_version, envelope.type_meta.kind
        # DeleteOptions come in the API version of what is deleted.
        message = kinds.DeleteOptions if kind == "DeleteOptions" else _KINDS.get((api_version, kind))
        if message is None:
            raise unsupported_media_type(
                f"this server reads {api_version} {kind} in application/json, not in {MEDIA_TYPE}"
            )
        return {"apiVersion": api_version, "kind": kind, **MessageToDict(message.FromString(envelope.raw))}
    except DecodeError as error:
        raise bad_request(f"the body of the request is not Kubernetes protobuf: {error}") from error
