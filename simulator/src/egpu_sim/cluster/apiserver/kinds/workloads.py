"""The kinds whose controllers make pods (apps/v1, batch/v1): defaults and validation. Their controllers are
in `egpu_sim.cluster.controllers`."""

from dataclasses import replace
from typing import Any, Final

from egpu_sim.cluster.apiserver.kinds import podspec
from egpu_sim.cluster.apiserver.kinds.resources import Resource, Rules, ScalePaths, Subresource
from egpu_sim.cluster.apiserver.reading import workload_columns
from egpu_sim.cluster.apiserver.status import Cause, forbidden_field, invalid, required, unsupported
from egpu_sim.cluster.apiserver.storage.selectors import object_selector
from egpu_sim.cluster.trees import Json, as_object, at, labels_of, metadata, name_of, objects_at

_STATUS_VERBS: Final = ("get", "patch", "update")
_STATEFUL_SET_MAY_CHANGE: Final = frozenset(
    {"replicas", "ordinals", "template", "updateStrategy", "revisionHistoryLimit", "minReadySeconds",
     "persistentVolumeClaimRetentionPolicy"}
)  # fmt: skip
_NO_POLICIES: Final = ("podFailurePolicy", "successPolicy", "backoffLimitPerIndex", "maxFailedIndexes")
"""Fields of a Job that the simulated controller does not have."""


class WorkloadRules(Rules):
    """Their common rules: a selector, and a template of pods that it selects."""

    restart_policies = ("Always",)

    def defaults(self, obj: Json) -> None:
        spec = as_object(obj.setdefault("spec", {}))
        self.default_spec(spec)
        if template := as_object(at(spec, "template", "spec")):
            podspec.set_defaults(template)

    def default_spec(self, spec: Json) -> None:
        """Fill in the kind's own fields."""

    def prepare_create(self, obj: Json) -> None:
        obj["status"] = {}

    def validate(self, obj: Json) -> list[Cause]:
        spec = as_object(obj.get("spec"))
        causes = _not_negative(spec, ("replicas", "minReadySeconds", "revisionHistoryLimit"))
        causes += self.validate_spec(spec) + _selector_causes(str(obj.get("kind")), spec)
        template = as_object(at(spec, "template", "spec"))
        path = "spec.template.spec"
        causes += podspec.validate(template, path)
        policy = template.get("restartPolicy")
        if policy not in self.restart_policies and policy in ("Always", "OnFailure", "Never"):
            causes.append(unsupported(f"{path}.restartPolicy", policy, list(self.restart_policies)))
        return causes

    def validate_spec(self, spec: Json) -> list[Cause]:
        return []

    def validate_update(self, old: Json, new: Json) -> list[Cause]:
        return self.validate(new) + _unchanged(old, new, ("selector",))


def _not_negative(spec: Json, fields: tuple[str, ...]) -> list[Cause]:
    return [
        invalid(f"spec.{field}", value, "must be greater than or equal to 0")
        for field in fields
        if isinstance(value := spec.get(field), int) and value < 0
    ]


def _unchanged(old: Json, new: Json, fields: tuple[str, ...]) -> list[Cause]:
    return [
        invalid(f"spec.{field}", at(new, "spec", field), "field is immutable")
        for field in fields
        if at(old, "spec", field) != at(new, "spec", field)
    ]


def _selector_causes(kind: str, spec: Json) -> list[Cause]:
    selector = as_object(spec.get("selector"))
    if not selector:
        return [required("spec.selector")] if spec.get("selector") is None else [
            invalid("spec.selector", selector, f"empty selector is invalid for {kind[:1].lower()}{kind[1:]}")
        ]  # fmt: skip
    try:
        selects = object_selector(selector)
    except ValueError as error:
        return [invalid("spec.selector", selector, str(error))]
    labels = labels_of(as_object(spec.get("template")))
    if selects is None or selects(labels):
        return []
    return [invalid("spec.template.metadata.labels", dict(labels), "`selector` does not match template `labels`")]


