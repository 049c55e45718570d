"""One cluster with Kubernetes' own control plane over simulated nodes, for all neighbours in turn.

    EGPU_KUBERNETES   directory with etcd, kube-apiserver, kube-controller-manager and kube-scheduler
    EGPU_NEIGHBOURS   directory with the neighbours' controllers (`support.neighbour_programs`)

Without the first, all of these tests are skipped; without a program of the second, that neighbour's."""

from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from egpu.laptop.cluster import Cluster, ClusterConfig, cluster
from egpu_base.kubernetes import Client
from egpu_sim.cluster.kubernetes import ENVIRONMENT, named_by_environment
from support.kubernetes_programs import with_flags
from support.pod_groups import CARDS, NODES

GATES = "--feature-gates=GenericWorkload=true"
FLAGS = {
    "kube-apiserver": [GATES, "--runtime-config=scheduling.k8s.io/v1alpha2=true"],
    "kube-scheduler": [f"{GATES},GangScheduling=true"],
}


@pytest_asyncio.fixture(scope="package", loop_scope="package")
async def running(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Cluster]:
    """The cluster. Groups of Kubernetes are turned on, and the pool is off, as the chart installs it: autoscalers see
    what the cards have."""
    programs = named_by_environment()
    if programs is None:
        pytest.skip(f"{ENVIRONMENT} names no directory with Kubernetes' programs")
    flagged = with_flags(programs, tmp_path_factory.mktemp("kubernetes") / "programs", FLAGS)
    async with cluster(ClusterConfig(nodes=NODES, cards_per_node=CARDS, kubernetes=flagged, pool=False)) as one:
        yield one


@pytest_asyncio.fixture(scope="package", loop_scope="package")
async def client(running: Cluster) -> AsyncIterator[Client]:
    """The administrator's."""
    async with running.client() as one:
        yield one
