"""The built-in kinds: one table, and their rules."""

import base64
import functools
import re
from dataclasses import replace
from typing import Any

from egpu_base.cel import grammar as cel
from egpu_sim.cluster.apiserver.access.kinds import access_kinds
from egpu_sim.cluster.apiserver.admission import policies
from egpu_sim.cluster.apiserver.admission.priority import PriorityClassRules
from egpu_sim.cluster.apiserver.admission.quota import QuotaRules
from egpu_sim.cluster.apiserver.kinds import models, pods, podspec, workloads
from egpu_sim.cluster.apiserver.kinds.devices import table as devices
from egpu_sim.cluster.apiserver.kinds.resources import METADATA_FIELDS, Registry, Resource, Rules, Subresource
from egpu_sim.cluster.apiserver.kinds.schema import Compiler, Schema
from egpu_sim.cluster.apiserver.nodes import metrics
from egpu_sim.cluster.apiserver.reading import absent, table, workload_columns
from egpu_sim.cluster.apiserver.status import Cause, forbidden_field, invalid, required
from egpu_sim.cluster.apiserver.writing import disruption
from egpu_sim.cluster.trees import Json, as_list, as_object, at, metadata, objects_at

_STATUS_VERBS = ("get", "patch", "update")


class PodRules(Rules):
    def defaults(self, obj: Json) -> None:
        pods.set_defaults(obj)

    def prepare_create(self, obj: Json) -> None:
        obj["status"] = {"phase": "Pending", "qosClass": pods.qos_class(as_object(obj.get("spec")))}
        pods.admit_tolerations(obj)

    def validate(self, obj: Json) -> list[Cause]:
        return pods.validate(obj)

    def validate_update(self, old: Json, new: Json) -> list[Cause]:
        return pods.validate_update(old, new)


class NodeRules(Rules):
    def defaults(self, obj: Json) -> None:
        obj.setdefault("spec", {})
        status = as_object(obj.setdefault("status", {}))
        if "capacity" in status:
            status.setdefault("allocatable", dict(as_object(status["capacity"])))
        for kind in ("capacity", "allocatable"):
            amounts = as_object(status.get(kind))
            amounts.update({name: podspec.canonical(value) for name, value in amounts.items()})

    def validate(self, obj: Json) -> list[Cause]:
        return self.validate_status(obj)

    def validate_status(self, obj: Json) -> list[Cause]:
        return [
            cause
            for kind in ("capacity", "allocatable")
            for name, value in as_object(at(obj, "status", kind)).items()
            for cause in podspec.validate_amount(name, value, f"status.{kind}[{name}]", f"status.{kind}")
            if name != "pods"  # a node counts them; a container cannot ask for them
        ]


class NamespaceRules(Rules):
    label_names = True

    def defaults(self, obj: Json) -> None:
        as_object(obj.setdefault("spec", {})).setdefault("finalizers", ["kubernetes"])
        as_object(obj.setdefault("status", {})).setdefault("phase", "Active")
        meta = metadata(obj)
        if name := meta.get("name"):
            labels = as_object(meta.get("labels"))
            meta["labels"] = {**labels, "kubernetes.io/metadata.name": name}

    def prepare_create(self, obj: Json) -> None:
        obj["status"] = {"phase": "Active"}


class SecretRules(Rules):
    def defaults(self, obj: Json) -> None:
        obj.setdefault("type", "Opaque")
        texts = as_object(obj.pop("stringData", None))
        if texts:
            encoded = {key: base64.b64encode(str(value).encode()).decode() for key, value in texts.items()}
            obj["data"] = {**as_object(obj.get("data")), **encoded}

    def validate(self, obj: Json) -> list[Cause]:
        return [
            invalid(f"data[{key}]", "<hidden>", "must be base64")
            for key, value in as_object(obj.get("data")).items()
            if not _is_base64(value)
        ]

    def validate_update(self, old: Json, new: Json) -> list[Cause]:
        causes = _immutable_when_said(old, new, ("data",))
        if old.get("type") != new.get("type"):
            causes.append(invalid("type", new.get("type"), "field is immutable"))
        return causes + self.validate(new)


class ConfigMapRules(Rules):
    def validate(self, obj: Json) -> list[Cause]:
        keys = [*as_object(obj.get("data")), *as_object(obj.get("binaryData"))]
        rule = "a valid config key must consist of alphanumeric characters, '-', '_' or '.'"
        return [invalid(f"data[{key}]", key, rule) for key in keys if not re.match(r"^[-._a-zA-Z0-9]+$", key)]

    def validate_update(self, old: Json, new: Json) -> list[Cause]:
        return _immutable_when_said(old, new, ("data", "binaryData")) + self.validate(new)


