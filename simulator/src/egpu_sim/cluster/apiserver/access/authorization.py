"""RBAC (rbac.authorization.k8s.io/v1): authorization by the roles and bindings in the store.

Known differences: roles are not aggregated, and a user who may write roles may write any role (the real server refuses
roles with more rights than the writer's).
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final, TypeAlias

from egpu_base.errors import RequestRefused
from egpu_sim.cluster.apiserver.calls import Call, User
from egpu_sim.cluster.apiserver.status import refused
from egpu_sim.cluster.apiserver.storage.store import Change, Store
from egpu_sim.cluster.trees import Json, as_list, as_object, objects_at

MASTERS = "system:masters"
"""The group that may do everything, whatever the roles say."""


@dataclass(frozen=True)
class Wanted:
    """One request to authorize: a verb on a resource, or on a `path` of no resource."""

    verb: str
    group: str = ""
    resource: str = ""
    """The resource with its subresource, as roles name it: `pods` or `pods/status`."""
    namespace: str = ""
    name: str = ""
    path: str = ""

    @staticmethod
    def by(call: Call) -> "Wanted":
        """Return the request of a call. A list or watch with a field selector for one name counts as a request for that
        name."""
        resource = call.resource
        plural = f"{resource.plural}/{call.subresource}" if call.subresource else resource.plural
        return Wanted(call.verb, resource.group, plural, call.namespace, call.name or _only_name(call))

    def __str__(self) -> str:
        if self.path:
            return f'{self.verb} path "{self.path}"'
        where = f'in the namespace "{self.namespace}"' if self.namespace else "at the cluster scope"
        return f'{self.verb} resource "{self.resource}" in API group "{self.group}" {where}'


Listener: TypeAlias = Callable[[User, Wanted, bool], None]
"""Called with a user, a request, and whether it is allowed."""


_SHELVES: Final = frozenset({"clusterroles", "clusterrolebindings", "roles", "rolebindings"})
KEPT_LIMIT: Final = 4096
"""Users, each in each namespace, whose rules are cached. Beyond it the cache starts anew."""


class Authorizer:
    """Decides. A change of any role or binding drops the cached rules, so it counts at once."""

    def __init__(self, store: Store, listeners: Sequence[Listener] = ()) -> None:
        """Call `listeners` with every request and its answer, before anything is done."""
        self._store = store
        self._listeners = listeners
        self._rules: dict[tuple[User, str], tuple[Json, ...]] = {}
        store.listen(self._on_change)

    def _on_change(self, shelf: str, _change: Change) -> None:
        if shelf in _SHELVES:
            self._rules.clear()

    def allows(self, user: User, wanted: Wanted) -> bool:
        allowed = MASTERS in user.groups or any(covers(rule, wanted) for rule in self.rules(user, wanted.namespace))
        for listener in self._listeners:
            listener(user, wanted, allowed)
        return allowed

    def check(self, user: User, wanted: Wanted) -> None:
        """Raise RequestRefused (403) unless the user may do it."""
        if not self.allows(user, wanted):
            raise _forbidden(user, wanted)

    def rules(self, user: User, namespace: str) -> tuple[Json, ...]:
        """Return the rules of a user: those of the cluster and, if one is named, of the namespace."""
        found = self._rules.get((user, namespace))
        if found is None:
            if len(self._rules) >= KEPT_LIMIT:
                self._rules.clear()
            found = self._rules[user, namespace] = tuple(self._put_together(user, namespace))
        return found

    def _put_together(self, user: User, namespace: str) -> Iterator[Json]:
        for binding in self._bindings("clusterrolebindings", user):
            yield from objects_at(self._role(binding, ""), "rules")
        for binding in self._bindings("rolebindings", user, namespace) if namespace else ():
            yield from objects_at(self._role(binding, namespace), "rules")

    def _bindings(self, shelf: str, user: User, namespace: str = "") -> Iterator[Json]:
        for (found, _), item in list(self._store.shelf(shelf).items.items()):
            if found == namespace and any(_is(user, subject, found) for subject in objects_at(item.obj, "subjects")):
                yield item.obj

    def _role(self, binding: Json, namespace: str) -> Json:
        reference = as_object(binding.get("roleRef"))
        of_cluster = reference.get("kind") == "ClusterRole"
        key = ("" if of_cluster else namespace, str(reference.get("name")))
        item = self._store.get("clusterroles" if of_cluster else "roles", key)
        return {} if item is None else item.obj


def covers(rule: Json, wanted: Wanted) -> bool:
    if not _lists(rule, "verbs", "*", wanted.verb):
        return False
    if wanted.path:
        return any(_path_matches(str(pattern), wanted.path) for pattern in as_list(rule.get("nonResourceURLs")))
    if not _lists(rule, "apiGroups", "*", wanted.group):
        return False
    _, _, subresource = wanted.resource.partition("/")
    if not _lists(rule, "resources", "*", wanted.resource, f"*/{subresource}" if subresource else "*"):
        return False
    only = as_list(rule.get("resourceNames"))
    return not only or wanted.name in only


def _lists(rule: Json, key: str, *names: str) -> bool:
    listed = as_list(rule.get(key))
    return any(name in listed for name in names)


def _path_matches(pattern: str, path: str) -> bool:
    return pattern in ("*", path) or (pattern.endswith("*") and path.startswith(pattern[:-1]))


def _is(user: User, subject: Json, namespace: str) -> bool:
    name = str(subject.get("name"))
    match subject.get("kind"):
        case "User":
            return name == user.name
        case "Group":
            return name in user.groups
        case _:
            return user.name == f"system:serviceaccount:{subject.get('namespace') or namespace}:{name}"


def _only_name(call: Call) -> str:
    if call.verb not in ("list", "watch", "deletecollection"):
        return ""
    for term in call.query.get("fieldSelector", "").split(","):
        name, equals, value = term.partition("=")
        if name == "metadata.name" and equals:
            return value.removeprefix("=")
    return ""


def _forbidden(user: User, wanted: Wanted) -> RequestRefused:
    if wanted.path:
        return refused(403, "Forbidden", f'forbidden: User "{user.name}" cannot {wanted}')
    plural = wanted.resource.partition("/")[0]
    of = f"{plural}.{wanted.group}" if wanted.group else plural
    name = f' "{wanted.name}"' if wanted.name else ""
    details: Json = {"kind": plural, **({"group": wanted.group} if wanted.group else {})}
    if wanted.name:
        details["name"] = wanted.name
    return refused(403, "Forbidden", f'{of}{name} is forbidden: User "{user.name}" cannot {wanted}', details=details)
