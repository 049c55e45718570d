"""The node agent: publishes the node's cards, and prepares for each container exactly what the scheduler gave it.

    inventory  ─► publisher   ElasticGPU objects, node capacity          (cards → API server)
               ─► plugin      slots, Allocate, PreStartContainer         (kubelet ⇄ us, `registrar` keeps us known)
                    owners    whose slot is it?                          (pod-resources + pod)
                    preparer  allocation → slot directory                (knows nothing of who asks)
               bridges        to executors on other nodes               (the pool: slot → their `serving`)
               serving        executors of this node's cards for pods elsewhere
    sweeper                   slots that nobody holds any more

There is no state but the slot directories, and those are rebuilt from the pods: killed at any moment, the agent
starts again and every later PreStartContainer makes its slot anew. NOT here: choosing cards, limits while running.
"""

from egpu.apps.agent.app import Agent, run
from egpu.apps.agent.config import AgentConfig

__all__ = ["Agent", "AgentConfig", "run"]
