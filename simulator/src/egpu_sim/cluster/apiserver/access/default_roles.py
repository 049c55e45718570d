"""The roles of a new cluster, for everything that this server serves.

Source: the bootstrap policy of kube-apiserver. A role gives nodes the rights of Kubernetes' node authorizer, which also
checks the node's name; this server does not.
"""

from collections.abc import Iterator

from egpu_sim.cluster.apiserver.access.authorization import MASTERS
from egpu_sim.cluster.trees import Json

_API = "rbac.authorization.k8s.io"
_DEVICES = "resource.k8s.io"
_READ = ["get", "list", "watch"]
_DOCUMENTS = ["/api", "/api/*", "/apis", "/apis/*", "/healthz", "/livez", "/openapi", "/openapi/*", "/readyz",
              "/version", "/version/"]  # fmt: skip


def _rule(group: str, resources: list[str], verbs: list[str]) -> Json:
    return {"apiGroups": [group], "resources": resources, "verbs": verbs}


_REVIEWS = [
    _rule("authorization.k8s.io", ["selfsubjectaccessreviews", "selfsubjectrulesreviews"], ["create"]),
    _rule("authentication.k8s.io", ["selfsubjectreviews"], ["create"]),
]
_EVENTS = [_rule(group, ["events"], ["create", "patch", "update"]) for group in ("", "events.k8s.io")]

_ROLES: dict[str, tuple[str, str, list[Json]]] = {
    "cluster-admin": (
        "Group",
        MASTERS,
        [_rule("*", ["*"], ["*"]), {"nonResourceURLs": ["*"], "verbs": ["*"]}],
    ),
    "system:discovery": ("Group", "system:authenticated", [{"nonResourceURLs": _DOCUMENTS, "verbs": ["get"]}]),
    "system:basic-user": ("Group", "system:authenticated", _REVIEWS),
    "system:kube-scheduler": (
        "User",
        "system:kube-scheduler",
        [
            *_EVENTS,
            _rule("coordination.k8s.io", ["leases"], ["create", "get", "list", "patch", "update", "watch"]),
            _rule("", ["nodes", "namespaces", "services"], _READ),
            _rule("", ["pods"], ["delete", *_READ]),
            _rule("", ["bindings", "pods/binding"], ["create"]),
            _rule("", ["pods/status"], ["patch", "update"]),
            _rule(_DEVICES, ["deviceclasses", "resourceslices"], _READ),
            _rule(_DEVICES, ["resourceclaims", "resourceclaims/status"], [*_READ, "patch", "update"]),
            _rule(_DEVICES, ["resourceclaims"], ["create", "delete"]),
            _rule(_DEVICES, ["resourceclaims/binding"], ["patch", "update"]),
        ],
    ),
    "system:node": (
        "Group",
        "system:nodes",
        [
            *_EVENTS,
            _rule("coordination.k8s.io", ["leases"], ["create", "delete", "get", "patch", "update"]),
            _rule("", ["nodes"], ["create", "delete", "patch", "update", *_READ]),
            _rule("", ["nodes/status"], ["patch", "update"]),
            _rule("", ["pods"], ["create", "delete", *_READ]),
            _rule("", ["pods/status"], ["patch", "update"]),
            _rule("", ["pods/eviction"], ["create"]),
            _rule("", ["configmaps", "secrets", "services"], _READ),
            _rule(_DEVICES, ["resourceclaims"], ["get"]),
            _rule(_DEVICES, ["resourceslices"], ["deletecollection"]),
            _rule("authentication.k8s.io", ["tokenreviews"], ["create"]),
            _rule("authorization.k8s.io", ["localsubjectaccessreviews", "subjectaccessreviews"], ["create"]),
        ],
    ),
}
"""Name → kind and name of its one subject, and its rules."""


def default_roles() -> Iterator[tuple[str, Json]]:
    """Return (shelf, object) of every role and binding."""
    for name, (kind, subject, rules) in _ROLES.items():
        meta = {"name": name, "labels": {"kubernetes.io/bootstrapping": "rbac-defaults"}}
        yield (
            "clusterroles",
            {"kind": "ClusterRole", "apiVersion": f"{_API}/v1", "metadata": dict(meta), "rules": rules},
        )
        yield (
            "clusterrolebindings",
            {
                "kind": "ClusterRoleBinding",
                "apiVersion": f"{_API}/v1",
                "metadata": dict(meta),
                "roleRef": {"apiGroup": _API, "kind": "ClusterRole", "name": name},
                "subjects": [{"apiGroup": _API, "kind": kind, "name": subject}],
            },
        )
