"""The admission webhook: turns any vocabulary into one normal demand, and refuses what can never work.

    server       AdmissionReview over HTTPS
    admission    from a request to the core's decision, with what the caches know
    cards        which kinds of cards the cluster has
    certificate  from the controller's Secret or from files, replaced without a restart
    app          one webhook server put together
    config       what it is told when it starts

NOT here: what is right and wrong (`egpu.core.admission`), who is sent here (`egpu.apps.controller.webhooks`).
"""

from egpu.apps.webhook.app import Webhook, run
from egpu.apps.webhook.config import WebhookConfig

__all__ = ["Webhook", "WebhookConfig", "run"]