class WebhookRules(Rules):
    def defaults(self, obj: Json) -> None:
        for hook in objects_at(obj, "webhooks"):
            hook.setdefault("failurePolicy", "Fail")
            hook.setdefault("matchPolicy", "Equivalent")
            hook.setdefault("namespaceSelector", {})
            hook.setdefault("objectSelector", {})
            hook.setdefault("timeoutSeconds", 10)
            if obj.get("kind") == "MutatingWebhookConfiguration":
                hook.setdefault("reinvocationPolicy", "Never")
            for rule in objects_at(hook, "rules"):
                rule.setdefault("scope", "*")
            if service := as_object(at(hook, "clientConfig", "service")):
                service.setdefault("port", 443)

    def validate(self, obj: Json) -> list[Cause]:
        return [
            cause
            for index, hook in enumerate(objects_at(obj, "webhooks"))
            for cause in _validate_webhook(hook, f"webhooks[{index}]")
        ]


def _validate_webhook(hook: Json, path: str) -> list[Cause]:
    causes: list[Cause] = []
    if str(hook.get("name") or "").count(".") < 2:
        causes.append(
            invalid(
                f"{path}.name", hook.get("name"), "should be a domain with at least three segments separated by dots"
            )
        )
    for key in ("sideEffects", "admissionReviewVersions"):
        if not hook.get(key):
            causes.append(required(f"{path}.{key}"))
    if hook.get("sideEffects") not in (None, "None", "NoneOnDryRun"):
        causes.append(Cause("FieldValueNotSupported", f"{path}.sideEffects", "must be None or NoneOnDryRun"))
    if "v1" not in as_list(hook.get("admissionReviewVersions")):
        causes.append(
            invalid(f"{path}.admissionReviewVersions", "", "must include v1: this server supports no other version")
        )
    timeout = hook.get("timeoutSeconds")
    if not isinstance(timeout, int) or not 1 <= timeout <= 30:
        causes.append(invalid(f"{path}.timeoutSeconds", timeout, "the timeout value must be between 1 and 30 seconds"))
    client = as_object(hook.get("clientConfig"))
    if ("url" in client) == ("service" in client):
        causes.append(required(f"{path}.clientConfig", "exactly one of url or service is required"))
    elif "url" in client and not str(client["url"]).startswith("https://"):
        causes.append(invalid(f"{path}.clientConfig.url", client["url"], "'https' is the only allowed URL scheme"))
    for at_rule, rule in enumerate(objects_at(hook, "rules")):
        causes += [
            required(f"{path}.rules[{at_rule}].{key}")
            for key in ("operations", "apiGroups", "apiVersions", "resources")
            if not rule.get(key)
        ]
    for at_condition, condition in enumerate(objects_at(hook, "matchConditions")):
        try:
            cel.compiled(str(condition.get("expression") or ""))
        except cel.NotUnderstood as error:
            field = f"{path}.matchConditions[{at_condition}].expression"
            causes.append(invalid(field, condition.get("expression"), f"in the simulated API server: {error}"))
    return causes


class EventRules(Rules):
    free_names = True


class ServiceRules(Rules):
    label_names = True

    def defaults(self, obj: Json) -> None:
        spec = as_object(obj.setdefault("spec", {}))
        spec.setdefault("type", "ClusterIP")
        spec.setdefault("sessionAffinity", "None")
        for port in objects_at(spec, "ports"):
            port.setdefault("protocol", "TCP")
            port.setdefault("targetPort", port.get("port"))


def _immutable_when_said(old: Json, new: Json, fields: tuple[str, ...]) -> list[Cause]:
    if not old.get("immutable"):
        return []
    return [
        forbidden_field(name, "field is immutable when `immutable` is set")
        for name in (*fields, "immutable")
        if old.get(name) != new.get(name)
    ]


def _is_base64(value: Any) -> bool:
    try:
        base64.b64decode(str(value), validate=True)
    except ValueError:
        return False
    return True


# Event: one shelf, two groups that name the same things differently (core/v1 ↔ events.k8s.io/v1).
_EVENT_NAMES = {
    "involvedObject": "regarding",
    "message": "note",
    "reportingComponent": "reportingController",
    "source": "deprecatedSource",
    "firstTimestamp": "deprecatedFirstTimestamp",
    "lastTimestamp": "deprecatedLastTimestamp",
    "count": "deprecatedCount",
}
_EVENT_NAMES_BACK = {new: old for old, new in _EVENT_NAMES.items()}


def event_from_core(event: Json) -> Json:
    return {_EVENT_NAMES.get(key, key): value for key, value in event.items()} | {"apiVersion": "events.k8s.io/v1"}


