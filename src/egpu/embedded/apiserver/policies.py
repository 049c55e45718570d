"""ValidatingAdmissionPolicies: rules about writes, in CEL, that the server evaluates by itself.

Known differences: no parameters (a policy that wants any is refused), and no `messageExpression`.
"""

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from egpu.embedded.apiserver import cel, expressions, matching
from egpu.embedded.apiserver.authorization import Authorizer
from egpu.embedded.apiserver.calls import Call, Write
from egpu.embedded.apiserver.objects import Json, as_list, as_object, at, name_of, objects_at
from egpu.embedded.apiserver.resources import Rules
from egpu.embedded.apiserver.status import Cause, forbidden_field, invalid, refused, required
from egpu.embedded.apiserver.store import Store
from egpu.errors import RequestRefused

POLICIES = "validatingadmissionpolicies"
BINDINGS = "validatingadmissionpolicybindings"
_CODES = {"Unauthorized": 401, "Forbidden": 403, "RequestEntityTooLarge": 413}
"""Of the reasons that a validation may give; `Invalid`, which it has without one, is 422."""


class Policies:
    """Every policy that a binding puts into force, from the store."""

    def __init__(self, store: Store, authorizer: Authorizer) -> None:
        self._store = store
        self._authorizer = authorizer
        self._bound = matching.Kept(store, (POLICIES, BINDINGS), lambda: list(_bound(store)))

    def concern(self, call: Call, operation: str) -> bool:
        """Whether the rules of any that is bound name such writes."""
        return any(one.scope.names(call, operation) for one in self._bound.now())

    def validate(self, write: Write, request: Json) -> None:
        """Raises RequestRefused where a policy denies; warns where it only warns."""
        for policy, binding, scope, narrower in self._bound.now():
            if not scope.has(write, self._store) or (narrower and not narrower.has(write, self._store)):
                continue
            for message, reason in self._broken(policy, write, request):
                text = (
                    f"ValidatingAdmissionPolicy '{name_of(policy)}' with binding '{name_of(binding)}'"
                    f" denied request: {message}"
                )
                actions = as_list(at(binding, "spec", "validationActions"))
                if "Deny" in actions:
                    raise _denied(write.call, text, reason)
                if "Warn" in actions:
                    write.call.warnings.append(f"Validation failed for {text}")

    def _broken(self, policy: Json, write: Write, request: Json) -> Iterator[tuple[str, str]]:
        """(message, reason) of each validation that does not hold; of one that cannot be told, if the policy fails."""
        spec = as_object(policy.get("spec"))
        fails = spec.get("failurePolicy") != "Ignore"
        namespace = self._store.get("namespaces", ("", write.call.namespace))
        scope = expressions.scope(write, request, self._authorizer)
        scope["namespaceObject"] = None if namespace is None else namespace.obj
        scope["variables"] = _Variables({str(one["name"]): one for one in objects_at(spec, "variables")}, scope)
        try:
            if not expressions.all_hold(objects_at(spec, "matchConditions"), scope, cel.POLICY_VARIABLES):
                return
        except cel.EvaluationError as error:
            if fails:
                yield f"a match condition cannot be evaluated: {error}", ""
            return
        for validation in objects_at(spec, "validations"):
            expression = str(validation.get("expression"))
            try:
                if cel.compiled(expression, cel.POLICY_VARIABLES)(scope):
                    continue
            except cel.EvaluationError as error:
                if fails:
                    yield f"expression '{expression}' resulted in error: {error}", ""
                continue
            yield (
                str(validation.get("message") or f"failed expression: {expression}"),
                str(validation.get("reason") or ""),
            )


class _Bound(NamedTuple):
    """A policy and a binding of it, what it is about, and to what of that the binding keeps it."""

    policy: Json
    binding: Json
    scope: matching.Scope
    narrower: matching.Scope | None


def _bound(store: Store) -> Iterator[_Bound]:
    for _, item in sorted(store.shelf(BINDINGS).items.items()):
        policy = store.get(POLICIES, ("", str(at(item.obj, "spec", "policyName"))))
        if policy is not None:
            constraints, only = (
                as_object(at(policy.obj, "spec", "matchConstraints")),
                at(item.obj, "spec", "matchResources"),
            )
            narrower = None if only is None else {"resourceRules": [_ANY], **as_object(only)}
            yield _Bound(
                policy.obj,
                item.obj,
                matching.Scope(constraints, rules="resourceRules"),
                None if narrower is None else matching.Scope(narrower, rules="resourceRules"),
            )


_ANY: Json = {"operations": ["*"], "apiGroups": ["*"], "apiVersions": ["*"], "resources": ["*/*"]}


class _Variables(dict[str, Any]):
    """`variables` of a policy: each evaluated when it is first asked for."""

    def __init__(self, expressions: Mapping[str, Json], scope: cel.Scope) -> None:
        super().__init__()
        self._expressions = expressions
        self._scope = scope

    def __contains__(self, name: object) -> bool:
        return name in self._expressions

    def __missing__(self, name: str) -> Any:
        expression = str(self._expressions[name].get("expression"))
        value = self[name] = cel.compiled_value(expression, cel.POLICY_VARIABLES)(self._scope)
        return value


def _denied(call: Call, message: str, reason: str) -> RequestRefused:
    resource = call.resource
    of = f"{resource.plural}.{resource.group}" if resource.group else resource.plural
    reason = reason or "Invalid"
    return refused(_CODES.get(reason, 422), reason, f'{of} "{call.name}" is forbidden: {message}')


class PolicyRules(Rules):
    """ValidatingAdmissionPolicy."""

    def defaults(self, obj: Json) -> None:
        spec = as_object(obj.setdefault("spec", {}))
        spec.setdefault("failurePolicy", "Fail")
        constraints = as_object(spec.get("matchConstraints"))
        constraints.setdefault("matchPolicy", "Equivalent")
        constraints.setdefault("namespaceSelector", {})
        constraints.setdefault("objectSelector", {})
        for rule in objects_at(constraints, "resourceRules"):
            rule.setdefault("scope", "*")

    def validate(self, obj: Json) -> list[Cause]:
        spec = as_object(obj.get("spec"))
        causes: list[Cause] = []
        if not objects_at(spec, "matchConstraints", "resourceRules"):
            causes.append(required("spec.matchConstraints.resourceRules"))
        if not objects_at(spec, "validations"):
            causes.append(required("spec.validations"))
        if "paramKind" in spec:
            causes.append(forbidden_field("spec.paramKind", "the embedded API server knows no parameters"))
        for field in ("matchConditions", "variables", "validations"):
            for index, one in enumerate(objects_at(spec, field)):
                causes += _validate_expression(one, f"spec.{field}[{index}]")
        return causes


class PolicyBindingRules(Rules):
    """ValidatingAdmissionPolicyBinding."""

    def validate(self, obj: Json) -> list[Cause]:
        spec = as_object(obj.get("spec"))
        return [required(f"spec.{key}") for key in ("policyName", "validationActions") if not spec.get(key)]


def _validate_expression(one: Json, path: str) -> list[Cause]:
    if "messageExpression" in one:
        return [forbidden_field(f"{path}.messageExpression", "the embedded API server knows `message` only")]
    try:
        cel.compiled_value(str(one.get("expression") or ""), cel.POLICY_VARIABLES)
    except cel.NotUnderstood as error:
        text = f"the embedded API server evaluates less: {error}"
        return [invalid(f"{path}.expression", one.get("expression"), text)]
    return []
