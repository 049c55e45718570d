"""A small cluster: an API server in this process, simulated nodes, and the components of a product, if there are any.

The API server, its controllers and the scheduler can be Kubernetes's own programs (see `egpu_sim.cluster.kubernetes`).

    state directory
      admin.kubeconfig …      one kubeconfig per identity
      logs/NAME.log           each component's log
      pids/NAME               `PID START_TIME`, for the janitor
      nodes/NODE/machine      the simulated machine: driver directory, device files
                /kubelet      kubelet's directory: sockets, volumes, logs of containers; `run` and `cgroup` lead to
                              shared memory

A cluster keeps nothing for the next one and leaves nothing behind: see `egpu_sim.cluster.janitor`.
"""

from __future__ import annotations

import asyncio
import contextlib
import shutil
import ssl
import subprocess
import sys
from collections.abc import AsyncGenerator, Callable, Coroutine, Generator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Generic, TypeVar

from egpu_base.errors import ElasticGPUError, InvalidInput, NotSupported
from egpu_base.kubernetes import Client
from egpu_base.runtime.keeping import seldom_searched
from egpu_base.runtime.restarts import kept_running
from egpu_sim.cluster import janitor, kubernetes
from egpu_sim.cluster.apiserver import Config, ServerHandle, serve
from egpu_sim.cluster.apiserver.access.authorization import Listener
from egpu_sim.cluster.apiserver.access.identities import node_user
from egpu_sim.cluster.apiserver.calls import User
from egpu_sim.cluster.controllers import Controllers
from egpu_sim.cluster.forked import fork_server
from egpu_sim.cluster.kubelet import end_all, images
from egpu_sim.cluster.ports import Ports, ports
from egpu_sim.cluster.processes import ChildSpec, Fleet
from egpu_sim.cluster.readiness import wait_ready
from egpu_sim.cluster.scheduler.extender import Extender
from egpu_sim.cluster.scheduler.loop import Scheduler
from egpu_sim.cluster.scheduler.own import OwnScheduler
from egpu_sim.cluster.statedir import StateDir, kept_in_memory, state_directory
from egpu_sim.machines import machine as simulator
from egpu_sim.machines.models import suggestion

OURS = {
    "scheduler": User("system:kube-scheduler", ("system:authenticated",)),
    "controllers": User("system:kube-controller-manager", ("system:masters", "system:authenticated")),
}
"""Users of the parts in this process, by the names of their kubeconfigs."""
KUBELET = "egpu_sim.cluster.kubelet"
"""The module of the kubelets' processes."""
MAX_NODES = 64
MAX_CARDS_PER_NODE = 16

Progress = Callable[[str], None]


@dataclass(frozen=True)
class ClusterConfig:
    """`cpu_nodes` come after `nodes` and have no cards. Nodes take `profiles` in turn, so two profiles give a mixed
    cluster. `state_dir` None is a temporary directory, removed at the end. `kubeconfig`: a copy of the admin's goes
    there. `port` 0 is any free one. `images` is the user's table of programs by image. `kubernetes` is a directory of
    Kubernetes's own programs for the control plane."""

    nodes: int = 2
    cards_per_node: int = 4
    cpu_nodes: int = 0
    profiles: tuple[str, ...] = ("A100-80G",)
    cpu: str = "64"
    memory: str = "256Gi"
    port: int = 0
    images: Path | None = None
    kubernetes: Path | None = field(default_factory=kubernetes.named_by_environment)
    state_dir: Path | None = None
    kubeconfig: Path | None = None
    log_level: str = "info"
    listener: Listener | None = None
    """Called with every request to our API server and the authorizer's answer."""

    def check(self) -> None:
        """Check the fields. Raises InvalidInput naming the wrong one."""
        if not 1 <= self.nodes <= MAX_NODES:
            raise InvalidInput("nodes", f"{self.nodes} is not between 1 and {MAX_NODES}")
        if not 0 <= self.cpu_nodes <= MAX_NODES - self.nodes:
            raise InvalidInput("cpu-nodes", f"{self.cpu_nodes} is not between 0 and {MAX_NODES - self.nodes}")
        if not 0 <= self.cards_per_node <= MAX_CARDS_PER_NODE:
            raise InvalidInput("gpus", f"{self.cards_per_node} is not between 0 and {MAX_CARDS_PER_NODE}")
        known = simulator.profiles()
        for profile in self.profiles:
            if profile.lower() not in map(str.lower, known):
                like = suggestion(profile)
                raise InvalidInput("profile", f"{profile!r} is not known{like}; known are {', '.join(sorted(known))}")
        if self.images is not None:
            images.read(self.images)
        if self.kubernetes is not None:
            kubernetes.check(self.kubernetes)


