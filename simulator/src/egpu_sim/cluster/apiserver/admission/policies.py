"""ValidatingAdmissionPolicies: rules about writes, in CEL, that the server evaluates itself.

Known differences: no parameters (a policy with parameters is refused), and no `messageExpression`.
"""

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from egpu_base.cel import grammar as cel
from egpu_base.errors import RequestRefused
from egpu_sim.cluster.apiserver.access.authorization import Authorizer
from egpu_sim.cluster.apiserver.admission import expressions, matching, type_checking
from egpu_sim.cluster.apiserver.calls import Call, Write
from egpu_sim.cluster.apiserver.kinds.resources import Rules
from egpu_sim.cluster.apiserver.status import Cause, forbidden_field, invalid, refused, required
from egpu_sim.cluster.apiserver.storage.store import Store
from egpu_sim.cluster.trees import Json, as_list, as_object, at, name_of, objects_at

POLICIES = "validatingadmissionpolicies"
BINDINGS = "validatingadmissionpolicybindings"
_CODES = {"Unauthorized": 401, "Forbidden": 403, "RequestEntityTooLarge": 413}
"""Codes by a validation's reason; the default, `Invalid`, is 422."""


class Policies:
    """All policies that have a binding, from the store."""

    def __init__(self, store: Store, authorizer: Authorizer) -> None:
        self._store = store
        self._authorizer = authorizer
        self._bound = matching.Kept(store, (POLICIES, BINDINGS), lambda: list(_bound(store)))

    def concern(self, call: Call, operation: str) -> bool:
        """Return whether the rules of any bound policy name such writes."""
        return any(one.scope.names(call, operation) for one in self._bound.now())

    def validate(self, write: Write, request: Json) -> None:
        """Evaluate the policies. Raises RequestRefused where one denies; warns where it only warns."""
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
        """Return (message, reason) of each validation that is false, and of one that fails, if the policy's failures
        deny."""
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
    """A policy and one of its bindings, and the writes that both match."""

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
    """The `variables` of a policy, each evaluated at its first use."""

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
    """`kind_of`: the kinds whose fields are known, for `status.typeChecking`, which the server writes here itself."""

    def __init__(self, kind_of: type_checking.KindOf) -> None:
        self._kind_of = kind_of

    def prepare_create(self, obj: Json) -> None:
        try:
            warnings = type_checking.expression_warnings(as_object(obj.get("spec")), self._kind_of)
        except cel.NotUnderstood:
            return  # refused below, by its field
        obj["status"] = {"typeChecking": {"expressionWarnings": warnings} if warnings else {}}

    def prepare_update(self, old: Json, new: Json) -> None:
        self.prepare_create(new)

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
            causes.append(forbidden_field("spec.paramKind", "the simulated API server does not support parameters"))
        for field in ("matchConditions", "variables", "validations"):
            for index, one in enumerate(objects_at(spec, field)):
                causes += _validate_expression(one, f"spec.{field}[{index}]")
        return causes


class PolicyBindingRules(Rules):
    def validate(self, obj: Json) -> list[Cause]:
        spec = as_object(obj.get("spec"))
        return [required(f"spec.{key}") for key in ("policyName", "validationActions") if not spec.get(key)]


def _validate_expression(one: Json, path: str) -> list[Cause]:
    if "messageExpression" in one:
        return [forbidden_field(f"{path}.messageExpression", "the simulated API server supports only `message`")]
    try:
        cel.compiled_value(str(one.get("expression") or ""), cel.POLICY_VARIABLES)
    except cel.NotUnderstood as error:
        text = f"in the simulated API server: {error}"
        return [invalid(f"{path}.expression", one.get("expression"), text)]
    return []
