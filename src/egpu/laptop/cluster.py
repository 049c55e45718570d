"""The simulated cluster: the product's components as processes over a small Kubernetes (`egpu_sim.cluster.cluster`).

state directory, beside what every cluster has there
  pki/                    certificates of the nodes, for the pool
  extender-pki/           certificates of extender and scheduler
  nodes/NODE/agent        the agent's slots
"""

import contextlib
from collections.abc import AsyncGenerator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import yaml

from egpu.adapters.pool import authority
from egpu.api import names
from egpu.api.objects import ElasticGPU
from egpu.apps.extender.scheduler_config import scheduler_config
from egpu.core.node_condition import not_offering
from egpu.core.policies.registry import Policies
from egpu.core.schedulers import OWN_SCHEDULER
from egpu.laptop.credentials import ExtenderCredentials, extender_credentials
from egpu.laptop.installation import install
from egpu_base.api.kubernetes import Node
from egpu_base.kubernetes import Client
from egpu_base.system import mounts
from egpu_base.system.files import write_atomically
from egpu_sim.cluster import cluster as world
from egpu_sim.cluster.apiserver.access.identities import service_account
from egpu_sim.cluster.apiserver.calls import User
from egpu_sim.cluster.cluster import Progress
from egpu_sim.cluster.kubernetes import ControlPlane
from egpu_sim.cluster.ports import Ports
from egpu_sim.cluster.processes import ChildSpec
from egpu_sim.cluster.scheduler.extender import Extender
from egpu_sim.cluster.scheduler.own import OwnScheduler

NAMESPACE = "elastic-gpu-system"
PKI = "pki"
"""Folder of the pool's certificates: one per node, of an authority that lives and dies with the cluster."""
EXTENDER_PKI = "extender-pki"
"""Folder of the certificates of extender and scheduler."""
OWN_CONFIGURATION = "own-scheduler.yaml"
"""Configuration of our own kube-scheduler, among Kubernetes's programs."""
WEBHOOK_SERVICE = "elastic-gpu-webhook"
DASHBOARD = "dashboard"
MODULES = ("egpu.cli.app", "egpu.laptop.late_imports", "egpu.cli.components", *(f"egpu.apps.{app}" for app in (
    "webhook", "extender", "controller", "agent", "shim", DASHBOARD)), "egpu.cli.dashboard")  # fmt: skip
"""What the processes import."""
VIEWER = "viewer"
"""A user with read-only rights to everything."""


@dataclass(frozen=True)
class ClusterConfig(world.ClusterConfig):
    """`vocabularies` are the optional ones to turn on. `scheduler`: GPU pods go to a scheduler of our own, or to the
    cluster's existing one, as an installation chooses. `pool`: every node takes part in it, so that it offers far more
    than its cards."""

    vocabularies: tuple[str, ...] = ()
    scheduler: Literal["own", "existing"] = "own"
    node_policy: str = "default"
    card_policy: str = "default"
    pool: bool = True

    def check(self) -> None:
        """Check the fields. Raises InvalidInput naming the wrong one."""
        super().check()
        Policies.named(self.node_policy, self.card_policy)


