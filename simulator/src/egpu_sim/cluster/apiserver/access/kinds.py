"""Roles and their bindings, and the kinds of access reviews."""

from egpu_sim.cluster.apiserver.kinds.resources import Resource, Rules
from egpu_sim.cluster.apiserver.status import Cause, invalid, required
from egpu_sim.cluster.trees import Json, as_list, as_object, objects_at

RBAC = "rbac.authorization.k8s.io"


class RoleRules(Rules):
    """Role and ClusterRole. Their names are any text that fits in a path (`system:node`)."""

    free_names = True

    def validate(self, obj: Json) -> list[Cause]:
        causes: list[Cause] = []
        for index, rule in enumerate(objects_at(obj, "rules")):
            path = f"rules[{index}]"
            of_paths = bool(as_list(rule.get("nonResourceURLs")))
            needed = ("verbs",) if of_paths else ("verbs", "apiGroups", "resources")
            causes += [required(f"{path}.{key}") for key in needed if not as_list(rule.get(key))]
            if of_paths and obj.get("kind") == "Role":
                causes.append(
                    invalid(f"{path}.nonResourceURLs", "", "namespaced rules cannot apply to non-resource URLs")
                )
        return causes


class RoleBindingRules(Rules):
    free_names = True

    def validate(self, obj: Json) -> list[Cause]:
        reference = as_object(obj.get("roleRef"))
        return [required(f"roleRef.{key}") for key in ("kind", "name") if not reference.get(key)]

    def validate_update(self, old: Json, new: Json) -> list[Cause]:
        if old.get("roleRef") != new.get("roleRef"):
            return [invalid("roleRef", new.get("roleRef"), "cannot change roleRef")]
        return self.validate(new)


def access_kinds() -> list[Resource]:
    return [
        _rbac("roles", "Role", True, RoleRules()),
        _rbac("rolebindings", "RoleBinding", True, RoleBindingRules()),
        _rbac("clusterroles", "ClusterRole", False, RoleRules()),
        _rbac("clusterrolebindings", "ClusterRoleBinding", False, RoleBindingRules()),
        *(
            _review("authorization", kind)
            for kind in ("SelfSubjectAccessReview", "SelfSubjectRulesReview", "SubjectAccessReview")
        ),
        *(_review("authentication", kind) for kind in ("SelfSubjectReview", "TokenReview")),
    ]


def _rbac(plural: str, kind: str, namespaced: bool, rules: Rules) -> Resource:
    model = ("rbac_v1", kind)
    return Resource(RBAC, "v1", plural, kind, namespaced, plural, kind.lower(), rules=rules, model=model)


def _review(group: str, kind: str) -> Resource:
    """Return a kind that is only created: the server answers it, and does not store it."""
    return Resource(
        f"{group}.k8s.io",
        "v1",
        f"{kind.lower()}s",
        kind,
        False,
        "",
        kind.lower(),
        verbs=("create",),
        model=(f"{group}_v1", kind),
    )
