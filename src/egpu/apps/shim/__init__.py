"""The shim of a GPU node: a process that outlives the agent. It keeps executors and kubelet's trust during upgrades, as
containerd's shims keep containers while containerd is upgraded.

    app          assembles a shim and runs it
    config       its settings
    plugin       answers kubelet: slots and Allocate from the agent's last offer, PreStartContainer by asking the agent
    executors    parent of the executors: starts and ends them as the agent orders
    last_words   its last act: kubelet refuses what a killed agent published

kubelet fails a pod for good when the plugin's socket does not answer, and a container's executor ends with the control
group that it was started in. So this process does only what rarely changes: it decides nothing, reads nothing of the
API server and has no account there. On Kubernetes it is a DaemonSet that is updated OnDelete, when the node is drained.
NOT here: owners and content of slots (`egpu.apps.agent`)."""

from egpu.apps.shim.app import NodeShim, run
from egpu.apps.shim.config import ShimConfig

__all__ = ["NodeShim", "ShimConfig", "run"]
