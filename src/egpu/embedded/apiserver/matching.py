"""Which writes a webhook or an admission policy is about: rules, and selectors of namespaces and objects."""

from egpu.embedded.apiserver import selectors
from egpu.embedded.apiserver.calls import Call, Write
from egpu.embedded.apiserver.objects import Json, as_list, as_object, labels_of, objects_at
from egpu.embedded.apiserver.store import Store


def matches(hook: Json, write: Write, store: Store, *, rules: str = "rules") -> bool:
    """Whether a webhook, or the MatchResources of a policy (whose rules have another name), is about the write."""
    call = write.call
    if not any(names(rule, call, write.operation) for rule in objects_at(hook, rules)):
        return False
    return selected(hook, write, store)


def selected(hook: Json, write: Write, store: Store) -> bool:
    """Whether the selectors of namespaces and objects take the write in."""
    call = write.call
    selector = selectors.object_selector(as_object(hook.get("namespaceSelector")))
    if selector is not None and (call.resource.namespaced or call.resource.shelf == "namespaces"):
        namespace = call.namespace if call.resource.namespaced else call.name
        item = store.get("namespaces", ("", namespace))
        if not selector(labels_of(item.obj) if item is not None else labels_of(write.obj or {})):
            return False
    selector = selectors.object_selector(as_object(hook.get("objectSelector")))
    if selector is None:
        return True
    return any(obj is not None and selector(labels_of(obj)) for obj in (write.obj, write.old))


def names(rule: Json, call: Call, operation: str) -> bool:
    """Whether a rule names the write. Any served version of the resource counts (matchPolicy Equivalent)."""
    resource, subresource = call.resource, call.subresource

    def lists(key: str, *wanted: str) -> bool:
        listed = as_list(rule.get(key))
        return "*" in listed or any(one in listed for one in wanted)

    if not lists("operations", operation) or not lists("apiGroups", resource.group):
        return False
    if resource.custom is False and not lists("apiVersions", resource.version):
        return False
    scope = rule.get("scope") or "*"
    if scope != "*" and (scope == "Namespaced") != resource.namespaced:
        return False
    only = as_list(rule.get("resourceNames"))
    if only and call.name not in only:
        return False
    patterns = set(map(str, as_list(rule.get("resources"))))
    if not subresource:
        return bool(patterns & {"*", "*/*", resource.plural})
    return bool(patterns & {"*/*", f"{resource.plural}/{subresource}", f"{resource.plural}/*", f"*/{subresource}"})
