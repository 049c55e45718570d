"""PATCH: from a content type and a body to a change."""

from typing import cast

from egpu_sim.cluster.apiserver.calls import Call
from egpu_sim.cluster.apiserver.http.negotiation import read_any
from egpu_sim.cluster.apiserver.kinds import models
from egpu_sim.cluster.apiserver.kinds.resources import Registry, Resource
from egpu_sim.cluster.apiserver.patching import applying
from egpu_sim.cluster.apiserver.patching.json_patch import PatchFailed, json_patch, merge_patch
from egpu_sim.cluster.apiserver.patching.strategic import Definitions, strategic_merge
from egpu_sim.cluster.apiserver.status import bad_request, refused, unsupported_media_type
from egpu_sim.cluster.apiserver.writing import strict
from egpu_sim.cluster.apiserver.writing.writes import Change
from egpu_sim.cluster.trees import Json, as_object

JSON_PATCH = "application/json-patch+json"
MERGE_PATCH = "application/merge-patch+json"
STRATEGIC_PATCH = "application/strategic-merge-patch+json"


class Patcher:
    """Reads patches. Holds the definitions for strategic merge."""

    def __init__(self, registry: Registry) -> None:
        self.registry = registry
        roots = [resource.model for resource in registry if resource.model is not None]
        self._definitions = Definitions(models.definitions_for(roots))

    def change(self, call: Call, content_type: str, raw: bytes) -> Change:
        """Return the change of a PATCH. Raises RequestRefused for an invalid one."""
        media = content_type.partition(";")[0].strip()
        if media not in (JSON_PATCH, MERGE_PATCH, STRATEGIC_PATCH):
            raise unsupported_media_type("415: Unsupported Media Type")
        patch = read_any(raw, "application/json")
        strict.report_duplicates(call, raw, media)
        if media == STRATEGIC_PATCH and call.resource.custom:
            raise unsupported_media_type(
                f"the body of the request was in an unknown format - accepted media types include: {JSON_PATCH}, "
                f"{MERGE_PATCH}, {applying.MEDIA_TYPES[0]}"
            )

        def change(served: Json) -> Json:
            try:
                return self._apply(call.resource, media, served, patch)
            except PatchFailed as error:
                raise _refusal(error) from error

        return change

    def _apply(self, resource: Resource, media: str, served: Json, patch: object) -> Json:
        if media == JSON_PATCH:
            result = json_patch(served, patch)
        elif not isinstance(patch, dict):
            raise bad_request("the patch is not an object")
        elif media == MERGE_PATCH:
            result = merge_patch(served, cast(Json, patch))
        else:
            assert resource.model is not None
            root: Json = {"$ref": models.definition_name(*resource.model)}
            result = strategic_merge(served, cast(Json, patch), root, self._definitions)
        if not as_object(result):
            raise PatchFailed("the result of the patch is not an object")
        return as_object(result)


def _refusal(error: PatchFailed) -> Exception:
    if error.malformed:
        return bad_request(str(error))
    return refused(422, "Invalid", "the server rejected our request due to an error in our request")
