"""The cluster as the checks of `egpu doctor` see it."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from egpu.core.gpu_nodes import BY_DEFAULT, agent_pod
from egpu_base.api.kubernetes import Node, Pod
from egpu_base.errors import NotFound, Refused
from egpu_base.kubernetes import Client


@dataclass(frozen=True)
class Cluster:
    """The cluster as the checks see it, or the errors of what may not be listed."""

    client: Client
    namespace: str
    listed_nodes: Sequence[Node] | Refused
    listed_pods: Sequence[Pod] | Refused
    now: datetime

    @property
    def nodes(self) -> Sequence[Node]:
        """Return all nodes. Raises Refused."""
        if isinstance(self.listed_nodes, Refused):
            raise self.listed_nodes
        return self.listed_nodes

    @property
    def pods(self) -> Sequence[Pod]:
        """Return the pods of all namespaces. Raises Refused."""
        if isinstance(self.listed_pods, Refused):
            raise self.listed_pods
        return self.listed_pods

    async def agents(self) -> Pod:
        """Return a pod that selects nodes as the agents' DaemonSet does; as by default, if that cannot be read."""
        path = f"/apis/apps/v1/namespaces/{self.namespace}/daemonsets/elastic-gpu-agent"
        try:
            return agent_pod(await self.client.raw("GET", path))
        except (NotFound, Refused):
            return BY_DEFAULT

    def logs(self, component: str) -> str:
        return f"kubectl -n {self.namespace} logs --prefix -l app.kubernetes.io/name=elastic-gpu-{component}"
