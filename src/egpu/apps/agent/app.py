"""Puts an agent together and runs it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Mapping
from functools import partial
from typing import Any

import structlog

from egpu.adapters import listening, mounts
from egpu.adapters.compute_policy import set_time_slice
from egpu.adapters.executors.confinement import LAYERS, Confinement
from egpu.adapters.executors.images import Images
from egpu.adapters.executors.parents import Parent, ThisProcess
from egpu.adapters.executors.supervisor import ExecutorSupervisor
from egpu.adapters.files import write_atomically
from egpu.adapters.kubelet.podresources import PodResources
from egpu.adapters.kubelet.registrar import Registrar
from egpu.adapters.kubernetes import Client
from egpu.adapters.kubernetes.events import EventRecorder
from egpu.adapters.local.election import Rank, SharingElection
from egpu.adapters.memory_limits import MemoryLimits
from egpu.adapters.mig import NvmlInstances
from egpu.adapters.monitoring import Guard, monitoring_app, serve_monitoring
from egpu.adapters.mps import MpsControl
from egpu.adapters.nvml import NvmlInventory
from egpu.adapters.nvml_hardware import CardHardware, read_hardware
from egpu.adapters.pool.data import fastest_link_mbps
from egpu.adapters.pool.security import Credentials
from egpu.adapters.shim import MPS_FOLDER, ShimDirectory
from egpu.adapters.shim.orders import Shim
from egpu.apps.agent.cards.instances import RECORD_FILE, Instances, InstanceSource
from egpu.apps.agent.cards.inventory import CardSource, Inventory
from egpu.apps.agent.cards.mps import MpsServers
from egpu.apps.agent.cards.publisher import PoolMember, Publisher
from egpu.apps.agent.cards.time_slices import TimeSlices
from egpu.apps.agent.config import AgentConfig
from egpu.apps.agent.limits.compute import ComputeSharing
from egpu.apps.agent.limits.driver import DriverLimits
from egpu.apps.agent.limits.ended import EndedPrograms
from egpu.apps.agent.limits.memory import MemoryReconciler
from egpu.apps.agent.metrics import AgentMetrics
from egpu.apps.agent.pods import NodePods
from egpu.apps.agent.serving.bridges import SlotBridges
from egpu.apps.agent.serving.pods import PodService, ServedContainer
from egpu.apps.agent.serving.slots import SlotExecutors, SlotOwner
from egpu.apps.agent.slots.cdi import SlotSpecs
from egpu.apps.agent.slots.devices import DeviceFiles
from egpu.apps.agent.slots.directories import DEVICES, Slots
from egpu.apps.agent.slots.injection import Injection
from egpu.apps.agent.slots.offering import Offering
from egpu.apps.agent.slots.owners import Owners
from egpu.apps.agent.slots.plugin import SlotPlugin
from egpu.apps.agent.slots.preparer import Preparer
from egpu.apps.agent.slots.resizer import SlotResizer
from egpu.apps.agent.slots.sweeper import Sweeper
from egpu.core.provisioners.preparation import CardInstance
from egpu.errors import ElasticGPUError, InvalidInput, NotSupported
from egpu.runtime.keeping import seldom_searched
from egpu.runtime.supervisor import Supervisor

log = structlog.get_logger(__name__)

ADDRESS_FILE = "agent.address"
SHIM_RETRY_SECONDS = 0.5
XIDS_FILE = "xids.json"


class Agent:
    """Every part of one node's agent. `cards` and `client` come from outside, so that tests can give others."""

    def __init__(
        self,
        config: AgentConfig,
        *,
        client: Client,
        cards: CardSource,
        mig: InstanceSource | None = None,
        hardware: Callable[[], Mapping[str, CardHardware]] | None = None,
    ) -> None:
        """`hardware`: as of AgentMetrics."""
        self.config = config
        self.client = client
        self.slots = Slots(config.slots_dir, mount_usage=config.mount_usage)
        self.devices = DeviceFiles(config.device_root, config.state_dir)
        self.specs = SlotSpecs(config.cdi_directories, self.devices, mps_shm=config.mps_shm)
        self.injection = Injection(config.cdi)
        self.instances = None if mig is None else Instances(mig, config.state_dir / RECORD_FILE)
        credentials = pool_credentials(config)
        self.inventory = Inventory(cards, interval_seconds=config.inventory_seconds, driver_needed=credentials is None)
        election = None if config.sharing_dir is None else SharingElection(config.sharing_dir, Rank.AGENT)
        self.compute = ComputeSharing(self.slots, election=election)
        self.metrics = self._metrics(hardware)
        shim_directory = ShimDirectory.of(config.state_dir) if config.shim else None
        self._shim = Shim(shim_directory) if shim_directory is not None else None
        parent = self._shim or self._own_children()
        own_executors = ExecutorSupervisor(config.state_dir / "executors", SlotOwner, parent=parent, private=True)
        self.executors = SlotExecutors(own_executors, self.slots)
        watched: list[ExecutorSupervisor[Any]] = [own_executors]
        pods = NodePods(client, config.node)
        events = EventRecorder(client, component="elastic-gpu-agent")
        self.mps = self._mps(events)
        self.bridges: SlotBridges | None = None
        self.serving: PodService | None = None
        if credentials is not None:
            self.bridges = SlotBridges(config.state_dir / "bridges", credentials, client, self.slots)
            served = ExecutorSupervisor(config.state_dir / "served", ServedContainer, parent=parent)
            watched.append(served)
            self.serving = self._serving(served, pods, credentials)
        self.memory = MemoryReconciler(self.slots, cards, watched, events=events)
        self.ended = EndedPrograms(self.slots)
        set_length = partial(set_time_slice, nvml_library=config.nvml_library)
        self.time_slices = TimeSlices(self.slots, config.state_dir / "time-slices", set_length)
        kubelet = PodResources(config.kubelet_dir)
        self.plugin = self._plugin(kubelet, pods)
        self.registrar: Registrar | Offering = (
            Offering(self.plugin, shim_directory, self._shim)
            if shim_directory is not None and self._shim is not None
            else Registrar(self.plugin, config.kubelet_dir)
        )
        self.publisher = Publisher(
            client,
            config.node,
            self.inventory,
            events=events,
            interval_seconds=config.publish_seconds,
            learn=self.injection.learn,
            vocabularies=config.vocabularies,
            instances=self.instances,
            given=self._given_instances,
            mps=self.mps.why_not,
        )
        self.resizer = self._resizer()
        self.sweeper = Sweeper(
            slots=self.slots,
            specs=self.specs,
            holdings=kubelet.pods,
            pods=pods,
            slot_lock=self.plugin.slot_lock,
            interval_seconds=config.sweep_seconds,
        )

    def _metrics(self, hardware: Callable[[], Mapping[str, CardHardware]] | None) -> AgentMetrics:
        return AgentMetrics(
            node=self.config.node,
            node_ip=self.config.node_ip,
            slots=self.slots,
            inventory=self.inventory,
            demand=self.compute.demand,
            findings=lambda: self.memory.findings,
            served=lambda: [] if self.serving is None else self.serving.executors(),
            hardware=hardware,
        )

    def _mps(self, events: EventRecorder) -> MpsServers:
        starter = None if self._shim is None else self._shim.start_mps
        control = MpsControl(self.config.nvml_library, starter=starter)
        return MpsServers(self.slots, self.config.state_dir / MPS_FOLDER, control, events=events)

    def _serving(
        self, served: ExecutorSupervisor[ServedContainer], pods: NodePods, credentials: Credentials
    ) -> PodService:
        return PodService(
            self.config.node,
            executors=served,
            inventory=self.inventory,
            pods=pods,
            credentials=credentials,
            listen=self.config.pool_listen,
            taken=self.mps.leave,
        )

    def _own_children(self) -> Parent:
        config = self.config
        confinement = Confinement(config.confinement)
        self._told(confinement.told, confinement.lacks)
        images = Images(config.state_dir / "images", config.image_cache_mib)
        return ThisProcess(None if config.nvml_library is None else config.nvml_library.parent, confinement, images)

    def _told(self, executors: str, lacks: Collection[str]) -> None:
        """What holds executors here."""
        self.metrics.executors_grouped.set("cgroup" not in lacks)
        for what in LAYERS:
            self.metrics.executors_lack.labels(what).set(what in lacks)
        log.info("executors are held", by=executors)

    def _plugin(self, kubelet: PodResources, pods: NodePods) -> SlotPlugin:
        """What kubelet asks, and who fills its slots."""
        config = self.config
        return SlotPlugin(
            config,
            inventory=self.inventory,
            devices=self.devices,
            owners=Owners(config.node, holdings=kubelet.pods, pods=pods, prepared=self.slots.owners_newest_first),
            preparer=Preparer(
                slots=self.slots,
                state_dir=config.state_dir,
                devices=self.devices,
                inventory=self.inventory,
                node=config.node,
                executors=self.executors,
                bridges=self.bridges,
                instances=self.instances,
                specs=self.specs,
                injection=self.injection,
                time_slices=self.time_slices,
                driver_limits=DriverLimits(self.slots, config.cgroup_root, MemoryLimits(config.nvml_library).set),
                mps=self.mps,
            ),
            metrics=self.metrics,
            specs=self.specs,
            injection=self.injection,
        )

    def _given_instances(self) -> frozenset[CardInstance]:
        """The instances of MIG that this node's containers have."""
        shares = [share for record in self.slots.records() for share in record.allocation.cards]
        return frozenset(CardInstance(share.uuid, share.instance) for share in shares if share.instance is not None)

    def _resizer(self) -> SlotResizer:
        return SlotResizer(
            self.client,
            self.config.node,
            inventory=self.inventory,
            slots=self.slots,
            executors=self.executors,
            bridges=self.bridges,
            serving=self.serving,
            memory=self.memory,
            slot_lock=self.plugin.slot_lock,
        )

    def not_ready(self) -> str | None:
        """Why containers cannot be prepared here now; None when they can."""
        if not self.inventory.version:
            return "the cards have not been read"
        if not self.publisher.published:
            return "the cards have not been published"
        if not self.registrar.registered:
            return "not registered with kubelet"
        return None

    async def run(self, supervisor: Supervisor) -> None:
        """Run until the supervisor is stopped. Raises NotSupported when this node cannot keep cards apart, or nothing
        can be mounted or written where it should be."""
        await asyncio.to_thread(self.devices.nowhere)
        self.devices.discard_unused(self.slots.path(slot_id) / DEVICES for slot_id in self.slots.ids())
        if self.config.cdi != "never":
            await asyncio.to_thread(self.specs.open)
        if self.config.mount_usage and not await asyncio.to_thread(mounts.allowed, self.config.slots_dir):
            raise NotSupported(f"{self.config.slots_dir}: nothing can be mounted here; go without --mount-usage")
        sock = listening.open_socket(listening.Listen.parse(self.config.listen))
        address = str(listening.bound(sock))
        write_atomically(self.config.state_dir / ADDRESS_FILE, f"{address}\n".encode())
        log.info("agent starts", node=self.config.node, listen=address)
        shown = monitoring_app(Guard(self.client), self.not_ready, registry=self.metrics.registry)
        supervisor.add("web", serve_monitoring(shown, sock))
        if self._shim is not None:
            shim = await self._shim.started(retry_seconds=SHIM_RETRY_SECONDS)
            self._told(shim.held, shim.lacks)
        await self.executors.open()
        await self._recover()
        if self.serving is not None:
            await self._join_pool(self.serving)
        supervisor.add("inventory", self.inventory.run())
        supervisor.add("publisher", self.publisher.run())
        supervisor.add("registrar", self._register())
        supervisor.add("sweeper", self.sweeper.run())
        supervisor.add("resizer", self.resizer.run())
        supervisor.add("compute", self.compute.run())
        supervisor.add("memory", self.memory.run())
        supervisor.add("ended", self.ended.run())
        supervisor.add("metrics", self.metrics.run())
        supervisor.add("time-slices", self.time_slices.run())
        supervisor.add("mps", self.mps.run())
        supervisor.add("executors", self.executors.run())
        if self.serving is not None and self.bridges is not None:
            supervisor.add("listener", self.serving.listener.serve())
            supervisor.add("serving", self.serving.run())
            supervisor.add("bridges", self.bridges.run())
        await supervisor.run()

    async def _recover(self) -> None:
        """A driver that does not answer now is asked again before anything is made on its cards."""
        if self.instances is not None:
            try:
                await self.instances.recover()
            except ElasticGPUError as error:
                log.warning("what may be half made of a card's instances stays for now", reason=str(error))

    async def _register(self) -> None:
        """kubelet asks as soon as it knows us, and keeps what it is answered for as long as the pod is there."""
        await self.injection.known()
        await self.registrar.run()

    async def _join_pool(self, serving: PodService) -> None:
        """Listen before anybody is told that we do."""
        await serving.open()
        self.publisher.pool = PoolMember(
            address=self.config.pool_advertise or str(serving.listener.address),
            link_mbps=self.config.pool_link_mbps or fastest_link_mbps(),
            slots=self.config.slots,
        )


def pool_credentials(config: AgentConfig) -> Credentials | None:
    """This node's certificate of the pool; None when it takes no part. Raises InvalidInput when it has none there."""
    if config.pool_pki is None:
        return None
    names = ("ca.crt", f"server-{config.node}.crt", f"server-{config.node}.key")
    ca, certificate, key = (config.pool_pki / name for name in names)
    missing = [str(path) for path in (ca, certificate, key) if not path.is_file()]
    if missing:
        made = f"egpu certificate server {config.node}"
        raise InvalidInput("pool-pki", f"there is no {missing[0]}; {made} makes it, where the pool's authority is kept")
    return Credentials(ca=ca, certificate=certificate, key=key)


async def run(config: AgentConfig) -> None:
    """Run an agent until SIGTERM or SIGINT. Raises what makes it useless to go on."""
    async with Client.from_kubeconfig(config.kubeconfig) as client:
        cards = NvmlInventory(config.nvml_library, kept=config.state_dir / XIDS_FILE, instances=True)
        hardware = (lambda: read_hardware(cards)) if config.hardware_metrics else None
        agent = Agent(config, client=client, cards=cards, mig=NvmlInstances(cards.on_card), hardware=hardware)
        with seldom_searched():
            await agent.run(Supervisor())
