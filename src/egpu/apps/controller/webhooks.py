"""The two webhook configurations, as values.

`failurePolicy: Fail`, because a GPU pod that nobody normalised must not start. That can never block a cluster:
`matchConditions` let the API server send only pods that speak of our resources or annotations, and system namespaces
and our own are excluded.
"""

import json
from collections.abc import Sequence

from msgspec.structs import replace

from egpu.api import names
from egpu.api.foreign import FOREIGN
from egpu.api.kubernetes import (
    LabelSelector,
    LabelSelectorRequirement,
    MatchCondition,
    MutatingWebhookConfiguration,
    RuleWithOperations,
    ServiceReference,
    ValidatingWebhookConfiguration,
    Webhook,
    WebhookClientConfig,
)
from egpu.api.objects import ObjectMeta
from egpu.api.vocabularies import POD_RESOURCES, VOCABULARIES
from egpu.core.admission import FIXED_ANNOTATIONS
from egpu.errors import InvalidInput

NAME = "elastic-gpu"
TIMEOUT_SECONDS = 10
LABELS = {"app.kubernetes.io/part-of": "elastic-gpu", "app.kubernetes.io/managed-by": "elastic-gpu-controller"}


def client_config(
    path: str, ca_bundle: str, *, url: str | None, service: str | None, namespace: str
) -> WebhookClientConfig:
    """Where the API server finds the webhook. `ca_bundle` is base64 text. Raises InvalidInput for a bad service."""
    if url is not None:
        if not url.startswith("https://"):
            raise InvalidInput("webhook-url", f"{url!r} must begin with https://")
        return WebhookClientConfig(url=url.rstrip("/") + path, ca_bundle=ca_bundle)
    if not service:
        raise InvalidInput("webhook-service", "give --webhook-url or --webhook-service")
    name, _, port = service.partition(":")
    if port and not port.isdigit():
        raise InvalidInput("webhook-service", f"{service!r} is not NAME or NAME:PORT")
    reference = ServiceReference(namespace=namespace, name=name, path=path, port=int(port) if port else 443)
    return WebhookClientConfig(service=reference, ca_bundle=ca_bundle)


def hosts(*, url: str | None, service: str | None, namespace: str) -> list[str]:
    """The names that the serving certificate must carry."""
    if url is not None:
        host = url.removeprefix("https://").split("/")[0]
        return [host.rpartition(":")[0].strip("[]") or host]
    name = (service or "").partition(":")[0]
    return [f"{name}.{namespace}.svc", f"{name}.{namespace}.svc.cluster.local", f"{name}.{namespace}"]


def mutating(client: WebhookClientConfig, excluded: Sequence[str]) -> MutatingWebhookConfiguration:
    pods = _of_pods("mutate.pods", client, excluded, operations=["CREATE"], when=_asking())
    return MutatingWebhookConfiguration(
        metadata=ObjectMeta(name=NAME, labels=LABELS), webhooks=[replace(pods, reinvocation_policy="IfNeeded")]
    )


def validating(client: WebhookClientConfig, excluded: Sequence[str]) -> ValidatingWebhookConfiguration:
    """Bindings of pods without a GPU never come here, so the webhook cannot hold them up."""
    changed = ["CREATE", "UPDATE"]
    ours = RuleWithOperations(
        operations=changed,
        api_groups=[names.GROUP],
        api_versions=list(names.SERVED_VERSIONS),
        resources=["elasticgpuclaims", "elasticgpuclasses", "elasticgpus"],
        scope="*",
    )
    when = MatchCondition(name="gives-out-cards", expression=gives_out_cards())
    where = ("pods/binding", "bindings")
    return ValidatingWebhookConfiguration(
        metadata=ObjectMeta(name=NAME, labels=LABELS),
        webhooks=[
            _of_pods("validate.pods", client, excluded, operations=changed, when=_asking()),
            _webhook("validate.objects", client, ours),
            _of_pods("validate.bindings", client, excluded, operations=["CREATE"], resources=where, when=when),
        ],
    )


def _of_pods(
    name: str,
    client: WebhookClientConfig,
    excluded: Sequence[str],
    *,
    operations: list[str],
    when: MatchCondition,
    resources: Sequence[str] = ("pods",),
) -> Webhook:
    """Of what is outside the namespaces `excluded`, and `when` is true of it."""
    rule = RuleWithOperations(
        operations=operations, api_groups=[""], api_versions=["v1"], resources=list(resources), scope="Namespaced"
    )
    outside = LabelSelectorRequirement(key="kubernetes.io/metadata.name", operator="NotIn", values=sorted(excluded))
    selector = LabelSelector(match_expressions=[outside])
    return replace(_webhook(name, client, rule), match_conditions=[when], namespace_selector=selector)


def _webhook(name: str, client: WebhookClientConfig, rule: RuleWithOperations) -> Webhook:
    return Webhook(
        name=f"{name}.elasticgpu.io",
        client_config=client,
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
    whole = [one.name for one in FOREIGN if not one.prefix]
    resources = json.dumps([*POD_RESOURCES, *nodes_only, names.SLOT, *whole])
    begins = " || ".join(f"k.startsWith({json.dumps(one.name)})" for one in FOREIGN if one.prefix)

    def any_container(field: str) -> str:
        def names_one(kind: str) -> str:
            return f"has(c.resources.{kind}) && c.resources.{kind}.exists(k, k in {resources} || {begins})"

        asks = f"has(c.resources) && (({names_one('limits')}) || ({names_one('requests')}))"
        return f"(has(object.spec.{field}) && object.spec.{field}.exists(c, {asks}))"

    annotated = _annotated(f"{names.GROUP}/", *names.CLAIM_PREFIXES)
    return " || ".join([any_container("containers"), any_container("initContainers"), f"({annotated})"])


def gives_out_cards() -> str:
    """The CEL expression that is true for Bindings that write annotations only the scheduler may write."""
    return _annotated(*FIXED_ANNOTATIONS)


def _annotated(*prefixes: str) -> str:
    starts = " || ".join(f"k.startsWith({json.dumps(prefix)})" for prefix in dict.fromkeys(prefixes))
    return f"has(object.metadata.annotations) && object.metadata.annotations.exists(k, {starts})"
