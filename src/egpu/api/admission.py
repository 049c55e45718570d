"""AdmissionReview of `admission.k8s.io/v1`, as an API server exchanges it with a webhook."""

from typing import Any, Final, Literal

import msgspec
from msgspec import field

from egpu_base.api.wire import Wire

API_VERSION: Final = "admission.k8s.io/v1"


class GroupVersionKind(Wire, frozen=True, kw_only=True):
    group: str = ""
    version: str = ""
    kind: str = ""


class GroupVersionResource(Wire, frozen=True, kw_only=True):
    group: str = ""
    version: str = ""
    resource: str = ""


class UserInfo(Wire, frozen=True, kw_only=True):
    username: str = ""
    uid: str = ""
    groups: list[str] | None = None


class AdmissionRequest(Wire, frozen=True, kw_only=True):
    """A request. `object` and `old_object` are the JSON texts of the objects (`null` if the operation has none)."""

    uid: str
    kind: GroupVersionKind = field(default_factory=GroupVersionKind)
    resource: GroupVersionResource = field(default_factory=GroupVersionResource)
    sub_resource: str = ""
    name: str = ""
    namespace: str = ""
    operation: str = ""
    user_info: UserInfo = field(default_factory=UserInfo)
    object: msgspec.Raw = field(default_factory=lambda: msgspec.Raw(b"null"))
    old_object: msgspec.Raw = field(default_factory=lambda: msgspec.Raw(b"null"))
    dry_run: bool | None = None


class ResponseStatus(Wire, frozen=True, kw_only=True):
    code: int
    message: str
    reason: str = ""


class AdmissionResponse(Wire, frozen=True, kw_only=True):
    """A response. `patch` is a JSON patch; msgspec writes bytes as base64, as the protocol requires."""

    uid: str
    allowed: bool
    status: ResponseStatus | None = None
    patch: bytes | None = None
    patch_type: Literal["JSONPatch"] | None = None
    warnings: list[str] | None = None


class AdmissionReview(Wire, frozen=True, kw_only=True):
    api_version: str = field(default_factory=lambda: API_VERSION)
    kind: str = field(default_factory=lambda: "AdmissionReview")
    request: AdmissionRequest | None = None
    response: AdmissionResponse | None = None


JSONPatch = list[dict[str, Any]]
"""RFC 6902 operations."""
