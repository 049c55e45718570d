"""The writes that a webhook or an admission policy matches, by rules and by selectors of namespaces and objects.

Every write is matched, so compiled rules are cached until one of them changes.
"""

from collections.abc import Callable, Sequence
from functools import cached_property
from typing import Generic, TypeVar

from egpu_base.kubernetes.label_selectors import Predicate
from egpu_sim.cluster.apiserver.calls import Call, Write
from egpu_sim.cluster.apiserver.storage import selectors
from egpu_sim.cluster.apiserver.storage.store import Change, Store
from egpu_sim.cluster.trees import Json, as_list, as_object, labels_of, objects_at

T = TypeVar("T")


class Scope:
    """The matching fields of a webhook, or of a policy's MatchResources (which calls `rules` otherwise)."""

    def __init__(self, of: Json, *, rules: str = "rules") -> None:
        self._of = of
        self._rules = [_Rule(rule) for rule in objects_at(of, rules)]
        self._excluded = [_Rule(rule) for rule in objects_at(of, "excludeResourceRules")]

    def names(self, call: Call, operation: str) -> bool:
        """Return whether the rules name such writes."""
        return any(rule.names(call, operation) for rule in self._rules) and not any(
            rule.names(call, operation) for rule in self._excluded
        )

    def has(self, write: Write, store: Store) -> bool:
        return self.names(write.call, write.operation) and self._selected(write, store)

    def _selected(self, write: Write, store: Store) -> bool:
        call = write.call
        if self._namespaces is not None and (call.resource.namespaced or call.resource.shelf == "namespaces"):
            namespace = call.namespace if call.resource.namespaced else call.name
            item = store.get("namespaces", ("", namespace))
            if not self._namespaces(labels_of(item.obj) if item is not None else labels_of(write.obj or {})):
                return False
        wanted = self._objects
        return wanted is None or any(obj is not None and wanted(labels_of(obj)) for obj in (write.obj, write.old))

    @cached_property
    def _namespaces(self) -> Predicate | None:
        return selectors.object_selector(as_object(self._of.get("namespaceSelector")))

    @cached_property
    def _objects(self) -> Predicate | None:
        return selectors.object_selector(as_object(self._of.get("objectSelector")))


class Kept(Generic[T]):
    """The result of `read` for some shelves of a store, read again when an object there has changed."""

    def __init__(self, store: Store, shelves: Sequence[str], read: Callable[[], list[T]]) -> None:
        self._shelves = frozenset(shelves)
        self._read = read
        self._made: list[T] | None = None
        store.listen(self._on_change)

    def now(self) -> list[T]:
        if self._made is None:
            self._made = self._read()
        return self._made

    def _on_change(self, shelf: str, _: Change) -> None:
        if shelf in self._shelves:
            self._made = None


class _Rule:
    """Return whether a rule names any served version of the resource (matchPolicy Equivalent)."""

    def __init__(self, rule: Json) -> None:
        def listed(key: str) -> frozenset[str]:
            return frozenset(map(str, as_list(rule.get(key))))

        self._operations, self._groups, self._versions = (
            listed("operations"),
            listed("apiGroups"),
            listed("apiVersions"),
        )
        self._resources, self._only = listed("resources"), listed("resourceNames")
        self._scope = rule.get("scope") or "*"

    def names(self, call: Call, operation: str) -> bool:
        resource, subresource = call.resource, call.subresource
        if not _lists(self._operations, operation) or not _lists(self._groups, resource.group):
            return False
        if resource.custom is False and not _lists(self._versions, resource.version):
            return False
        if self._scope != "*" and (self._scope == "Namespaced") != resource.namespaced:
            return False
        if self._only and call.name not in self._only:
            return False
        if not subresource:
            return not self._resources.isdisjoint(("*", "*/*", resource.plural))
        wanted = ("*/*", f"{resource.plural}/{subresource}", f"{resource.plural}/*", f"*/{subresource}")
        return not self._resources.isdisjoint(wanted)


def _lists(listed: frozenset[str], wanted: str) -> bool:
    return wanted in listed or "*" in listed
