"""The kinds of dynamic resource allocation as resources."""

from egpu_sim.cluster.apiserver.kinds.devices.claims import ClaimRules, ClassRules, TemplateRules
from egpu_sim.cluster.apiserver.kinds.devices.parts import CLAIMS, GROUP
from egpu_sim.cluster.apiserver.kinds.devices.slices import SliceRules
from egpu_sim.cluster.apiserver.kinds.resources import METADATA_FIELDS, Resource, Subresource
from egpu_sim.cluster.apiserver.reading.table import AGE, NAME, Column
from egpu_sim.cluster.trees import Json, at, metadata, objects_at


def _state(claim: Json) -> str:
    deleted, allocated = bool(metadata(claim).get("deletionTimestamp")), at(claim, "status", "allocation") is not None
    states = ["deleted"] if deleted else []
    if allocated:
        states += ["allocated", *(["reserved"] if objects_at(claim, "status", "reservedFor") else [])]
    elif not deleted:
        states.append("pending")
    return ",".join(states)


_CLAIMS = (NAME, Column("State", _state), AGE)
_SLICES = (
    NAME,
    Column("Node", lambda obj: at(obj, "spec", "nodeName") or ""),
    Column("Driver", lambda obj: at(obj, "spec", "driver") or ""),
    Column("Pool", lambda obj: at(obj, "spec", "pool", "name") or ""),
    AGE,
)
_SLICE_FIELDS = {**METADATA_FIELDS, "spec.driver": ("spec", "driver"), "spec.nodeName": ("spec", "nodeName")}
_STATUS = Subresource("status", "ResourceClaim", ("get", "patch", "update"))


def resources() -> list[Resource]:
    return [
        Resource(GROUP, "v1", "deviceclasses", "DeviceClass", False, "deviceclasses", "deviceclass",
                 rules=ClassRules(), model=("resource_v1", "DeviceClass"), generations=True),
        Resource(GROUP, "v1", CLAIMS, "ResourceClaim", True, CLAIMS, "resourceclaim", columns=_CLAIMS,
                 rules=ClaimRules(), model=("resource_v1", "ResourceClaim"), subresources=(_STATUS,)),
        Resource(GROUP, "v1", "resourceclaimtemplates", "ResourceClaimTemplate", True, "resourceclaimtemplates",
                 "resourceclaimtemplate", rules=TemplateRules(), model=("resource_v1", "ResourceClaimTemplate")),
        Resource(GROUP, "v1", "resourceslices", "ResourceSlice", False, "resourceslices", "resourceslice",
                 columns=_SLICES, rules=SliceRules(), fields=_SLICE_FIELDS, generations=True,
                 model=("resource_v1", "ResourceSlice")),
    ]  # fmt: skip
