"""The create-only kinds that answer a question instead of storing an object."""

from egpu.embedded.apiserver.calls import Call
from egpu.embedded.apiserver.objects import Json, as_object

_WHY = "this server has no RBAC: every token may do everything"


def answer(call: Call, body: Json) -> Json:
    """The body with its status filled in."""
    user: Json = {"username": call.user.name, "groups": list(call.user.groups)}
    match call.resource.plural:
        case "selfsubjectaccessreviews":
            status: Json = {"allowed": True, "reason": _WHY}
        case "selfsubjectrulesreviews":
            everything = {"verbs": ["*"], "apiGroups": ["*"], "resources": ["*"]}
            status = {
                "resourceRules": [everything],
                "nonResourceRules": [{"verbs": ["*"], "nonResourceURLs": ["*"]}],
                "incomplete": False,
            }
        case _:
            status = {"userInfo": user}
    meta = {"creationTimestamp": None, **as_object(body.get("metadata"))}
    return {
        "kind": call.resource.kind,
        "apiVersion": call.resource.api_version,
        "metadata": meta,
        "spec": as_object(body.get("spec")),
        "status": status,
    }