class DeploymentRules(WorkloadRules):
    def default_spec(self, spec: Json) -> None:
        spec.setdefault("replicas", 1)
        spec.setdefault("revisionHistoryLimit", 10)
        spec.setdefault("progressDeadlineSeconds", 600)
        strategy = as_object(spec.setdefault("strategy", {}))
        strategy.setdefault("type", "RollingUpdate")
        if strategy["type"] == "RollingUpdate":
            rolling = as_object(strategy.setdefault("rollingUpdate", {}))
            rolling.setdefault("maxUnavailable", "25%")
            rolling.setdefault("maxSurge", "25%")

    def validate_spec(self, spec: Json) -> list[Cause]:
        strategy = as_object(spec.get("strategy"))
        kind, path = strategy.get("type"), "spec.strategy"
        if kind not in ("Recreate", "RollingUpdate"):
            return [unsupported(f"{path}.type", kind, ["Recreate", "RollingUpdate"])]
        if kind == "Recreate" and strategy.get("rollingUpdate") is not None:
            message = "may not be specified when strategy `type` is 'Recreate'"
            return [forbidden_field(f"{path}.rollingUpdate", message)]
        return _rolling(as_object(strategy.get("rollingUpdate")), f"{path}.rollingUpdate")


def _rolling(rolling: Json, path: str) -> list[Cause]:
    causes: list[Cause] = []
    for field in ("maxUnavailable", "maxSurge"):
        value = rolling.get(field)
        if isinstance(value, str) and not value.removesuffix("%").isdecimal():
            message = "a valid percent string must be a numeric string followed by an ending '%'"
            causes.append(invalid(f"{path}.{field}", value, message))
        elif isinstance(value, int) and value < 0:
            causes.append(invalid(f"{path}.{field}", value, "must be greater than or equal to 0"))
    if rolling and all(str(rolling.get(field, 0)) in ("0", "0%") for field in ("maxUnavailable", "maxSurge")):
        causes.append(invalid(f"{path}.maxUnavailable", 0, "may not be 0 when `maxSurge` is 0"))
    return causes


class ReplicaSetRules(WorkloadRules):
    def default_spec(self, spec: Json) -> None:
        spec.setdefault("replicas", 1)


class DaemonSetRules(WorkloadRules):
    def default_spec(self, spec: Json) -> None:
        spec.setdefault("revisionHistoryLimit", 10)
        strategy = as_object(spec.setdefault("updateStrategy", {}))
        strategy.setdefault("type", "RollingUpdate")
        if strategy["type"] == "RollingUpdate":
            rolling = as_object(strategy.setdefault("rollingUpdate", {}))
            rolling.setdefault("maxUnavailable", 1)
            rolling.setdefault("maxSurge", 0)

    def validate_spec(self, spec: Json) -> list[Cause]:
        strategy = as_object(spec.get("updateStrategy"))
        if strategy.get("type") not in ("RollingUpdate", "OnDelete"):
            return [unsupported("spec.updateStrategy.type", strategy.get("type"), ["RollingUpdate", "OnDelete"])]
        return _rolling(as_object(strategy.get("rollingUpdate")), "spec.updateStrategy.rollingUpdate")


class StatefulSetRules(WorkloadRules):
    def default_spec(self, spec: Json) -> None:
        spec.setdefault("replicas", 1)
        spec.setdefault("revisionHistoryLimit", 10)
        spec.setdefault("podManagementPolicy", "OrderedReady")
        strategy = as_object(spec.setdefault("updateStrategy", {}))
        strategy.setdefault("type", "RollingUpdate")
        if strategy["type"] == "RollingUpdate":
            as_object(strategy.setdefault("rollingUpdate", {})).setdefault("partition", 0)
        keep = {"whenDeleted": "Retain", "whenScaled": "Retain"}
        spec.setdefault("persistentVolumeClaimRetentionPolicy", keep)

    def validate_spec(self, spec: Json) -> list[Cause]:
        if objects_at(spec, "volumeClaimTemplates"):
            return [forbidden_field("spec.volumeClaimTemplates", "this server does not support PersistentVolumeClaims")]
        return podspec.choice(spec, "spec.podManagementPolicy", ["OrderedReady", "Parallel"])

    def validate_update(self, old: Json, new: Json) -> list[Cause]:
        before, after = as_object(old.get("spec")), as_object(new.get("spec"))
        fixed = {key for key in {*before, *after} - _STATEFUL_SET_MAY_CHANGE if before.get(key) != after.get(key)}
        if not fixed:
            return self.validate(new)
        message = (
            "updates to statefulset spec for fields other than 'replicas', 'ordinals', 'template', 'updateStrategy', "
            "'revisionHistoryLimit', 'persistentVolumeClaimRetentionPolicy' and 'minReadySeconds' are forbidden"
        )
        return [*self.validate(new), forbidden_field("spec", message)]


