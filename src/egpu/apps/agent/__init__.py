"""The node agent: publishes the node's cards, and gives each container exactly what the scheduler allocated.

    app            assembles an agent and runs it
    config         its settings
    cards          the node's cards, and their objects in the cluster
    dra            ResourceClaims instead of slots, on nodes where kube-scheduler gives out the cards
    slots          kubelet's requests, owners of slots, and slot directories
    serving        executors for containers without a GPU device, and the ways to them
    limits         keeps each container inside its slice while it runs
    farewell       the last act of an agent whose DaemonSet was removed
    node_pods      reads this node's pods from the API server
    standing       whether the cards may be offered, and the node's condition
    startup_taint  keeps GPU pods off the node until it is ready
    metrics        metrics of the node's cards, and of the agent's own calls
    slice_metrics  limits and use of each container

A container starts by `slots.plugin` → `slots.owners` → `slots.preparer` → `serving` if it gets no device. From then
on its policy page limits it, and `limits` keep the page up to date.

The slot directories are the only state, and they are rebuilt from the pods. A killed agent starts again, and every
later PreStartContainer makes its slot anew. The shim (`egpu.apps.shim`) runs meanwhile. NOT here: choosing cards."""

from egpu.apps.agent.app import Agent, run
from egpu.apps.agent.config import AgentConfig

__all__ = ["Agent", "AgentConfig", "run"]
