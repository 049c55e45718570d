"""The controller: manages the life of claims, removes leftovers, keeps the webhook reachable.

    claim_controller  carries out the decisions of `egpu.core.claims`: phases, slices, reclaim, missing objects
    own_claims        claims of pods with templates
    device_classes    DeviceClasses for claims of resource.k8s.io
    remade_pods       pods that a kubelet refused for lack of room
    owed_pods         a record of these, for a controller that takes over
    certificates      the webhook's certificate in a Secret, its authority in the configurations
    cluster_metrics   cards, allocations, waiting pods and losses, for Prometheus
    withdrawal        amounts of nodes whose agent is gone
    webhooks          those configurations, as values
    app               assembles a controller
    config            its settings

NOT here: choosing cards for a claim. Only the extender does that."""

from egpu.apps.controller.app import Controller, run
from egpu.apps.controller.config import ControllerConfig

__all__ = ["Controller", "ControllerConfig", "run"]
