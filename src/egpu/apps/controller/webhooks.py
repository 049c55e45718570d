"""The two webhook configurations, as values: scripts/generate_webhooks.py writes them into deploy/, and the controller
puts the authority of the webhook's certificate into what is installed.

`failurePolicy: Fail`, because a GPU pod that nobody normalised must not start. That can never block a cluster:
`matchConditions` let the API server send only pods that speak of our resources or annotations, and Kubernetes' own
namespaces are excluded.
"""

import json
from collections.abc import Sequence

from msgspec.structs import replace

from egpu.api import names
from egpu.api.foreign import FOREIGN
from egpu.api.kubernetes import LabelSelector, LabelSelectorRequirement
from egpu.api.objects import ObjectMeta
from egpu.api.vocabularies import POD_RESOURCES, VOCABULARIES
from egpu.api.webhooks import (
    MatchCondition,
    MutatingWebhookConfiguration,
    RuleWithOperations,
    ServiceReference,
    ValidatingWebhookConfiguration,
    Webhook,
    WebhookClientConfig,
)
from egpu.core.admission import FIXED_ANNOTATIONS
from egpu.errors import InvalidInput

NAME = "elastic-gpu"
SERVICE = "elastic-gpu-webhook"
NAMESPACE = "elastic-gpu-system"
EXCLUDED = ("kube-node-lease", "kube-public", "kube-system")
TIMEOUT_SECONDS = 10
PLAIN_TIMEOUT_SECONDS = 2
"""How long a pod that wants nothing of us waits at most."""
ALL_DEVICES = f"{names.GROUP}/all-devices"
"""Label of namespaces whose pods may see all cards of their node, as in `deploy/admission/visible-devices.yaml`."""
MAY_GIVE_OUT = f'authorizer.group("{names.GROUP}").resource("allocations").check("write").allowed()'
"""Whether whoever asks has the right that extender and controller have, as in `deploy/admission/allocations.yaml`."""
LABELS = {"app.kubernetes.io/part-of": "elastic-gpu"}
MANAGED = {**LABELS, "app.kubernetes.io/managed-by": "elastic-gpu-controller"}


def hosts(service: str, namespace: str) -> list[str]:
    """The names that the serving certificate must carry, of a service NAME[:PORT]. Raises InvalidInput."""
    name, _, port = service.partition(":")
    if not name or (port and not port.isdigit()):
        raise InvalidInput("webhook-service", f"{service!r} is not NAME or NAME:PORT")
    return [f"{name}.{namespace}.svc", f"{name}.{namespace}.svc.cluster.local", f"{name}.{namespace}"]


def mutating() -> MutatingWebhookConfiguration:
    pods = _of_pods("mutate.pods", "/mutate", operations=["CREATE"], when=_asking())
    return MutatingWebhookConfiguration(
        metadata=ObjectMeta(name=NAME, labels=LABELS),
        webhooks=[replace(pods, reinvocation_policy="IfNeeded"), _plain_pods()],
    )


def _plain_pods() -> Webhook:
    """Pods that ask for nothing, but whose environment may hold, out of sight, what shows them cards. They go on
    without us when we do not answer."""
    hidden = MatchCondition(name="hidden-environment", expression=has_hidden_environment())
    others = MatchCondition(name="asks-for-no-gpu", expression=f"!({asks_for_a_gpu()})")
    hook = _of_pods("mutate.plain-pods", "/mutate", operations=["CREATE"], when=hidden)
    exempt = LabelSelectorRequirement(key=ALL_DEVICES, operator="NotIn", values=["true"])
    assert hook.namespace_selector is not None
    selector = LabelSelector(match_expressions=[*(hook.namespace_selector.match_expressions or []), exempt])
    return replace(
        hook,
        match_conditions=[hidden, others],
        namespace_selector=selector,
        failure_policy="Ignore",
        timeout_seconds=PLAIN_TIMEOUT_SECONDS,
    )


