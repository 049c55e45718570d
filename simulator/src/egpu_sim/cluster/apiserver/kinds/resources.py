"""The served kinds: one `Resource` per group, version and plural, in a `Registry` that CRDs extend while it runs."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import TypeAlias

from egpu_sim.cluster.apiserver.kinds.schema import Schema
from egpu_sim.cluster.apiserver.reading.table import DEFAULT, Column
from egpu_sim.cluster.apiserver.status import Cause
from egpu_sim.cluster.apiserver.storage.selectors import FieldPaths
from egpu_sim.cluster.apiserver.storage.store import Stored
from egpu_sim.cluster.trees import Json, encode

ALL_VERBS = ("create", "delete", "deletecollection", "get", "list", "patch", "update", "watch")

Convert: TypeAlias = Callable[[Json], Json]

METADATA_FIELDS: FieldPaths = {
    "metadata.name": ("metadata", "name"),
    "metadata.namespace": ("metadata", "namespace"),
}


class Rules:
    """The rules of a kind beyond storing; the base class has none."""

    label_names = False
    """Names are DNS labels rather than subdomains."""
    free_names = False
    """Names may be any text that fits in a path."""

    def defaults(self, obj: Json) -> None:
        """Fill in optional fields, in place."""

    def prepare_create(self, obj: Json) -> None:
        """Set fields that clients cannot set, in place."""

    def prepare_update(self, old: Json, new: Json) -> None:
        """Set fields that follow from a change, in place."""

    def validate(self, obj: Json) -> list[Cause]:
        return []

    def validate_status(self, obj: Json) -> list[Cause]:
        return []

    def validate_update(self, old: Json, new: Json) -> list[Cause]:
        return self.validate(new)

    def validate_status_update(self, old: Json, new: Json) -> list[Cause]:
        return self.validate_status(new)


@dataclass(frozen=True)
class Subresource:
    """A path below an object: its own kind on the wire, and its verbs."""

    name: str
    kind: str
    verbs: tuple[str, ...]
    group: str = ""
    version: str = ""


@dataclass(frozen=True)
class ScalePaths:
    """The fields of a kind that the scale subresource shows."""

    spec: tuple[str, ...]
    status: tuple[str, ...]
    selector: tuple[str, ...] = ()


@dataclass(frozen=True)
class Resource:
    """One served version of a resource."""

    group: str
    version: str
    plural: str
    kind: str
    namespaced: bool
    shelf: str
    """Name of its shelf; several versions, and the two Event groups, share one."""
    singular: str = ""
    short_names: tuple[str, ...] = ()
    categories: tuple[str, ...] = ()
    verbs: tuple[str, ...] = ALL_VERBS
    subresources: tuple[Subresource, ...] = ()
    fields: FieldPaths = field(default_factory=lambda: METADATA_FIELDS)
    columns: tuple[Column, ...] = DEFAULT
    rules: Rules = field(default_factory=Rules)
    model: tuple[str, str] | None = None
    """lightkube module and class of its shape; None for custom resources."""
    schema: Schema | None = None
    source_schema: Json | None = None
    """A custom resource's schema, from its CRD."""
    to_storage: Convert | None = None
    from_storage: Convert | None = None
    """None: the stored form is served unchanged."""
    custom: bool = False
    scale: ScalePaths | None = None
    generations: bool = False
    """metadata.generation counts changes outside metadata and status."""

    @property
    def api_version(self) -> str:
        return f"{self.group}/{self.version}" if self.group else self.version

    @property
    def list_kind(self) -> str:
        return f"{self.kind}List"

    @property
    def has_status(self) -> bool:
        return any(sub.name == "status" for sub in self.subresources)

    def subresource(self, name: str) -> Subresource | None:
        return next((sub for sub in self.subresources if sub.name == name), None)

    def served(self, item: Stored) -> Json:
        """Return the object in this version. Do not mutate it."""
        return item.obj if self.from_storage is None else self.from_storage(item.obj)

    def served_bytes(self, item: Stored) -> bytes:
        """Return the object's encoding in this version, made once for all readers."""
        if self.from_storage is None:
            return item.raw
        found = item.forms.get(self.api_version)
        if found is None:
            found = item.forms[self.api_version] = encode(self.from_storage(item.obj))
        return found


class Registry:
    """All resources by (group, version, plural). `generation` changes with every change of the set."""

    def __init__(self) -> None:
        self._resources: dict[tuple[str, str, str], Resource] = {}
        self._group_versions: dict[str, list[str]] = {}
        self.generation = 0

    def add_group(self, group: str, versions: list[str]) -> None:
        """Serve a group, even without resources. Its first version is the preferred one."""
        self._group_versions[group] = versions
        self.generation += 1

    def add(self, resource: Resource) -> None:
        versions = self._group_versions.setdefault(resource.group, [])
        if resource.version not in versions:
            versions.append(resource.version)
        self._resources[resource.group, resource.version, resource.plural] = resource
        self.generation += 1

    def remove(self, group: str, plural: str) -> None:
        """Stop serving every version of a resource, and parts of its group that become empty."""
        for key in [key for key in self._resources if key[0] == group and key[2] == plural]:
            del self._resources[key]
        left = {key[1] for key in self._resources if key[0] == group}
        versions = [version for version in self._group_versions.get(group, []) if version in left]
        if versions:
            self._group_versions[group] = versions
        else:
            self._group_versions.pop(group, None)
        self.generation += 1

    def get(self, group: str, version: str, plural: str) -> Resource | None:
        return self._resources.get((group, version, plural))

    def has_version(self, group: str, version: str) -> bool:
        return version in self._group_versions.get(group, [])

    def groups(self) -> Mapping[str, list[str]]:
        return self._group_versions

    def of_version(self, group: str, version: str) -> list[Resource]:
        return [r for r in self._resources.values() if r.group == group and r.version == version]

    def versions_of(self, group: str, plural: str) -> list[Resource]:
        return [r for r in self._resources.values() if r.group == group and r.plural == plural]

    def find_kind(self, api_version: str, kind: str) -> Resource | None:
        """Return the resource of an ownerReference or any other apiVersion and kind."""
        return next((r for r in self if r.api_version == api_version and r.kind == kind), None)

    def one_per_shelf(self) -> list[Resource]:
        """Return each stored resource once."""
        return list({resource.shelf: resource for resource in reversed(list(self)) if resource.shelf}.values())

    def __iter__(self) -> Iterator[Resource]:
        return iter(list(self._resources.values()))
