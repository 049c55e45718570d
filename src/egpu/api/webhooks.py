"""The configurations of admission webhooks, as far as this project writes them."""

from typing import ClassVar

from msgspec import field

from egpu_base.api.kubernetes import LabelSelector
from egpu_base.api.objects import Object
from egpu_base.api.wire import Resource, Wire


class ServiceReference(Wire, frozen=True, kw_only=True):
    namespace: str
    name: str
    path: str = ""
    port: int | None = None


class WebhookClientConfig(Wire, frozen=True, kw_only=True):
    """The address of a webhook. `caBundle` is base64 text; one of `url` and `service` is set."""

    url: str | None = None
    service: ServiceReference | None = None
    ca_bundle: str | None = None


class RuleWithOperations(Wire, frozen=True, kw_only=True):
    operations: list[str]
    api_groups: list[str]
    api_versions: list[str]
    resources: list[str]
    scope: str | None = None


class MatchCondition(Wire, frozen=True, kw_only=True):
    name: str
    expression: str


class Webhook(Wire, frozen=True, kw_only=True):
    name: str
    client_config: WebhookClientConfig
    rules: list[RuleWithOperations]
    side_effects: str
    admission_review_versions: list[str]
    failure_policy: str | None = None
    match_policy: str | None = None
    match_conditions: list[MatchCondition] | None = None
    namespace_selector: LabelSelector | None = None
    object_selector: LabelSelector | None = None
    timeout_seconds: int | None = None
    reinvocation_policy: str | None = None


class MutatingWebhookConfiguration(
    Object, frozen=True, kw_only=True, tag_field="kind", tag="MutatingWebhookConfiguration"
):
    resource: ClassVar[Resource] = Resource(
        "admissionregistration.k8s.io", "v1", "mutatingwebhookconfigurations", namespaced=False
    )

    api_version: str = field(default_factory=lambda: "admissionregistration.k8s.io/v1")
    webhooks: list[Webhook] = field(default_factory=list[Webhook])


class ValidatingWebhookConfiguration(
    Object, frozen=True, kw_only=True, tag_field="kind", tag="ValidatingWebhookConfiguration"
):
    resource: ClassVar[Resource] = Resource(
        "admissionregistration.k8s.io", "v1", "validatingwebhookconfigurations", namespaced=False
    )

    api_version: str = field(default_factory=lambda: "admissionregistration.k8s.io/v1")
    webhooks: list[Webhook] = field(default_factory=list[Webhook])