class Components:
    """The components of a product on the cluster. This class has none; a subclass adds some.

    The cluster calls the methods in the order below."""

    def prepare(self, state_dir: Path, ports: Ports) -> None:
        """Make everything that the components need before the API server starts, such as certificates."""

    def users(self) -> dict[str, User]:
        """Return the components' users by the names of their kubeconfigs."""
        return {}

    def node_users(self, node: str) -> dict[str, User]:
        """Return the users on a node, whose tokens name the node. Their components start after the node registers."""
        return {}

    def resolve_service(self, namespace: str, name: str, port: int) -> tuple[str, int] | None:
        """Return the address behind a Service that a webhook names."""
        return None

    def scheduler_config(self, kubeconfig: str) -> dict[str, Any]:
        """Return the configuration of Kubernetes's own scheduler."""
        kind = {"apiVersion": "kubescheduler.config.k8s.io/v1", "kind": "KubeSchedulerConfiguration"}
        return {**kind, "leaderElection": {"leaderElect": False}, "clientConnection": {"kubeconfig": kubeconfig}}

    async def install(self, running: Cluster[Any], client: Client) -> None:
        """Create the components' objects, as an administrator."""

    def modules(self) -> tuple[str, ...]:
        """Return the Python modules of these processes, to import once for all of them."""
        return ()

    def specs(self, running: Cluster[Any]) -> list[ChildSpec]:
        """Return the processes to run. Those named in `node_users` start last."""
        return []

    async def missing(self, running: Cluster[Any], client: Client) -> tuple[str, str] | None:
        """Return what the API does not have yet, and the process whose log may say why; None when it has everything."""
        return None

    def extender(self) -> Extender:
        """Return the extender of the components' own scheduler, or of the cluster's if there is none. This one manages
        no resource, so no scheduler calls it."""
        return _nobody()

    def own_scheduler(self) -> OwnScheduler | None:
        """Return a scheduler to run beside the cluster's on our API server. Its user is one of `users`."""
        return None


def _nobody() -> Extender:
    return Extender("https://127.0.0.1", tls=ssl.create_default_context(), managed_resources=frozenset())


C = TypeVar("C", bound=Components)


@dataclass
class Cluster(Generic[C]):
    """A running cluster. `fleet` holds the processes by name: kubelet-NODE, and the components'. `ready_urls` has the
    components' readiness probes by name."""

    config: ClusterConfig
    components: C
    state_dir: Path
    plane: ServerHandle | kubernetes.ControlPlane
    fleet: Fleet
    machines: Mapping[str, simulator.Machine]
    ports: Ports
    ready_urls: dict[str, str] = field(default_factory=dict[str, str])

    @property
    def node_names(self) -> tuple[str, ...]:
        """The nodes' names, those with cards first."""
        return tuple(self.machines)

    @property
    def server(self) -> ServerHandle:
        """Our API server, for tests that look into it or break it. Raises NotSupported for Kubernetes's own."""
        if not isinstance(self.plane, ServerHandle):
            raise NotSupported("Kubernetes's own API server is another process")
        return self.plane

    @property
    def kubeconfig(self) -> Path:
        """The admin's."""
        return self.plane.kubeconfig

    def node_dir(self, node: str) -> Path:
        """Return the directory of one simulated node."""
        return self.state_dir / "nodes" / node

    def client(self) -> Client:
        """Return a client with the admin's rights."""
        return Client.from_kubeconfig(self.kubeconfig)

    def spec(self, name: str, module: str, *arguments: str) -> ChildSpec:
        """Return a process that runs a Python module with the kubeconfig of its name."""
        given = ("--kubeconfig", str(self.state_dir / f"{name}.kubeconfig"), "--log-level", self.config.log_level)
        log_file = self.state_dir / "logs" / f"{name}.log"
        return ChildSpec(name, (module, *arguments, *given), log_file, module=True, alone=name.startswith("kubelet-"))


@contextlib.asynccontextmanager
async def started(
    config: ClusterConfig, components: C, progress: Progress = lambda _: None
) -> AsyncGenerator[Cluster[C], None]:
    """Start a cluster, wait until it takes pods, and end it when the context is left. `config` is checked already.

    Raises:
        InvalidInput: the state directory or the port cannot be used.
        Unavailable: a component did not start; the message holds the end of its log.
    """
    node_names = [f"node-{number}" for number in range(1, config.nodes + config.cpu_nodes + 1)]
    on_nodes = [(node, name, user) for node in node_names for name, user in components.node_users(node).items()]
    async with contextlib.AsyncExitStack() as stack:
        state = stack.enter_context(state_directory(config.state_dir))
        state_dir = state.path
        taken = stack.enter_context(ports())
        modules = (KUBELET, *components.modules())
        forks = await stack.enter_async_context(fork_server(modules, state_dir / "logs" / "fork-server.log"))
        progress("simulating the cards")
        machines = {node: _machine(stack, state_dir, node, config) for node in node_names}
        kept = stack.enter_context(kept_in_memory(state_dir, node_names))
        stack.enter_context(_janitor(state, [kept, *(one.state for one in machines.values())]))
        progress("starting the API server")
        components.prepare(state_dir, taken)
        users = components.users() | {name: user for _, name, user in on_nodes}
        users |= {f"kubelet-{node}": node_user(node) for node in node_names}
        plane = await stack.enter_async_context(_control_plane(config, components, state_dir, users, taken))
        if config.kubeconfig is not None:
            config.kubeconfig.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(plane.kubeconfig, config.kubeconfig)
        fleet = Fleet(state_dir / janitor.PID_FOLDER, forks)
        stack.push_async_callback(_end_containers, state_dir)
        stack.push_async_callback(fleet.stop)
        running = Cluster(config, components, state_dir, plane, fleet, machines, taken)
        async with running.client() as client:
            await components.install(running, client)
            progress("starting a kubelet on every node, and the components")
            specs = [*_kubelets(running), *components.specs(running)]
            last = {name for _, name, _ in on_nodes}
            await fleet.start([one for one in specs if one.name not in last])
            if isinstance(plane, kubernetes.ControlPlane):
                for node, name, user in on_nodes:
                    await plane.admit_for_node(client, name, user, node)
            await fleet.start([one for one in specs if one.name in last])
            if isinstance(plane, ServerHandle):
                await stack.enter_async_context(_schedulers(plane, components))
            progress("waiting until every component is ready")
            await wait_ready(running, client)
        if isinstance(plane, ServerHandle):
            await stack.enter_async_context(_controllers(plane))
        stack.enter_context(seldom_searched())
        yield running