class JobRules(WorkloadRules):
    restart_policies = ("OnFailure", "Never")

    def default_spec(self, spec: Json) -> None:
        if spec.get("completions") is None and spec.get("parallelism") is None:
            spec["completions"] = 1
        spec.setdefault("parallelism", 1)
        spec.setdefault("backoffLimit", 6)
        spec.setdefault("completionMode", "NonIndexed")
        spec.setdefault("suspend", False)
        spec.setdefault("manualSelector", False)
        spec.setdefault("podReplacementPolicy", "TerminatingOrFailed")

    def prepare_create(self, obj: Json) -> None:
        """Set a job's selector by its own uid, so that two jobs of one name never share pods."""
        obj["status"] = {}
        spec = as_object(obj["spec"])
        if spec.get("manualSelector"):
            return
        uid, name = str(metadata(obj)["uid"]), name_of(obj)
        template = as_object(spec.setdefault("template", {}))
        mine = {"batch.kubernetes.io/controller-uid": uid, "batch.kubernetes.io/job-name": name,
                "controller-uid": uid, "job-name": name}  # fmt: skip
        metadata(template)["labels"] = {**labels_of(template), **mine}
        spec["selector"] = {"matchLabels": {"batch.kubernetes.io/controller-uid": uid}}

    def validate_spec(self, spec: Json) -> list[Cause]:
        fields = ("completions", "parallelism", "backoffLimit", "activeDeadlineSeconds", "ttlSecondsAfterFinished")
        causes = _not_negative(spec, fields)
        causes += podspec.choice(spec, "spec.completionMode", ["Indexed", "NonIndexed"])
        if spec.get("completionMode") == "Indexed" and spec.get("completions") is None:
            causes.append(required("spec.completions", "when completion mode is Indexed"))
        message = "this server does not support it: its Jobs have completions, indexes and a backoff limit"
        unknown = [name for name in _NO_POLICIES if spec.get(name) is not None]
        return [*causes, *(forbidden_field(f"spec.{name}", message) for name in unknown)]

    def validate(self, obj: Json) -> list[Cause]:
        path = "spec.template.spec.restartPolicy"
        causes = super().validate(obj)
        needed = required(path, 'valid values: "OnFailure", "Never"')
        return [needed if cause.field == path else cause for cause in causes]

    def validate_update(self, old: Json, new: Json) -> list[Cause]:
        fixed = ("selector", "completionMode", "template")
        if at(new, "spec", "completionMode") != "Indexed":
            fixed = ("completions", *fixed)
        if at(old, "spec", "suspend") and not at(old, "status", "startTime"):
            fixed = tuple(field for field in fixed if field != "template")
        return self.validate(new) + _unchanged(old, new, fixed)


_SCALE: Final = Subresource("scale", "Scale", _STATUS_VERBS, "autoscaling", "v1")
_SCALE_PATHS: Final = ScalePaths(("spec", "replicas"), ("status", "replicas"), ("spec", "selector"))


def resources() -> list[Resource]:
    apps: list[tuple[str, str, Rules, Any, bool]] = [
        ("Deployment", "deploy", DeploymentRules(), workload_columns.DEPLOYMENTS, True),
        ("ReplicaSet", "rs", ReplicaSetRules(), workload_columns.REPLICA_SETS, True),
        ("DaemonSet", "ds", DaemonSetRules(), workload_columns.DAEMON_SETS, False),
        ("StatefulSet", "sts", StatefulSetRules(), workload_columns.STATEFUL_SETS, True),
    ]
    found = [
        _resource("apps", kind, short, rules, columns, scaled=scaled) for kind, short, rules, columns, scaled in apps
    ]
    job = _resource("batch", "Job", "", JobRules(), workload_columns.JOBS, scaled=False)
    fields = {**job.fields, "status.successful": ("status", "succeeded")}
    return [*found, replace(job, fields=fields)]


def _resource(group: str, kind: str, short: str, rules: Rules, columns: Any, *, scaled: bool) -> Resource:
    plural = f"{kind.lower()}s"
    status = Subresource("status", kind, _STATUS_VERBS)
    return Resource(
        group, "v1", plural, kind, True, f"{plural}.{group}", kind.lower(), tuple(filter(None, (short,))), ("all",),
        columns=columns, rules=rules, model=(f"{group}_v1", kind), generations=True,
        subresources=(_SCALE, status) if scaled else (status,), scale=_SCALE_PATHS if scaled else None,
    )  # fmt: skip
