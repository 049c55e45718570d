"""What of a GPU node must outlive its agent, in a process of its own: as containerd's shims keep containers while
containerd is upgraded, it keeps executors and kubelet's trust while the agent is.

    app          puts it together and runs it
    config       what it is told when it starts
    plugin       answers kubelet: slots and Allocate from the agent's last word, PreStartContainer by asking the agent
    executors    executors are its children: starts and ends them as the agent orders

kubelet fails a pod for good when the plugin's socket does not answer, and a container's executor ends with the control
group that it was started in. So this process does only what hardly ever has to be changed: it decides nothing, reads
nothing of the API server and has no account there. On Kubernetes it is a DaemonSet that is updated OnDelete, when the
node is drained. NOT here: whose a slot is and what stands in it (`egpu.apps.agent`).
"""

from egpu.apps.shim.app import NodeShim, run
from egpu.apps.shim.config import ShimConfig

__all__ = ["NodeShim", "ShimConfig", "run"]