class Product(world.Components):
    """Webhook, extender and controller, and a shim and an agent on every node, by these names."""

    credentials: ExtenderCredentials

    def __init__(self, config: ClusterConfig) -> None:
        self.config = config

    def prepare(self, state_dir: Path, ports: Ports) -> None:
        """Take the ports that the control plane calls, and make the extender's certificates."""
        self._webhook, self._extender = ports.take(), ports.take()
        self.credentials = extender_credentials(state_dir / EXTENDER_PKI)

    @property
    def extender_url(self) -> str:
        """The extender's address."""
        return f"https://127.0.0.1:{self._extender}"

    def users(self) -> dict[str, User]:
        """Return the users of everything that does not run on a node."""
        accounts = ("webhook", "extender", "controller", DASHBOARD)
        return {name: service_account(NAMESPACE, f"elastic-gpu-{name}") for name in accounts} | {VIEWER: User(VIEWER)}

    def node_users(self, node: str) -> dict[str, User]:
        """Return the agent's."""
        return {f"agent-{node}": service_account(NAMESPACE, "elastic-gpu-agent", node=node)}

    def resolve_service(self, namespace: str, name: str, port: int) -> tuple[str, int] | None:
        """Return the webhook's address."""
        return ("127.0.0.1", port) if name == WEBHOOK_SERVICE else None

    @property
    def _own(self) -> bool:
        return self.config.scheduler == "own"

    def scheduler_config(self, kubeconfig: str) -> dict[str, Any]:
        """Return a configuration with the extender, if there is no scheduler of our own."""
        return super().scheduler_config(kubeconfig) if self._own else self._asking(kubeconfig)

    def _asking(self, kubeconfig: str, **options: Any) -> dict[str, Any]:
        address, pki = f"127.0.0.1:{self._extender}", str(self.credentials.directory)
        return scheduler_config(address=address, kubeconfig=kubeconfig, pki=pki, **options)

    def own_scheduler(self) -> OwnScheduler | None:
        """Return our own scheduler, with the account that it has in deploy/."""
        return OwnScheduler(OWN_SCHEDULER, "extender", NAMESPACE, OWN_SCHEDULER) if self._own else None

    def extender(self) -> Extender:
        """Return the extender as a scheduler reaches it."""
        tls = self.credentials.client_context()
        return Extender(self.extender_url, tls=tls, managed_resources=frozenset({names.SLOT}))

    async def install(self, running: world.Cluster[Any], client: Client) -> None:
        """Create kinds, roles, admission rules and the namespace."""
        await install(client, webhook_port=self._webhook)
        if isinstance(running.plane, ControlPlane):
            await running.plane.lead_to_loopback(client, NAMESPACE, WEBHOOK_SERVICE)

    def modules(self) -> tuple[str, ...]:
        """Return the modules of all components."""
        return MODULES

    def specs(self, running: world.Cluster[Any]) -> list[ChildSpec]:
        """Return the processes to run. Each runs as on a real cluster, but for its addresses and directories, and as a
        fork."""
        config, spec = self.config, running.spec
        health = {name: running.ports.take() for name in ("webhook", "controller", "extender")}
        running.ready_urls |= {name: f"http://127.0.0.1:{port}/readyz" for name, port in health.items()}
        running.ready_urls["extender"] = f"http://127.0.0.1:{health['extender']}/leadz"
        named, followed = (("--scheduler-name", OWN_SCHEDULER), ("--follow", OWN_SCHEDULER)) if self._own else ((), ())
        specs = [
            spec("controller", "egpu", "controller", "--listen", f"127.0.0.1:{health['controller']}",
                 "--webhook-service", f"{WEBHOOK_SERVICE}:{self._webhook}"),
            spec("webhook", "egpu", "webhook", "--listen", f"127.0.0.1:{health['webhook']}",
                 "--webhook-listen", f"127.0.0.1:{self._webhook}", "--vocabularies", ",".join(config.vocabularies),
                 *named),
            spec("extender", "egpu", "extender", "--listen", f"127.0.0.1:{self._extender}",
                 "--health-listen", f"127.0.0.1:{health['extender']}", *self.credentials.flags(),
                 "--node-policy", config.node_policy, "--card-policy", config.card_policy, *followed),
        ]  # fmt: skip
        if self._own and config.kubernetes is not None:
            specs.append(self._kube_scheduler(running, config.kubernetes))
        for node in running.node_names:
            specs += self._node_specs(running, node)
        return specs

    def _kube_scheduler(self, running: world.Cluster[Any], programs: Path) -> ChildSpec:
        """Return a kube-scheduler of our own, as in deploy/: beside the extender, with its account."""
        state_dir = running.state_dir
        kubeconfig, file = state_dir / "extender.kubeconfig", state_dir / OWN_CONFIGURATION
        configuration = self._asking(str(kubeconfig), scheduler_name=OWN_SCHEDULER, leader_elect=True)
        write_atomically(file, yaml.safe_dump(configuration).encode(), mode=0o600)
        flags = ("--leader-elect-resource-name", OWN_SCHEDULER, "--leader-elect-resource-namespace", NAMESPACE,
                 "--bind-address", "127.0.0.1", "--secure-port", str(running.ports.take()))  # fmt: skip
        program = (str(programs / "kube-scheduler"), "--config", str(file), *flags)
        return ChildSpec(OWN_SCHEDULER, program, state_dir / "logs" / f"{OWN_SCHEDULER}.log", careless=True)

    def _node_specs(self, running: world.Cluster[Any], node: str) -> list[ChildSpec]:
        home, machine, state_dir = running.node_dir(node), running.machines[node], running.state_dir
        port = running.ports.take()
        running.ready_urls[f"agent-{node}"] = f"http://127.0.0.1:{port}/readyz"
        places = ("--kubelet-dir", str(home / "kubelet"), "--state-dir", str(home / "agent"))
        mounting = ["--mount-usage"] if mounts.allowed(state_dir) else []
        pooled: list[str] = []
        if self.config.pool:
            authority.issue(state_dir / PKI, "server", node)
            pooled = ["--pool-pki", str(state_dir / PKI)]
        shim = ("egpu", "shim", *places, "--driver-dir", str(machine.driver_dir), "--cgroup", "none",
                "--log-level", self.config.log_level)  # fmt: skip
        return [
            ChildSpec(f"shim-{node}", shim, state_dir / "logs" / f"shim-{node}.log", module=True),
            running.spec(
                f"agent-{node}", "egpu", "agent", "--shim", "--node", node, "--node-ip", "127.0.0.1", *places,
                "--device-root", str(machine.device_dir), "--cdi-dir", str(home / "cdi"),
                "--nvml-library", str(machine.driver_dir / "libnvidia-ml.so.1"),
                "--cgroup-root", str(home / "kubelet" / "cgroup"), "--listen", f"127.0.0.1:{port}",
                *pooled, *mounting, "--vocabularies", ",".join(self.config.vocabularies),
            ),
        ]  # fmt: skip

    async def missing(self, running: world.Cluster[Any], client: Client) -> tuple[str, str] | None:
        """Return which cards are not published, or which node offers nothing yet."""
        cards = [gpu for gpu in await client.list(ElasticGPU) if gpu.spec.physical_gpu is not None]
        if len(cards) < self.config.nodes * self.config.cards_per_node:
            return f"{len(cards)} cards are published", "controller"
        for name in running.node_names:
            node = await client.get(Node, name)
            if self.config.pool and names.POOL_ADDRESS not in node.annotations:
                return f"{name} has not joined the pool", f"agent-{name}"
            if (node.status.allocatable or {}).get(names.SLOT) in (None, "0"):
                return f"{name} offers no {names.SLOT}", f"agent-{name}"
            if (found := not_offering(node)) is not None:
                return f"{name} offers nothing, {found[0]}: {found[1]}", f"agent-{name}"
        return None


Cluster = world.Cluster[Product]


@contextlib.asynccontextmanager
async def cluster(config: ClusterConfig, progress: Progress = lambda _: None) -> AsyncGenerator[Cluster, None]:
    """Start a cluster, wait until it takes pods, and end it when the context is left.

    Raises:
        InvalidInput: a field of the configuration is wrong.
        Unavailable: a component did not start; the message holds the end of its log.
    """
    config.check()
    async with world.started(config, Product(config), progress) as running:
        yield running


@contextlib.asynccontextmanager
async def without_nodes(config: ClusterConfig) -> AsyncGenerator[Cluster, None]:
    """Start a control plane without nodes, for nodes that are only objects. Raises as `cluster`."""
    config.check()
    bare = replace(config, nodes=0, cpu_nodes=0)
    async with world.started(bare, Product(bare)) as running:
        yield running
