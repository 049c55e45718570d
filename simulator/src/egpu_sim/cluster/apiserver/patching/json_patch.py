"""JSON Patch (RFC 6902) and JSON Merge Patch (RFC 7386). Strategic merge patch is in `strategic`."""

from typing import Any, cast

import jsonpatch

from egpu_sim.cluster.trees import Json, as_list, copy

OPERATIONS_LIMIT = 10_000
"""The most operations in one JSON patch, as in the real server."""


class PatchFailed(ValueError):
    """The patch does not apply to this object; `malformed` if it applies to none."""

    def __init__(self, message: str, *, malformed: bool = False) -> None:
        super().__init__(message)
        self.malformed = malformed


def merge_patch(target: Any, patch: Any) -> Any:
    """Apply an RFC 7386 patch and return the result. Neither argument changes at its top level."""
    if not isinstance(patch, dict):
        return patch
    result: Json = dict(cast(Json, target)) if isinstance(target, dict) else {}
    for key, value in cast(Json, patch).items():
        if value is None:
            result.pop(key, None)
        else:
            result[key] = merge_patch(result.get(key), value)
    return result


def json_patch(target: Json, operations: object) -> Any:
    """Apply an RFC 6902 patch to a copy of `target`. Raises PatchFailed; then nothing has changed."""
    if not isinstance(operations, list):
        raise PatchFailed("a JSON patch is a list of operations", malformed=True)
    steps = as_list(cast(object, operations))
    if len(steps) > OPERATIONS_LIMIT:
        raise PatchFailed(f"the patch has more than {OPERATIONS_LIMIT} operations", malformed=True)
    try:
        return jsonpatch.apply_patch(copy(target), steps, in_place=True)
    except jsonpatch.InvalidJsonPatch as error:
        raise PatchFailed(str(error), malformed=True) from error
    except (jsonpatch.JsonPatchException, jsonpatch.JsonPointerException) as error:
        raise PatchFailed(str(error)) from error
