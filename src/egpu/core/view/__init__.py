"""The cluster as one looks at it: one model for whatever shows it, so that all show the same.

    records   what is shown: cluster → nodes → cards → slices, and the pods that wait
    usage     what a slice's processes are said to use of it
    pending   why a pod waits, in a word and in a sentence
    owners    whose the slices are
    building  the view of one node
    live      the view of all of them, kept by what changes

What is given comes from the ledger that the extender decides by, what is used from the node agents.
"""

from egpu.core.view.live import LiveView, cluster_view
from egpu.core.view.pending import PendingPod, Waits
from egpu.core.view.records import CardView, ClusterView, NodeView, SliceView, User
from egpu.core.view.usage import ProcessUsage, SliceKey, SliceUsage

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
