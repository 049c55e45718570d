"""The embedded cluster: an API server in this process, every component as a process of its own, simulated nodes.

The API server, its controllers and the scheduler can be Kubernetes's own programs (see `egpu.embedded.kubernetes`).

    state directory
      admin.kubeconfig …      one kubeconfig per identity
      logs/NAME.log           what each component says
      pids/NAME               `PID START_TIME`, for the janitor
      pki/                    certificates of the nodes, for the pool
      extender-pki/           certificates of extender and scheduler
      nodes/NODE/machine      the simulated machine: driver directory, device files
                /kubelet      kubelet's directory: sockets, volumes, logs of containers; `run` and `cgroup` lead to
                              shared memory
                /agent        the agent's slots

Nothing is kept from one cluster to the next, and nothing is left behind: see `egpu.embedded.janitor`.
"""

from __future__ import annotations

import asyncio
import contextlib
import shutil
import subprocess
import sys
from collections.abc import AsyncGenerator, Callable, Generator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from egpu.adapters import mounts
from egpu.adapters.kubernetes import Client
from egpu.adapters.pool import authority
from egpu.adapters.simulator import machine as simulator
from egpu.core.policies.registry import Policies
from egpu.embedded import janitor, kubernetes
from egpu.embedded.apiserver import Config, ServerHandle, serve
from egpu.embedded.apiserver.access import node_user, service_account
from egpu.embedded.apiserver.authorization import Listener
from egpu.embedded.apiserver.calls import User
from egpu.embedded.controllers import Controllers
from egpu.embedded.credentials import ExtenderCredentials, extender_credentials
from egpu.embedded.installation import install
from egpu.embedded.kubelet import end_all, images
from egpu.embedded.ports import Ports, ports
from egpu.embedded.processes import ChildSpec, Fleet, python_module
from egpu.embedded.readiness import wait_ready
from egpu.embedded.scheduler.extender import Extender
from egpu.embedded.scheduler.loop import Scheduler
from egpu.embedded.statedir import StateDir, kept_in_memory, state_directory
from egpu.errors import ElasticGPUError, InvalidInput, NotSupported
from egpu.runtime.keeping import seldom_searched

NAMESPACE = "elastic-gpu-system"
PKI = "pki"
"""Folder of the pool's certificates: one per node, of an authority that lives and dies with the cluster."""
EXTENDER_PKI = "extender-pki"
"""Folder of the certificates of extender and scheduler."""
WEBHOOK_SERVICE = "elastic-gpu-webhook"
DASHBOARD = "dashboard"
VIEWER = "viewer"
"""May look at everything and touch nothing."""
CONTROLLERS = User("system:kube-controller-manager", ("system:masters", "system:authenticated"))
MAX_NODES = 64
MAX_CARDS_PER_NODE = 16

Progress = Callable[[str], None]


@dataclass(frozen=True)
class ClusterConfig:
    """`cpu_nodes` come after `nodes` and have no cards: their pods use the others'. `profiles` are taken by the nodes
    in turn, so two profiles give a mixed cluster. `state_dir` None: a temporary directory, removed at the end.
    `vocabularies` are the optional ones that are turned on. `kubeconfig`: the admin's is written there too. `port` 0:
    any free one. `images`: the user's table of what containers of an image run. `kubernetes`: a directory of
    Kubernetes's own programs, which are the control plane then."""

    nodes: int = 2
    cards_per_node: int = 4
    cpu_nodes: int = 0
    profiles: tuple[str, ...] = ("A100-80G",)
    cpu: str = "64"
    memory: str = "256Gi"
    vocabularies: tuple[str, ...] = ()
    node_policy: str = "default"
    card_policy: str = "default"
    port: int = 0
    images: Path | None = None
    kubernetes: Path | None = field(default_factory=kubernetes.named_by_environment)
    state_dir: Path | None = None
    kubeconfig: Path | None = None
    log_level: str = "info"
    listener: Listener | None = None
    """Told of every request to our API server whether it is allowed."""

    def check(self) -> None:
        """Raises InvalidInput naming the field."""
        if not 1 <= self.nodes <= MAX_NODES:
            raise InvalidInput("nodes", f"{self.nodes} is not between 1 and {MAX_NODES}")
        if not 0 <= self.cpu_nodes <= MAX_NODES - self.nodes:
            raise InvalidInput("cpu-nodes", f"{self.cpu_nodes} is not between 0 and {MAX_NODES - self.nodes}")
        if not 0 <= self.cards_per_node <= MAX_CARDS_PER_NODE:
            raise InvalidInput("gpus", f"{self.cards_per_node} is not between 0 and {MAX_CARDS_PER_NODE}")
        known = simulator.profiles()
        for profile in self.profiles:
            if profile.lower() not in map(str.lower, known):
                raise InvalidInput("profile", f"{profile!r} is not known; known are {', '.join(sorted(known))}")
        if self.images is not None:
            images.read(self.images)
        if self.kubernetes is not None:
            kubernetes.check(self.kubernetes)
        Policies.named(self.node_policy, self.card_policy)


