"""A small kubelet for one simulated node: runs pods as processes, speaks the real kubelet's gRPC to device plugins.

    kubelet      the pods of the node, put together from the parts below
    config       what a kubelet is told when it starts
    node         the Node object and its lease
    admission    whether the node takes a pod
    devices      device manager: registration, Allocate, PreStartContainer
    allocations  which container holds which device ids, in a checkpoint
    worker       one pod's life: init containers, restarts, deletion
    containers   what is known of one container and its runs
    starter      one start: plugins asked, process started
    cdi          what CDI names mean, as a container runtime looks them up
    launch       what a start needs: paths, libraries, environment
    environment  variables
    images       the program of an image
    runtime      containers as processes
    streaming    the socket where the API server asks for the next three
    port         where an API server of another project asks for logs
    execution    a command in a running container
    attachment   the streams of its own process
    usage        what containers use now
    status       what the API server is told
    events       events about pods
    objects      pods as a kubelet reads them

Without images, networks, probes, lifecycle hooks and cgroup limits; a pod that uses one is told so where it matters.
"""

from egpu.embedded.kubelet.config import KubeletConfig
from egpu.embedded.kubelet.kubelet import Kubelet, end_all, run

__all__ = ["Kubelet", "KubeletConfig", "end_all", "run"]
