"""The cluster for people: one model for everything that shows it, so that all show the same.

    records   the model: cluster → nodes → cards → slices, and the pods that wait
    slice_usage  what a slice uses, as its node's agent publishes it
    pending   why a pod waits, in a word and in a sentence
    owners    the pods and claims of slices
    building  the view of one node
    live      the view of all of them, updated by changes

Allocated amounts come from the extender's ledger, used amounts from the node agents.
"""

from egpu.core.view.live import LiveView, cluster_view
from egpu.core.view.pending import PendingPod, Waits
from egpu.core.view.records import CardView, ClusterView, NodeView, SliceView, User
from egpu.core.view.slice_usage import ProcessUsage, SliceKey, SliceUsage

__all__ = [
    "CardView",
    "ClusterView",
    "LiveView",
    "NodeView",
    "PendingPod",
    "ProcessUsage",
    "SliceKey",
    "SliceUsage",
    "SliceView",
    "User",
    "Waits",
    "cluster_view",
]