@dataclass
class Cluster:
    """A running cluster. `fleet` holds the components' processes, by name: webhook, extender, controller, kubelet-NODE,
    shim-NODE, agent-NODE."""

    config: ClusterConfig
    state_dir: Path
    plane: ServerHandle | kubernetes.ControlPlane
    fleet: Fleet
    node_names: tuple[str, ...]
    extender_url: str
    credentials: ExtenderCredentials
    ports: Ports
    ready_urls: dict[str, str] = field(default_factory=dict[str, str])

    @property
    def server(self) -> ServerHandle:
        """Our API server, with all that can be looked into and done to it. Raises NotSupported for Kubernetes's own."""
        if not isinstance(self.plane, ServerHandle):
            raise NotSupported("Kubernetes's own API server is another process")
        return self.plane

    @property
    def kubeconfig(self) -> Path:
        """The admin's."""
        return self.plane.kubeconfig

    def node_dir(self, node: str) -> Path:
        """Everything of one simulated node."""
        return self.state_dir / "nodes" / node

    def extender(self) -> Extender:
        """The extender as kube-scheduler reaches it."""
        return Extender(self.extender_url, tls=self.credentials.client_context())

    def client(self) -> Client:
        """A client with the admin's rights."""
        return Client.from_kubeconfig(self.kubeconfig)


@contextlib.asynccontextmanager
async def cluster(config: ClusterConfig, progress: Progress = lambda _: None) -> AsyncGenerator[Cluster, None]:
    """Start a cluster, wait until it takes pods, and end it when the context is left.

    Raises:
        InvalidInput: a field of the configuration is wrong.
        Unavailable: a component did not start; the message holds the end of its log.
    """
    config.check()
    async with _started(config, progress) as running:
        yield running


@contextlib.asynccontextmanager
async def without_nodes(config: ClusterConfig) -> AsyncGenerator[Cluster, None]:
    """A control plane with all that belongs to it and no node, for nodes that are but objects. Raises as `cluster`."""
    config.check()
    async with _started(replace(config, nodes=0, cpu_nodes=0), lambda _: None) as running:
        yield running


