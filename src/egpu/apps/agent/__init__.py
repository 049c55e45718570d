"""The node agent: publishes the node's cards, and prepares for each container exactly what the scheduler gave it.

    app        puts it all together and runs it
    config     what it is told when it starts
    cards/     inventory   what cards there are, and which are healthy
               publisher   tells the API server: ElasticGPU objects, node capacity
    slots/     registrar   makes us known to kubelet, again after each of its restarts
               plugin      kubelet's two questions, Allocate and PreStartContainer
               owners      whose slot is it? (pod-resources and the pod)
               preparer    from its allocation to a slot directory
               directories, devices    what stands in one
               sweeper     slots that nobody holds any more
    serving/   slots       a slot without devices: its executor here (qGPU)
               bridges     or the way to its executor on another node (the pool)
               pods        executors here for containers of other nodes
    limits/    shares, compute, memory    hold each container to its slice while it runs
    pods       what we ask the API server about this node's pods
    metrics    what each container may use and uses

So a container starts: `plugin` → `owners` → `preparer` → `serving` where it gets no device. From then on it is held by
its policy page, which `limits` keep true.

There is no state but the slot directories, and those are rebuilt from the pods: killed at any moment, the agent
starts again and every later PreStartContainer makes its slot anew. NOT here: choosing cards.
"""

from egpu.apps.agent.app import Agent, run
from egpu.apps.agent.config import AgentConfig

__all__ = ["Agent", "AgentConfig", "run"]
