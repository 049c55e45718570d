"""URL paths of the Kubernetes API, from each kind's location."""

from egpu_base.api.objects import Object


def path_of(
    kind: type[Object], namespace: str | None = None, name: str | None = None, subresource: str | None = None
) -> str:
    """Return the path of a collection, an object or its subresource. A namespaced kind without a namespace means all.

    Raises ValueError for one namespaced object without its namespace.
    """
    where = kind.resource
    if name is not None and where.namespaced and not namespace:
        raise ValueError(f"{kind.__name__} {name}: this kind needs a namespace; name one")
    parts = ["apis", where.group, where.version] if where.group else ["api", where.version]
    if namespace and where.namespaced:
        parts += ["namespaces", namespace]
    parts += [where.plural, *(part for part in (name, subresource) if part is not None)]
    return "/" + "/".join(parts)