def validating() -> ValidatingWebhookConfiguration:
    """Bindings of pods without a GPU never come here, so the webhook cannot hold them up; nor do those of the extender,
    which the API server knows by its right, and each of which would wait for us."""
    changed = ["CREATE", "UPDATE"]
    ours = RuleWithOperations(
        operations=changed,
        api_groups=[names.GROUP],
        api_versions=list(names.SERVED_VERSIONS),
        resources=["elasticgpuclaims", "elasticgpuclasses", "elasticgpus"],
        scope="*",
    )
    when = MatchCondition(name="gives-out-cards", expression=gives_out_cards())
    unless = MatchCondition(name="may-not-give-them-out", expression=f"!{MAY_GIVE_OUT}")
    where = ("pods/binding", "bindings")
    bindings = _of_pods("validate.bindings", "/validate", operations=["CREATE"], resources=where, when=when)
    return ValidatingWebhookConfiguration(
        metadata=ObjectMeta(name=NAME, labels=LABELS),
        webhooks=[
            _of_pods("validate.pods", "/validate", operations=changed, when=_asking()),
            _webhook("validate.objects", "/validate", ours),
            replace(bindings, match_conditions=[when, unless]),
        ],
    )


def _of_pods(
    name: str, path: str, *, operations: list[str], when: MatchCondition, resources: Sequence[str] = ("pods",)
) -> Webhook:
    """Of what is outside of Kubernetes' own namespaces, and `when` is true of it."""
    rule = RuleWithOperations(
        operations=operations, api_groups=[""], api_versions=["v1"], resources=list(resources), scope="Namespaced"
    )
    outside = LabelSelectorRequirement(key="kubernetes.io/metadata.name", operator="NotIn", values=list(EXCLUDED))
    selector = LabelSelector(match_expressions=[outside])
    return replace(_webhook(name, path, rule), match_conditions=[when], namespace_selector=selector)


def _webhook(name: str, path: str, rule: RuleWithOperations) -> Webhook:
    service = ServiceReference(namespace=NAMESPACE, name=SERVICE, path=path, port=443)
    return Webhook(
        name=f"{name}.elasticgpu.io",
        client_config=WebhookClientConfig(service=service),
        rules=[rule],
        side_effects="None",
        admission_review_versions=["v1"],
        failure_policy="Fail",
        match_policy="Equivalent",
        timeout_seconds=TIMEOUT_SECONDS,
    )


def _asking() -> MatchCondition:
    return MatchCondition(name="asks-for-a-gpu", expression=asks_for_a_gpu())


def asks_for_a_gpu() -> str:
    """The CEL expression that is true for pods that the webhook must see, and for no others."""
    nodes_only = [vocabulary.node_only for vocabulary in VOCABULARIES if vocabulary.node_only]
    beginnings = [one.name for one in FOREIGN if one.prefix]
    shortest = [one for one in beginnings if not any(one != other and one.startswith(other) for other in beginnings)]
    whole = [*POD_RESOURCES, *nodes_only, names.SLOT, *(one.name for one in FOREIGN if not one.prefix)]
    resources = json.dumps([name for name in whole if not name.startswith(tuple(shortest))])
    begins = " || ".join(f"k.startsWith({json.dumps(one)})" for one in shortest)

    def any_container(field: str) -> str:
        def names_one(kind: str) -> str:
            return f"has(c.resources.{kind}) && c.resources.{kind}.exists(k, k in {resources} || {begins})"

        asks = f"has(c.resources) && (({names_one('limits')}) || ({names_one('requests')}))"
        return f"(has(object.spec.{field}) && object.spec.{field}.exists(c, {asks}))"

    annotated = _annotated(f"{names.GROUP}/", *names.CLAIM_PREFIXES)
    return " || ".join([any_container("containers"), any_container("initContainers"), f"({annotated})"])


def has_hidden_environment() -> str:
    """The CEL expression that is true for pods with a container that takes variables from elsewhere (`envFrom`)."""

    def any_container(field: str) -> str:
        return f"(has(object.spec.{field}) && object.spec.{field}.exists(c, has(c.envFrom)))"

    return f"{any_container('containers')} || {any_container('initContainers')}"


def gives_out_cards() -> str:
    """The CEL expression that is true for Bindings that write annotations only the scheduler may write."""
    return _annotated(*FIXED_ANNOTATIONS)


def _annotated(*prefixes: str) -> str:
    starts = " || ".join(f"k.startsWith({json.dumps(prefix)})" for prefix in dict.fromkeys(prefixes))
    return f"has(object.metadata.annotations) && object.metadata.annotations.exists(k, {starts})"