@contextlib.asynccontextmanager
async def _started(config: ClusterConfig, progress: Progress) -> AsyncGenerator[Cluster, None]:
    node_names = tuple(f"node-{number}" for number in range(1, config.nodes + config.cpu_nodes + 1))
    users = {
        name: service_account(NAMESPACE, f"elastic-gpu-{name}") for name in ("webhook", "extender", "controller")
    } | {DASHBOARD: service_account(NAMESPACE, "elastic-gpu-dashboard"), VIEWER: User(VIEWER)}
    agents = {f"agent-{node}": service_account(NAMESPACE, "elastic-gpu-agent", node=node) for node in node_names}
    users |= agents | {f"kubelet-{node}": node_user(node) for node in node_names}
    async with contextlib.AsyncExitStack() as stack:
        state = stack.enter_context(state_directory(config.state_dir))
        state_dir = state.path
        taken = stack.enter_context(ports())
        progress("simulating the cards")
        machines = [_machine(stack, state_dir, node, config) for node in node_names]
        kept = stack.enter_context(kept_in_memory(state_dir, node_names))
        stack.enter_context(_janitor(state, [kept, *(one.state for one in machines)]))
        progress("starting the API server")
        addresses = _Addresses(*(taken.take() for _ in range(2)))
        credentials = extender_credentials(state_dir / EXTENDER_PKI)
        plane: ServerHandle | kubernetes.ControlPlane
        if config.kubernetes is None:
            plane = await stack.enter_async_context(_served(config, state_dir, users))
        else:
            plane = await stack.enter_async_context(
                kubernetes.control_plane(
                    config.kubernetes, state_dir, users, taken, port=config.port,
                    extender=f"127.0.0.1:{addresses.extender}", pki=credentials.directory,
                    pid_dir=state_dir / janitor.PID_FOLDER,
                )
            )  # fmt: skip
        if config.kubeconfig is not None:
            config.kubeconfig.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(plane.kubeconfig, config.kubeconfig)
        fleet = Fleet(state_dir / janitor.PID_FOLDER)
        stack.push_async_callback(_end_containers, state_dir)
        stack.push_async_callback(fleet.stop)
        running = Cluster(config, state_dir, plane, fleet, node_names, addresses.extender_url, credentials, taken)
        async with running.client() as client:
            await install(client, webhook_port=addresses.webhook)
            if isinstance(plane, kubernetes.ControlPlane):
                await plane.lead_to_loopback(client, NAMESPACE, WEBHOOK_SERVICE)
            progress("starting controller, webhook, extender, and a kubelet and an agent on every node")
            specs = _specs(running, machines, addresses)
            await fleet.start([one for one in specs if one.name not in agents])
            if isinstance(plane, kubernetes.ControlPlane):
                for node, (name, user) in zip(node_names, agents.items(), strict=True):
                    await plane.admit_for_node(client, name, user, node)
            await fleet.start([one for one in specs if one.name in agents])
            progress("waiting until every component is ready")
            await wait_ready(running, client)
        if isinstance(plane, ServerHandle):
            await stack.enter_async_context(_scheduler(running))
            await stack.enter_async_context(_controllers(running))
        stack.enter_context(seldom_searched())
        yield running


@dataclass(frozen=True)
class _Addresses:
    """Ports of what the control plane asks."""

    webhook: int
    extender: int

    @property
    def extender_url(self) -> str:
        return f"https://127.0.0.1:{self.extender}"


@contextlib.asynccontextmanager
async def _served(
    config: ClusterConfig, state_dir: Path, users: Mapping[str, User]
) -> AsyncGenerator[ServerHandle, None]:
    """Our API server, in this process."""
    ours = {
        "scheduler": User("system:kube-scheduler", ("system:authenticated",)), "controllers": CONTROLLERS
    }  # fmt: skip

    def resolve(_namespace: str, name: str, port: int) -> tuple[str, int] | None:
        return ("127.0.0.1", port) if name == WEBHOOK_SERVICE else None

    served = Config(directory=state_dir, port=config.port, users={**users, **ours}, resolve_service=resolve)
    async with serve(served) as server:
        if config.listener is not None:
            server.listeners.append(config.listener)
        yield server


def _machine(stack: contextlib.AsyncExitStack, state_dir: Path, node: str, config: ClusterConfig) -> simulator.Machine:
    """Simulate a node's cards until the stack unwinds."""
    number = int(node.rpartition("-")[2]) - 1
    profile = config.profiles[number % len(config.profiles)]
    directory = state_dir / "nodes" / node / "machine"
    count = config.cards_per_node if number < config.nodes else 0
    machine = simulator.create_machine(directory, profile, count=count, node_name=node)
    stack.callback(simulator.destroy, machine)
    return machine


