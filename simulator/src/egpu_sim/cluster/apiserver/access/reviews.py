"""The create-only kinds that answer a question instead of storing an object: identity and rights of a user."""

from egpu_sim.cluster.apiserver.access.authorization import Authorizer, Wanted
from egpu_sim.cluster.apiserver.access.identities import Tokens
from egpu_sim.cluster.apiserver.calls import Call, User
from egpu_sim.cluster.apiserver.status import bad_request
from egpu_sim.cluster.trees import Json, as_list, as_object


class Reviews:
    def __init__(self, authorizer: Authorizer, tokens: Tokens) -> None:
        self._authorizer = authorizer
        self._tokens = tokens

    def answer(self, call: Call, body: Json) -> Json:
        """Return the body with its status filled in. Raises RequestRefused for a malformed question."""
        spec = as_object(body.get("spec"))
        match call.resource.plural:
            case "selfsubjectaccessreviews":
                status = self._may(call.user, spec)
            case "subjectaccessreviews":
                status = self._may(_user(spec), spec)
            case "selfsubjectrulesreviews":
                status = self._rules(call.user, str(spec.get("namespace") or ""))
            case "tokenreviews":
                user = self._tokens.of(str(spec.get("token") or ""))
                known = {"authenticated": True, "user": user.info()} if user is not None else {}
                status = known or {"authenticated": False, "user": {}, "error": "unknown token"}
                spec = {}  # the token is not sent back
            case _:
                status = {"userInfo": call.user.info()}
        return {
            "kind": call.resource.kind,
            "apiVersion": call.resource.api_version,
            "metadata": {"creationTimestamp": None, **as_object(body.get("metadata"))},
            "spec": spec,
            "status": status,
        }

    def _may(self, user: User, spec: Json) -> Json:
        wanted = _wanted(spec)
        allowed = self._authorizer.allows(user, wanted)
        return {"allowed": allowed, "reason": "" if allowed else f"no role lets {user.name} {wanted}"}

    def _rules(self, user: User, namespace: str) -> Json:
        rules = list(self._authorizer.rules(user, namespace))
        return {
            "resourceRules": [rule for rule in rules if as_list(rule.get("resources"))],
            "nonResourceRules": [rule for rule in rules if as_list(rule.get("nonResourceURLs"))],
            "incomplete": False,
        }


def _user(spec: Json) -> User:
    extra = tuple(
        (key, str(value)) for key, values in as_object(spec.get("extra")).items() for value in as_list(values)
    )
    return User(str(spec.get("user") or ""), tuple(map(str, as_list(spec.get("groups")))), extra)


def _wanted(spec: Json) -> Wanted:
    resource, path = as_object(spec.get("resourceAttributes")), as_object(spec.get("nonResourceAttributes"))
    if bool(resource) == bool(path):
        raise bad_request("spec: exactly one of resourceAttributes and nonResourceAttributes must be given")
    if path:
        return Wanted(str(path.get("verb") or ""), path=str(path.get("path") or ""))
    plural, subresource = str(resource.get("resource") or ""), resource.get("subresource")
    return Wanted(
        verb=str(resource.get("verb") or ""),
        group=str(resource.get("group") or ""),
        resource=f"{plural}/{subresource}" if subresource else plural,
        namespace=str(resource.get("namespace") or ""),
        name=str(resource.get("name") or ""),
    )
