"""The kinds of apps/v1 and batch/v1 as their controllers read them: metadata typed, spec and status as they are.

Specs hold templates of pods, which go to pods whole. No typed copy would keep every field.
"""

from typing import Any, ClassVar

from msgspec import field

from egpu_base.api.objects import Object
from egpu_base.api.wire import Resource
from egpu_sim.cluster.trees import as_list, as_object


class Workload(Object, frozen=True, kw_only=True):
    """An object whose controller makes pods (or, for a Deployment, replica sets) from a template."""

    spec: dict[str, Any] = field(default_factory=dict[str, Any])
    status: dict[str, Any] = field(default_factory=dict[str, Any])

    @property
    def template(self) -> dict[str, Any]:
        return as_object(self.spec.get("template"))

    @property
    def replicas(self) -> int:
        return int(self.spec.get("replicas", 1))

    def number(self, name: str) -> int:
        """Return a count of the status; 0 if missing."""
        return int(self.status.get(name) or 0)

    def condition(self, kind: str) -> dict[str, Any]:
        """Return a condition of the status, empty if missing."""
        found = [one for one in map(as_object, as_list(self.status.get("conditions"))) if one.get("type") == kind]
        return found[0] if found else {}

    def owner_reference(self) -> dict[str, Any]:
        return {
            "apiVersion": type(self).resource.api_version,
            "kind": type(self).__name__,
            "name": self.name,
            "uid": self.uid,
            "controller": True,
            "blockOwnerDeletion": True,
        }


class Deployment(Workload, frozen=True, kw_only=True, tag_field="kind", tag="Deployment"):
    resource: ClassVar[Resource] = Resource("apps", "v1", "deployments", namespaced=True)


class ReplicaSet(Workload, frozen=True, kw_only=True, tag_field="kind", tag="ReplicaSet"):
    resource: ClassVar[Resource] = Resource("apps", "v1", "replicasets", namespaced=True)


class DaemonSet(Workload, frozen=True, kw_only=True, tag_field="kind", tag="DaemonSet"):
    resource: ClassVar[Resource] = Resource("apps", "v1", "daemonsets", namespaced=True)


class StatefulSet(Workload, frozen=True, kw_only=True, tag_field="kind", tag="StatefulSet"):
    resource: ClassVar[Resource] = Resource("apps", "v1", "statefulsets", namespaced=True)


class Job(Workload, frozen=True, kw_only=True, tag_field="kind", tag="Job"):
    resource: ClassVar[Resource] = Resource("batch", "v1", "jobs", namespaced=True)