def _specs(running: Cluster, machines: Sequence[simulator.Machine], addresses: _Addresses) -> list[ChildSpec]:
    """What to run, each component exactly as on a real cluster but for its addresses and directories."""
    config, state_dir = running.config, running.state_dir
    take = running.ports.take
    health = {name: take() for name in ("webhook", "controller", "extender")}
    running.ready_urls = {name: f"http://127.0.0.1:{port}/readyz" for name, port in health.items()}

    def spec(name: str, module: str, *arguments: str) -> ChildSpec:
        kubeconfig = state_dir / f"{name}.kubeconfig"
        common = ("--kubeconfig", str(kubeconfig), "--log-level", config.log_level)
        command, log_file = (*python_module(module, *arguments), *common), state_dir / "logs" / f"{name}.log"
        return ChildSpec(name, command, log_file, alone=name.startswith("kubelet-"))

    specs = [
        spec("controller", "egpu", "controller", "--listen", f"127.0.0.1:{health['controller']}",
             "--webhook-service", f"{WEBHOOK_SERVICE}:{addresses.webhook}"),
        spec("webhook", "egpu", "webhook", "--listen", f"127.0.0.1:{health['webhook']}",
             "--webhook-listen", f"127.0.0.1:{addresses.webhook}", "--vocabularies", ",".join(config.vocabularies)),
        spec("extender", "egpu", "extender", "--listen", f"127.0.0.1:{addresses.extender}",
             "--health-listen", f"127.0.0.1:{health['extender']}", *running.credentials.flags(),
             "--node-policy", config.node_policy, "--card-policy", config.card_policy),
    ]  # fmt: skip
    own_images = [] if config.images is None else ["--images", str(config.images.absolute())]
    for node, machine in zip(running.node_names, machines, strict=True):
        home = running.node_dir(node)
        agent = take()
        nvml = machine.driver_dir / "libnvidia-ml.so.1"
        running.ready_urls[f"agent-{node}"] = f"http://127.0.0.1:{agent}/readyz"
        asked = running.plane.kubelet_flags(take()) if isinstance(running.plane, kubernetes.ControlPlane) else ()
        mounting = ["--mount-usage"] if mounts.allowed(state_dir) else []
        specs += [
            spec(f"kubelet-{node}", "egpu.embedded.kubelet", "--node", node, "--kubelet-dir", str(home / "kubelet"),
                 "--driver-dir", str(machine.driver_dir), "--cpu", config.cpu, "--memory", config.memory,
                 "--cdi-dir", str(home / "cdi"), *own_images, *asked),
            ChildSpec(
                f"shim-{node}",
                python_module(
                    "egpu", "shim", "--kubelet-dir", str(home / "kubelet"), "--state-dir", str(home / "agent"),
                    "--driver-dir", str(machine.driver_dir), "--cgroup", "none", "--log-level", config.log_level,
                ),
                state_dir / "logs" / f"shim-{node}.log",
            ),
            spec(f"agent-{node}", "egpu", "agent", "--shim", "--node", node, "--node-ip", "127.0.0.1",
                 "--kubelet-dir", str(home / "kubelet"), "--state-dir", str(home / "agent"),
                 "--device-root", str(machine.device_dir), "--nvml-library", str(nvml), "--cdi-dir", str(home / "cdi"),
                 "--cgroup-root", str(home / "kubelet" / "cgroup"),
                 "--listen", f"127.0.0.1:{agent}", "--pool-pki", str(state_dir / PKI), *mounting,
                 "--vocabularies", ",".join(config.vocabularies)),
        ]  # fmt: skip
        authority.issue(state_dir / PKI, "server", node)
    return specs


@contextlib.asynccontextmanager
async def _scheduler(running: Cluster) -> AsyncGenerator[None, None]:
    """The scheduler loop, in this process."""
    kubeconfig = running.server.kubeconfigs["scheduler"]
    async with Client.from_kubeconfig(kubeconfig) as client, running.extender() as extender:
        task = asyncio.create_task(Scheduler(client, extender).run(), name="scheduler")
        try:
            yield
        finally:
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task


@contextlib.asynccontextmanager
async def _controllers(running: Cluster) -> AsyncGenerator[None, None]:
    """The controllers of the kinds that make pods, in this process."""
    async with Client.from_kubeconfig(running.server.kubeconfigs["controllers"]) as client:
        task = asyncio.create_task(Controllers(client).run(), name="controllers")
        try:
            yield
        finally:
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task


@contextlib.contextmanager
def _janitor(state: StateDir, remove: Sequence[Path]) -> Generator[None, None, None]:
    """A process that cleans up should we be killed. It also has the last look when we end by ourselves."""
    paths = [*([state.path] if state.temporary else []), *remove]
    # -S: it needs nothing but the standard library, and should be small.
    command = [sys.executable, "-S", janitor.__file__, str(state.path), *map(str, paths)]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, start_new_session=True, pass_fds=[state.lock])
    try:
        yield
    finally:
        assert process.stdin is not None
        process.stdin.close()
        process.wait()


async def _end_containers(state_dir: Path) -> None:
    """End what the stopped kubelets left running, as they must."""
    for kubelet_dir in await asyncio.to_thread(lambda: sorted(state_dir.glob("nodes/*/kubelet"))):
        with contextlib.suppress(ElasticGPUError):
            await end_all(kubelet_dir)