@contextlib.asynccontextmanager
async def _control_plane(
    config: ClusterConfig, components: Components, state_dir: Path, users: Mapping[str, User], taken: Ports
) -> AsyncGenerator[ServerHandle | kubernetes.ControlPlane, None]:
    """Serve our API server, in this process; or start Kubernetes's own programs."""
    if config.kubernetes is not None:
        async with kubernetes.control_plane(
            config.kubernetes, state_dir, users, taken, port=config.port,
            scheduler_config=components.scheduler_config, pid_dir=state_dir / janitor.PID_FOLDER,
        ) as plane:  # fmt: skip
            yield plane
        return
    resolve = components.resolve_service
    served = Config(directory=state_dir, port=config.port, users={**users, **OURS}, resolve_service=resolve)
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


def _kubelets(running: Cluster[Any]) -> Generator[ChildSpec]:
    """Yield the kubelets' processes."""
    config = running.config
    own_images = [] if config.images is None else ["--images", str(config.images.absolute())]
    for node, machine in running.machines.items():
        home, plane = running.node_dir(node), running.plane
        asked = plane.kubelet_flags(running.ports.take()) if isinstance(plane, kubernetes.ControlPlane) else ()
        yield running.spec(
            f"kubelet-{node}", KUBELET, "--node", node, "--kubelet-dir", str(home / "kubelet"),
            "--driver-dir", str(machine.driver_dir), "--cpu", config.cpu, "--memory", config.memory,
            "--cdi-dir", str(home / "cdi"), *own_images, *asked,
        )  # fmt: skip


@contextlib.asynccontextmanager
async def _schedulers(server: ServerHandle, components: Components) -> AsyncGenerator[None, None]:
    """Run the scheduler, in this process, and the components' own."""
    own = components.own_scheduler()
    async with contextlib.AsyncExitStack() as stack:
        client = await stack.enter_async_context(Client.from_kubeconfig(server.kubeconfigs["scheduler"]))
        extender = await stack.enter_async_context(components.extender())
        if own is not None:
            asked, nobody = extender, await stack.enter_async_context(_nobody())
            its = await stack.enter_async_context(Client.from_kubeconfig(server.kubeconfigs[own.user]))
            await stack.enter_async_context(_task(lambda: own.run(its, asked), own.name))
            extender = nobody
        await stack.enter_async_context(_task(lambda: Scheduler(client, extender).run(), "scheduler"))
        yield


@contextlib.asynccontextmanager
async def _controllers(server: ServerHandle) -> AsyncGenerator[None, None]:
    """Run the controllers, in this process."""
    async with (
        Client.from_kubeconfig(server.kubeconfigs["controllers"]) as client,
        _task(lambda: Controllers(client).run(), "controllers"),
    ):
        yield


@contextlib.asynccontextmanager
async def _task(work: Callable[[], Coroutine[Any, Any, None]], name: str) -> AsyncGenerator[None, None]:
    """Run `work` until the context is left, and start it again if it ends before."""
    task = asyncio.create_task(kept_running(name, work), name=name)
    try:
        yield
    finally:
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task


@contextlib.contextmanager
def _janitor(state: StateDir, remove: Sequence[Path]) -> Generator[None, None, None]:
    """Start a process that cleans up if this one is killed. It also checks once more after a regular end."""
    paths = [*([state.path] if state.temporary else []), *remove]
    # -S keeps it small: it needs only the standard library.
    command = [sys.executable, "-S", janitor.__file__, str(state.path), *map(str, paths)]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, start_new_session=True, pass_fds=[state.lock])
    try:
        yield
    finally:
        assert process.stdin is not None
        process.stdin.close()
        process.wait()


async def _end_containers(state_dir: Path) -> None:
    """End the containers that the stopped kubelets left running, as kubelets must."""
    for kubelet_dir in await asyncio.to_thread(lambda: sorted(state_dir.glob("nodes/*/kubelet"))):
        with contextlib.suppress(ElasticGPUError):
            await end_all(kubelet_dir)
