"""The body of a server-side apply: the client's configuration, checked before anything else."""

import msgspec
import yaml

from egpu_sim.cluster.apiserver.calls import Call
from egpu_sim.cluster.apiserver.status import bad_request, invalid_object, required
from egpu_sim.cluster.trees import Json, as_object, decode

MEDIA_TYPES = ("application/apply-patch+yaml", "application/apply-patch+json")


def read(call: Call, raw: bytes) -> Json:
    """Read the configuration in a body: JSON, or YAML, which takes longer. Raises RequestRefused."""
    if not call.query.get("fieldManager"):
        cause = required("fieldManager", "is required for apply patch")
        raise invalid_object("meta.k8s.io", "PatchOptions", "", [cause])
    try:
        config = as_object(_decoded(raw))
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


def _decoded(raw: bytes) -> object:
    try:
        return decode(raw)
    except msgspec.DecodeError:
        return yaml.safe_load(raw)
