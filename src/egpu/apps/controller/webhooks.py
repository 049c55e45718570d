"""The two webhook configurations, as values: scripts/generate_webhooks.py writes them into deploy/, and the controller
writes the authority of the webhook's certificate into the installed ones.

`failurePolicy: Fail`, because a GPU pod without a normalised demand must not start. This cannot block a cluster:
`matchConditions` make the API server send only pods with our resources or annotations, and Kubernetes' own namespaces
are excluded."""

import json
from collections.abc import Sequence

from msgspec.structs import replace

from egpu.api import names
from egpu.api.foreign import FOREIGN, FRACTIONS
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
from egpu_base.api.devices import GROUP, VERSION
from egpu_base.api.kubernetes import LabelSelector, LabelSelectorRequirement
from egpu_base.api.objects import ObjectMeta
from egpu_base.errors import InvalidInput

NAME = "elastic-gpu"
SERVICE = "elastic-gpu-webhook"
NAMESPACE = "elastic-gpu-system"
EXCLUDED = ("kube-node-lease", "kube-public", "kube-system")
TIMEOUT_SECONDS = 10
PLAIN_TIMEOUT_SECONDS = 2
"""Longest delay of a pod that does not use Elastic GPU."""
ALL_DEVICES = f"{names.GROUP}/all-devices"
"""The label of namespaces whose pods may see all cards of their node, as in `deploy/admission/visible-devices.yaml`."""
MAY_GIVE_OUT = f'authorizer.group("{names.GROUP}").resource("allocations").check("write").allowed()'
"""A check of the permission that extender and controller have, as in `deploy/admission/allocations.yaml`."""
LABELS = {"app.kubernetes.io/part-of": "elastic-gpu"}
MANAGED = {**LABELS, "app.kubernetes.io/managed-by": "elastic-gpu-controller"}


def hosts(service: str, namespace: str) -> list[str]:
    """Return the names for the serving certificate of a service NAME[:PORT]. Raises InvalidInput."""
    name, _, port = service.partition(":")
    if not name or (port and not port.isdigit()):
        raise InvalidInput("webhook-service", f"{service!r} is not NAME or NAME:PORT")
    return [f"{name}.{namespace}.svc", f"{name}.{namespace}.svc.cluster.local", f"{name}.{namespace}"]


def mutating() -> MutatingWebhookConfiguration:
    pods = _of_pods("mutate.pods", "/mutate", operations=["CREATE"], when=_asking())
    return MutatingWebhookConfiguration(
        metadata=ObjectMeta(name=NAME, labels=LABELS),
        webhooks=[replace(pods, reinvocation_policy="IfNeeded"), _plain_pods(), _device_claims()],
    )


def _plain_pods() -> Webhook:
    """Return the webhook for pods that ask for nothing, but whose environment from elsewhere may show them cards. If
    the webhook does not answer, these pods pass."""
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


def _device_claims() -> Webhook:
    """Return the webhook for new ResourceClaims, which marks those of our classes. The extender marks them as well, so
    claims pass while no webhook answers. Claims of other drivers are sent, too: the API server cannot know our
    classes."""
    rule = RuleWithOperations(
        operations=["CREATE"], api_groups=[GROUP], api_versions=[VERSION], resources=["resourceclaims"], scope="*"
    )
    when = MatchCondition(name="asks-for-a-class", expression=asks_for_a_class())
    hook = _webhook("mutate.device-claims", "/mutate", rule)
    return replace(hook, match_conditions=[when], failure_policy="Ignore", timeout_seconds=PLAIN_TIMEOUT_SECONDS)


def validating() -> ValidatingWebhookConfiguration:
    """Return the validating configuration. The webhook gets no Bindings of pods without a GPU, so it cannot delay them.
    It gets none of the extender's either: the API server knows its permission, and each would wait for the webhook."""
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
            _device_configuration(),
        ],
    )


def _device_configuration() -> Webhook:
    """Return the webhook for ResourceClaims, their templates and DeviceClasses with configuration for our driver. The
    driver checks it again before a pod starts, so these objects pass while no webhook answers. Only classes can change
    later."""
    parts = (["CREATE"], ["resourceclaims", "resourceclaimtemplates"]), (["CREATE", "UPDATE"], ["deviceclasses"])
    rules = [
        RuleWithOperations(operations=when, api_groups=[GROUP], api_versions=[VERSION], resources=kinds, scope="*")
        for when, kinds in parts
    ]
    when = MatchCondition(name="configures-our-driver", expression=configures_our_driver())
    hook = replace(_webhook("validate.device-configuration", "/validate", rules[0]), rules=rules)
    return replace(hook, match_conditions=[when], failure_policy="Ignore", timeout_seconds=PLAIN_TIMEOUT_SECONDS)


def _of_pods(
    name: str, path: str, *, operations: list[str], when: MatchCondition, resources: Sequence[str] = ("pods",)
) -> Webhook:
    """Return a webhook for pods outside of Kubernetes' own namespaces that match `when`."""
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
    """Return the CEL expression that is true for exactly those pods that the webhook must see."""
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

    annotated = _annotated(
        f"{names.GROUP}/", *names.CLAIM_PREFIXES, names.CLAIM_TEMPLATE_PREFIX, *names.RESIZE_PREFIXES, *FRACTIONS
    )
    return " || ".join([any_container("containers"), any_container("initContainers"), f"({annotated})"])


def asks_for_a_class() -> str:
    """Return the CEL expression that is true for ResourceClaims that an extender might serve."""
    devices = "object.spec.devices"
    return f"has({devices}) && has({devices}.requests) && {devices}.requests.exists(r, has(r.exactly))"


def configures_our_driver() -> str:
    """Return the CEL expression that is true for claims, templates and classes of resource.k8s.io with configuration
    for our driver."""
    ours = f"c, has(c.opaque) && c.opaque.driver == {json.dumps(names.DRIVER)}"

    def of_claim(spec: str) -> str:
        return f"(has({spec}.devices) && has({spec}.devices.config) && {spec}.devices.config.exists({ours}))"

    template = f"(has(object.spec.spec) && {of_claim('object.spec.spec')})"
    own = f"(has(object.spec.config) && object.spec.config.exists({ours}))"
    return f"{own} || {of_claim('object.spec')} || {template}"


def has_hidden_environment() -> str:
    """Return the CEL expression that is true for pods with a container that has `envFrom`."""

    def any_container(field: str) -> str:
        return f"(has(object.spec.{field}) && object.spec.{field}.exists(c, has(c.envFrom)))"

    return f"{any_container('containers')} || {any_container('initContainers')}"


def gives_out_cards() -> str:
    """Return the CEL expression that is true for Bindings that write annotations only the scheduler may write."""
    return _annotated(*FIXED_ANNOTATIONS)


def _annotated(*prefixes: str) -> str:
    starts = " || ".join(f"k.startsWith({json.dumps(prefix)})" for prefix in dict.fromkeys(prefixes))
    return f"has(object.metadata.annotations) && object.metadata.annotations.exists(k, {starts})"
