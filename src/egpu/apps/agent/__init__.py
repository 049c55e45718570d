"""The node agent: publishes the node's cards, and prepares for each container exactly what the scheduler gave it.

    app            puts it all together and runs it
    config         what it is told when it starts
    cards          what cards there are, and what the cluster is told of them
    slots          kubelet's questions, whose slot it is, and what stands in its directory
    serving        executors for containers that have no GPU device, and the ways to them
    limits         holds each container to its slice while it runs
    pods           what we ask the API server about this node's pods
    metrics        the node's cards, and how long our calls take
    slice_metrics  what each container may use and uses

So a container starts: `slots.plugin` → `slots.owners` → `slots.preparer` → `serving` where it gets no device. From then
on it is held by its policy page, which `limits` keep true.

There is no state but the slot directories, and those are rebuilt from the pods: killed at any moment, the agent
starts again and every later PreStartContainer makes its slot anew. What must go on meanwhile is its shim's
(`egpu.apps.shim`). NOT here: choosing cards.
"""

from egpu.apps.agent.app import Agent, run
from egpu.apps.agent.config import AgentConfig

__all__ = ["Agent", "AgentConfig", "run"]
