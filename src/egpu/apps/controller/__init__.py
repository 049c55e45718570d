"""The controller: carries claims through their life, sweeps up what was left behind, keeps the webhook reachable.

    claim_controller  carries out what `egpu.core.claims` decides: phases, slices, reclaim, what is gone
    certificates      the webhook's certificate in a Secret, its authority in the configurations
    cluster_metrics   cards, what is given of them, who waits, what is lost, for Prometheus
    webhooks          those configurations, as values
    app               one controller put together
    config            what it is told when it starts

NOT here: which cards a claim gets. That is the extender's alone.
"""

from egpu.apps.controller.app import Controller, run
from egpu.apps.controller.config import ControllerConfig

__all__ = ["Controller", "ControllerConfig", "run"]
