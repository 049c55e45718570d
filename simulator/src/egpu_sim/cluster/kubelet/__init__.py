"""A small kubelet for one simulated node: runs pods as processes, speaks the real kubelet's gRPC to device plugins.

    kubelet      the pods of the node, put together from the parts below
    config       the configuration of a kubelet
    node         the Node object and its lease
    admission    the last check of a pod that was bound to the node
    devices      device manager: registration, Allocate, PreStartContainer
    allocations  device ids by container, in a checkpoint
    drivers      drivers of dynamic resource allocation, by their sockets
    claims       claims of devices, which drivers prepare
    worker       one pod's life: init containers, restarts, deletion
    containers   one container and its runs
    starter      one start: plugins asked, process started
    cdi          meaning of CDI names, looked up as a container runtime does
    launch       needs of a start: paths, libraries, environment
    covered      paths that volumes cover, shown elsewhere
    environment  variables
    volumes      directories and files for containers
    images       the program of an image
    runtime      containers as processes
    streaming    the socket where the API server asks for the next three
    port         a port where an API server of another project asks for logs
    execution    a command in a running container
    attachment   the streams of a container's own process
    usage        present usage of containers
    status       the status of a pod
    events       events about pods
    objects      pods as a kubelet reads them

It has no images, networks, probes, lifecycle hooks and cgroup limits. A pod that uses one gets an error where it
matters.
"""

from egpu_sim.cluster.kubelet.config import KubeletConfig
from egpu_sim.cluster.kubelet.kubelet import Kubelet, end_all, run

__all__ = ["Kubelet", "KubeletConfig", "end_all", "run"]
