"""The controller: carries claims through their life, sweeps up what was left behind, keeps the webhook reachable.

    claims         phases, finalizers, slices, reclaim; cards and slices of what is gone
                   (decided by `egpu.core.claims.lifecycle`)
    certificates   the webhook's certificate in a Secret, its authority in the configurations
    webhooks       those configurations, as values

NOT here: which cards a claim gets. That is the extender's alone.
"""

from egpu.apps.controller.app import Controller, run
from egpu.apps.controller.config import ControllerConfig

__all__ = ["Controller", "ControllerConfig", "run"]
