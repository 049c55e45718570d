"""A small kubelet for one simulated node: runs pods as processes, speaks the real kubelet's gRPC to device plugins.

    kubelet     ─► worker    one pod's life: admission, init containers, restarts, deletion
                     starter   one start: plugins asked, environment, paths (`launch`), process (`runtime`)
                     status    what the API server is told
                ─► devices   device manager: registration, Allocate, PreStartContainer, checkpoint
                ─► node      Node object, lease

Made to be as awkward as the real one towards a device plugin, and killable at any moment. NOT here: images, networks,
probes, lifecycle hooks, cgroup limits. A pod that uses what is missing here is told so by name where it would matter.
"""

from egpu.embedded.kubelet.config import KubeletConfig
from egpu.embedded.kubelet.kubelet import Kubelet, end_all, run

__all__ = ["Kubelet", "KubeletConfig", "end_all", "run"]
