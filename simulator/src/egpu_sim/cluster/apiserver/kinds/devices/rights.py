"""Rights to write parts of a claim's status, beside the right to write the status (Kubernetes 1.36).

A change of `allocation` or `reservedFor` requires `resourceclaims/binding`. A change of `devices` requires
`resourceclaims/driver`, named by the driver, with the verb `arbitrary-node:VERB`; a service account whose token names
the claim's node may have `associated-node:VERB` instead.
"""

from egpu_sim.cluster.apiserver.access.authorization import Authorizer, Wanted
from egpu_sim.cluster.apiserver.access.identities import NODE_NAME
from egpu_sim.cluster.apiserver.calls import Call, User
from egpu_sim.cluster.apiserver.kinds.devices.claims import device_key
from egpu_sim.cluster.apiserver.kinds.devices.parts import GROUP
from egpu_sim.cluster.apiserver.status import Cause, forbidden_field, invalid_object
from egpu_sim.cluster.trees import Json, as_list, as_object, name_of, objects_at


def check(call: Call, old: Json, new: Json, authorizer: Authorizer) -> None:
    """Raise RequestRefused (422) where the user may not write what differs."""
    before, after = as_object(old.get("status")), as_object(new.get("status"))
    causes = _binding(call, before, after, authorizer) + _devices(call, before, after, authorizer)
    if causes:
        raise invalid_object(GROUP, call.resource.kind, name_of(new), causes)


def _binding(call: Call, before: Json, after: Json, authorizer: Authorizer) -> list[Cause]:
    if all((before.get(key) or None) == (after.get(key) or None) for key in ("allocation", "reservedFor")):
        return []
    wanted = Wanted(call.verb, GROUP, "resourceclaims/binding")
    if authorizer.allows(call.user, wanted):
        return []
    needed = f'resource="resourceclaims/binding", verb="{call.verb}"'
    message = f"changing status.allocation or status.reservedFor requires {needed} permission: {_cannot(call, wanted)}"
    return [forbidden_field("status.allocation", message)]


def _cannot(call: Call, wanted: Wanted) -> str:
    return f'User "{call.user.name}" cannot {wanted}'


def _devices(call: Call, before: Json, after: Json, authorizer: Authorizer) -> list[Cause]:
    verbs = [f"arbitrary-node:{call.verb}"]
    if _is_on(call.user, _node(as_object(after.get("allocation")))):
        verbs.insert(0, f"associated-node:{call.verb}")
    causes: list[Cause] = []
    for driver in sorted(_changed_drivers(before, after)) if after.get("allocation") else ():
        wanted = [Wanted(verb, GROUP, "resourceclaims/driver", call.namespace, driver) for verb in verbs]
        if not any(authorizer.allows(call.user, one) for one in wanted):
            needed = f'resource="resourceclaims/driver", verb="[{" ".join(verbs)}]"'
            message = f"changing status.devices requires {needed} permission: {_cannot(call, wanted[0])}"
            causes.append(forbidden_field("status.devices", message))
    return causes


def _changed_drivers(before: Json, after: Json) -> set[str]:
    old, new = ({device_key(one): one for one in objects_at(status, "devices")} for status in (before, after))
    return {str((new.get(key) or old[key]).get("driver")) for key in {*old, *new} if old.get(key) != new.get(key)}


def _node(allocation: Json) -> str:
    """Return the one node of an allocation; empty for several."""
    terms = objects_at(allocation, "nodeSelector", "nodeSelectorTerms")
    if len(terms) != 1 or terms[0].get("matchExpressions"):
        return ""
    fields = objects_at(terms[0], "matchFields")
    values = as_list(fields[0].get("values")) if [one.get("key") for one in fields] == ["metadata.name"] else []
    return str(values[0]) if len(values) == 1 else ""


def _is_on(user: User, node: str) -> bool:
    named = dict(user.extra).get(NODE_NAME)
    return bool(node) and named == node and user.name.startswith("system:serviceaccount:")