def event_to_core(event: Json) -> Json:
    return {_EVENT_NAMES_BACK.get(key, key): value for key, value in event.items()} | {"apiVersion": "v1"}


_EVENT_FIELDS = {
    **METADATA_FIELDS,
    **{f"involvedObject.{name}": ("involvedObject", name)
       for name in ("kind", "namespace", "name", "uid", "apiVersion", "resourceVersion", "fieldPath")},
    "reason": ("reason",),
    "reportingComponent": ("reportingComponent",),
    "source": ("source", "component"),
    "type": ("type",),
}  # fmt: skip
_NEW_EVENT_FIELDS = {
    **METADATA_FIELDS,
    **{key.replace("involvedObject", "regarding"): path for key, path in _EVENT_FIELDS.items() if "involved" in key},
    "reason": ("reason",),
    "reportingController": ("reportingComponent",),
    "type": ("type",),
}
_POD_FIELDS = {
    **METADATA_FIELDS,
    "spec.nodeName": ("spec", "nodeName"),
    "spec.restartPolicy": ("spec", "restartPolicy"),
    "spec.schedulerName": ("spec", "schedulerName"),
    "spec.serviceAccountName": ("spec", "serviceAccountName"),
    "status.phase": ("status", "phase"),
    "status.podIP": ("status", "podIP"),
    "status.nominatedNodeName": ("status", "nominatedNodeName"),
}


def _core(plural: str, kind: str, *, namespaced: bool = True, **more: Any) -> Resource:
    return Resource("", "v1", plural, kind, namespaced, plural, kind.lower(), model=("core_v1", kind), **more)


def _status_of(kind: str) -> Subresource:
    return Subresource("status", kind, _STATUS_VERBS)


RESIZE = Subresource("resize", "Pod", _STATUS_VERBS)
BINDING = Subresource("binding", "Binding", ("create",))
EVICTION = Subresource("eviction", "Eviction", ("create",), "policy", "v1")
LOG = Subresource("log", "Pod", ("get",))
_POD_SUBRESOURCES = (
    Subresource("attach", "PodAttachOptions", ("create", "get")),
    BINDING,
    Subresource("ephemeralcontainers", "Pod", _STATUS_VERBS),
    EVICTION,
    Subresource("exec", "PodExecOptions", ("create", "get")),
    LOG,
    Subresource("portforward", "PodPortForwardOptions", ("create", "get")),
    RESIZE,
    _status_of("Pod"),
)
CREATE_ONLY = ("create",)


def _table() -> list[Resource]:
    return [
        _core("bindings", "Binding", verbs=CREATE_ONLY),
        _core("configmaps", "ConfigMap", short_names=("cm",), columns=table.CONFIG_MAPS, rules=ConfigMapRules()),
        _core("events", "Event", short_names=("ev",), columns=table.EVENTS, rules=EventRules(), fields=_EVENT_FIELDS),
        _core("namespaces", "Namespace", namespaced=False, short_names=("ns",), columns=table.NAMESPACES,
              rules=NamespaceRules(),
              verbs=("create", "delete", "get", "list", "patch", "update", "watch"),
              fields={**METADATA_FIELDS, "status.phase": ("status", "phase")},
              subresources=(_status_of("Namespace"),)),
        _core("nodes", "Node", namespaced=False, short_names=("no",), columns=table.NODES, rules=NodeRules(),
              fields={**METADATA_FIELDS, "spec.unschedulable": ("spec", "unschedulable")},
              subresources=(_status_of("Node"),)),
        _core("pods", "Pod", short_names=("po",), categories=("all",), columns=table.PODS, rules=PodRules(),
              fields=_POD_FIELDS, subresources=_POD_SUBRESOURCES, generations=True),
        _core("resourcequotas", "ResourceQuota", short_names=("quota",), columns=workload_columns.QUOTAS,
              rules=QuotaRules(), subresources=(_status_of("ResourceQuota"),)),
        _core("secrets", "Secret", columns=table.SECRETS, rules=SecretRules(),
              fields={**METADATA_FIELDS, "type": ("type",)}),
        _core("serviceaccounts", "ServiceAccount", short_names=("sa",), columns=table.SERVICE_ACCOUNTS),
        _core("services", "Service", short_names=("svc",), categories=("all",), columns=table.SERVICES,
              rules=ServiceRules(), subresources=(_status_of("Service"),)),
        Resource("events.k8s.io", "v1", "events", "Event", True, "events", "event", ("ev",), columns=table.EVENTS,
                 rules=EventRules(), fields=_NEW_EVENT_FIELDS, model=("events_v1", "Event"),
                 to_storage=event_to_core, from_storage=event_from_core),
        Resource("coordination.k8s.io", "v1", "leases", "Lease", True, "leases.coordination.k8s.io", "lease",
                 columns=table.LEASES, model=("coordination_v1", "Lease")),
        Resource("scheduling.k8s.io", "v1", "priorityclasses", "PriorityClass", False, "priorityclasses",
                 "priorityclass", ("pc",), columns=workload_columns.PRIORITY_CLASSES, rules=PriorityClassRules(),
                 model=("scheduling_v1", "PriorityClass"), generations=True),
        Resource("policy", "v1", "poddisruptionbudgets", "PodDisruptionBudget", True, disruption.SHELF,
                 "poddisruptionbudget", ("pdb",), columns=workload_columns.DISRUPTION_BUDGETS,
                 rules=disruption.PodDisruptionBudgetRules(), model=("policy_v1", "PodDisruptionBudget"),
                 subresources=(_status_of("PodDisruptionBudget"),), generations=True),
        *workloads.resources(),
        *devices.resources(),
        *(Resource("admissionregistration.k8s.io", "v1", kind.lower() + "s", kind, False,
                   kind.lower() + "s", kind.lower(), categories=("api-extensions",), columns=table.WEBHOOKS,
                   rules=WebhookRules(), model=("admissionregistration_v1", kind), generations=True)
          for kind in ("MutatingWebhookConfiguration", "ValidatingWebhookConfiguration")),
        Resource("admissionregistration.k8s.io", "v1", policies.POLICIES, "ValidatingAdmissionPolicy", False,
                 policies.POLICIES, "validatingadmissionpolicy", categories=("api-extensions",), generations=True,
                 rules=policies.PolicyRules(kind_of), model=("admissionregistration_v1", "ValidatingAdmissionPolicy")),
        Resource("admissionregistration.k8s.io", "v1", policies.BINDINGS, "ValidatingAdmissionPolicyBinding", False,
                 policies.BINDINGS, "validatingadmissionpolicybinding", categories=("api-extensions",),
                 generations=True, rules=policies.PolicyBindingRules(),
                 model=("admissionregistration_v1", "ValidatingAdmissionPolicyBinding")),
        *access_kinds(),
        *metrics.resources(),
        *absent.resources(),
    ]  # fmt: skip


