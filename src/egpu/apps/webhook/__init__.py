"""The admission webhook: turns any vocabulary into one demand, and refuses what can never work.

    server       AdmissionReview over HTTPS
    admission    from a request to the core's decision, with data from the caches
    neighbours   reads the objects of other projects' groups of pods
    cards        the kinds of cards in the cluster
    certificate  from the controller's Secret or from files, replaced without a restart
    app          assembles a webhook server
    config       its settings

NOT here: the rules (`egpu.core.admission`), which requests are sent (`egpu.apps.controller.webhooks`)."""

from egpu.apps.webhook.app import Webhook, run
from egpu.apps.webhook.config import WebhookConfig

__all__ = ["Webhook", "WebhookConfig", "run"]
