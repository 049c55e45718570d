"""The body of a server-side apply: what a client states, checked before anything is done with it."""

import yaml

from egpu.embedded.apiserver.calls import Call
from egpu.embedded.apiserver.objects import Json, as_object
from egpu.embedded.apiserver.status import bad_request, invalid_object, required

MEDIA_TYPES = ("application/apply-patch+yaml", "application/apply-patch+json")


def read(call: Call, raw: bytes) -> Json:
    """The configuration in a body (JSON is YAML, too). Raises RequestRefused."""
    if not call.query.get("fieldManager"):
        cause = required("fieldManager", "is required for apply patch")
        raise invalid_object("meta.k8s.io", "PatchOptions", "", [cause])
    try:
        config = as_object(yaml.safe_load(raw))
    except (yaml.YAMLError, UnicodeDecodeError, RecursionError) as error:
        raise bad_request(f"error decoding YAML: {error}") from error
    resource = call.resource
    for field, wanted in (("apiVersion", resource.api_version), ("kind", resource.kind)):
        found = config.setdefault(field, wanted)
        if found != wanted:
            raise bad_request(f"invalid object type: {field} {found} does not match the {wanted} of the request")
    meta = as_object(config.setdefault("metadata", {}))
    if meta.get("managedFields"):
        raise bad_request("metadata.managedFields must be nil")
    for field, wanted in (("name", call.name), ("namespace", call.namespace if resource.namespaced else "")):
        found = meta.get(field)
        if found not in (None, "", wanted):
            what = "name" if field == "name" else "namespace"
            raise bad_request(f"the {what} of the object ({found}) does not match the {what} on the URL ({wanted})")
    meta["name"] = call.name
    if resource.namespaced:
        meta["namespace"] = call.namespace
    return config