@functools.cache
def _compiler() -> Compiler:
    """Return one for the models' definitions with types alone: the real server fills absent fields with zero values."""
    roots = [*(r.model for r in _table() if r.model is not None), *_EXTRA_MODELS]
    definitions = {
        name: {key: value for key, value in found.items() if key != "required"}
        for name, found in models.definitions_for(roots).items()
    }
    definitions[models.QUANTITY_NAME] = {"format": "quantity"}  # a number or a text
    # a CRD's schema is free-form here; `crd` compiles it
    schema_name = models.definition_name("apiextensions_v1", "JSONSchemaProps")
    definitions[schema_name] = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
    return Compiler(definitions)


_EXTRA_MODELS = [("apiextensions_v1", "CustomResourceDefinition"), ("meta_v1", "ObjectMeta")]


@functools.cache
def _compiled(model: tuple[str, str]) -> Schema:
    return _compiler().compile({"$ref": models.definition_name(*model)})


def kind_of(group: str, version: str, plural: str) -> tuple[str, Schema] | None:
    """Return the kind and schema of a built-in resource; None for others, and for subresources."""
    wanted = (group, version, plural)
    found = next((one for one in _table() if one.model and (one.group, one.version, one.plural) == wanted), None)
    return None if found is None or found.model is None else (found.kind, _compiled(found.model))


def metadata_schema() -> Schema:
    """Return the schema of `metadata`, for kinds without a model."""
    return _compiled(("meta_v1", "ObjectMeta"))


def _schemas(resources: list[Resource]) -> list[Resource]:
    """Give each built-in the compiled schema of its model, to find unknown fields and wrong types."""
    return [replace(r, schema=_compiled(r.model)) if r.model is not None else r for r in resources]


def register(registry: Registry, definition_rules: Rules) -> None:
    """Put every built-in kind into the registry. `definition_rules` are those of CustomResourceDefinitions."""
    registry.add_group("", ["v1"])
    definitions = Resource(
        "apiextensions.k8s.io", "v1", "customresourcedefinitions", "CustomResourceDefinition", False,
        "customresourcedefinitions", "customresourcedefinition", ("crd", "crds"), ("api-extensions",),
        columns=table.DEFINITIONS, rules=definition_rules, model=("apiextensions_v1", "CustomResourceDefinition"),
        subresources=(_status_of("CustomResourceDefinition"),), generations=True,
    )  # fmt: skip
    for resource in _schemas([*_table(), definitions]):
        registry.add(resource)
