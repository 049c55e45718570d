"""Assembles an agent and runs it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Mapping
from functools import partial
from typing import Any

import structlog

from egpu.adapters.cards.compute_policy import set_time_slice
from egpu.adapters.cards.hardware import CardHardware, read_hardware
from egpu.adapters.cards.memory_limits import MemoryLimits
from egpu.adapters.cards.mig import NvmlInstances
from egpu.adapters.cards.mps import MpsControl
from egpu.adapters.cards.nvml import NvmlInventory
from egpu.adapters.executors.confinement import Confinement
from egpu.adapters.executors.images import Images
from egpu.adapters.executors.libraries import found, library_path
from egpu.adapters.executors.parents import Parent, ThisProcess
from egpu.adapters.executors.supervisor import ExecutorSupervisor
from egpu.adapters.local.election import Rank, SharingElection
from egpu.adapters.pool.data import fastest_link_mbps
from egpu.adapters.pool.security import Credentials
from egpu.adapters.registrar import Registrar
from egpu.adapters.shim import MPS_FOLDER, PublishedAmounts, ShimDirectory
from egpu.adapters.shim.orders import Shim
from egpu.adapters.slices.host_memory import parking_memory_mib
from egpu.api import names
from egpu.apps.agent.cards.inventory import CardSource, Inventory
from egpu.apps.agent.cards.mig_instances import RECORD_FILE, Instances, InstanceSource
from egpu.apps.agent.cards.mps_servers import MpsServers
from egpu.apps.agent.cards.publisher import PoolMember, Publisher
from egpu.apps.agent.cards.time_slices import TimeSlices
from egpu.apps.agent.config import AgentConfig, pool_credentials
from egpu.apps.agent.dra.allocator import Allocator
from egpu.apps.agent.dra.users import ClaimUsers
from egpu.apps.agent.dra.way import ByPlugin, by_claims
from egpu.apps.agent.farewell import Farewell
from egpu.apps.agent.limits.compute import ComputeSharing
from egpu.apps.agent.limits.delay_events import DelayEvents
from egpu.apps.agent.limits.driver import DriverLimits
from egpu.apps.agent.limits.ended_programs import EndedPrograms
from egpu.apps.agent.limits.memory import MemoryReconciler
from egpu.apps.agent.limits.rooms import CardRooms
from egpu.apps.agent.metrics import AgentMetrics
from egpu.apps.agent.node_pods import NodePods
from egpu.apps.agent.serving.bridges import SlotBridges
from egpu.apps.agent.serving.pod_service import PodService, ServedContainer
from egpu.apps.agent.serving.slot_executors import SlotExecutors, SlotOwner
from egpu.apps.agent.slots.cdi import SlotSpecs
from egpu.apps.agent.slots.devices import DeviceFiles
from egpu.apps.agent.slots.directories import DEVICES, Slots
from egpu.apps.agent.slots.former import FormerUsers
from egpu.apps.agent.slots.injection import Injection
from egpu.apps.agent.slots.offering import Offering
from egpu.apps.agent.slots.owners import Owners
from egpu.apps.agent.slots.parker import SlotParker
from egpu.apps.agent.slots.plugin import SlotPlugin
from egpu.apps.agent.slots.preparer import Preparer
from egpu.apps.agent.slots.resizer import SlotResizer
from egpu.apps.agent.slots.sweeper import Sweeper
from egpu.apps.agent.standing import NodeStanding
from egpu.apps.agent.startup_taint import StartupTaint
from egpu.core.provisioners.preparation import CardInstance
from egpu_base.errors import ElasticGPUError, NotSupported
from egpu_base.http import listening
from egpu_base.kubelet.podresources import PodResources
from egpu_base.kubernetes import Client
from egpu_base.kubernetes.events import EventRecorder
from egpu_base.monitoring import Guard, monitoring_app, serve_monitoring
from egpu_base.runtime.keeping import seldom_searched
from egpu_base.runtime.supervisor import Supervisor
from egpu_base.system import mounts
from egpu_base.system.files import write_atomically

log = structlog.get_logger(__name__)

ADDRESS_FILE = "agent.address"
ALLOCATOR_FILE = "allocator"
SHIM_RETRY_SECONDS = 0.5
XIDS_FILE = "xids.json"


class Agent:
    """All parts of one node's agent. `cards` and `client` are parameters so that tests can replace them."""

    def __init__(
        self,
        config: AgentConfig,
        *,
        client: Client,
        cards: CardSource,
        mig: InstanceSource | None = None,
        hardware: Callable[[], Mapping[str, CardHardware]] | None = None,
    ) -> None:
        """`hardware`: as in AgentMetrics."""
        self.config = config
        self.client = client
        self.slots = Slots(config.slots_dir, mount_usage=config.mount_usage)
        self.devices = DeviceFiles(config.device_root, config.state_dir)
        self.specs = SlotSpecs(config.cdi_directories, self.devices)
        self.injection = Injection(config.cdi)
        self.instances = None if mig is None else Instances(mig, config.state_dir / RECORD_FILE)
        credentials = pool_credentials(config)
        self.inventory = Inventory(cards, interval_seconds=config.inventory_seconds, driver_needed=credentials is None)
        election = None if config.sharing_dir is None else SharingElection(config.sharing_dir, Rank.AGENT)
        self.compute = ComputeSharing(self.slots, election=election)
        self.metrics = self._metrics(hardware)
        shim_directory = ShimDirectory.of(config.state_dir) if config.shim else None
        self._shim = Shim(shim_directory) if shim_directory is not None else None
        self.amounts = PublishedAmounts(None if shim_directory is None else shim_directory.amounts)
        parent = self._shim or self._own_children()
        own_executors = ExecutorSupervisor(config.state_dir / "executors", SlotOwner, parent=parent, private=True)
        self.executors = SlotExecutors(own_executors, self.slots)
        pods = NodePods(client, config.node)
        events = EventRecorder(client, component="elastic-gpu-agent")
        self.former = FormerUsers(self.slots, pods, cards.processes, executors=self.executors, events=events)
        watched: list[ExecutorSupervisor[Any]] = [own_executors]
        self.mps = self._mps(events)
        self.bridges: SlotBridges | None = None
        self.serving: PodService | None = None
        if credentials is not None:
            self.bridges = SlotBridges(config.state_dir / "bridges", credentials, client, self.slots)
            served = ExecutorSupervisor(config.state_dir / "served", ServedContainer, parent=parent)
            watched.append(served)
            self.compute.served = served.running
            self.serving = self._serving(served, pods, credentials)
            self.former.served = self.serving.leave
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
        self.resizer = self._resizer()
        self.memory.pods_of = ClaimUsers(self.resizer.pods).of
        self.parker = SlotParker(self.slots, self.resizer.pods, events)
        self.rooms = CardRooms(self.slots, self.resizer.pods, events, self.memory)
        self.delays = DelayEvents(self.slots, self.resizer.pods, events, self.compute.long_kernels)
        self.allocator = self._allocator(events, pods)
        self.standing = self._standing(events, kubelet)
        self.publisher = self._publisher(events)
        self.publisher.before_offering = self.amounts.note
        self.sweeper = Sweeper(
            slots=self.slots,
            specs=self.specs,
            holdings=kubelet.pods,
            pods=pods,
            slot_lock=self.plugin.slot_lock,
            interval_seconds=config.sweep_seconds,
            end=self.former.end,
        )

    def _metrics(self, hardware: Callable[[], Mapping[str, CardHardware]] | None) -> AgentMetrics:
        return AgentMetrics(
            node=self.config.node, node_ip=self.config.node_ip, slots=self.slots, inventory=self.inventory,
            demand=self.compute.demand, findings=lambda: self.memory.findings,
            served=lambda: [] if self.serving is None else self.serving.executors(),
            hardware=hardware, rooms=lambda: self.rooms.totals, delaying_seconds=self.compute.delaying_seconds,
        )  # fmt: skip

    def _mps(self, events: EventRecorder) -> MpsServers:
        starter = None if self._shim is None else self._shim.start_mps
        control = MpsControl(self.config.nvml_library, starter=starter)
        directory, memory_mib = self.config.state_dir / MPS_FOLDER, self.config.mps_shm_mib
        return MpsServers(self.slots, directory, control, events=events, memory_mib=memory_mib)

    def _serving(
        self, served: ExecutorSupervisor[ServedContainer], pods: NodePods, credentials: Credentials
    ) -> PodService:
        return PodService(
            self.config.node, executors=served, inventory=self.inventory, pods=pods, credentials=credentials,
            listen=self.config.pool_listen, taken=self._take_cards,
        )  # fmt: skip

    async def _take_cards(self, cards: Collection[str]) -> None:
        """Make cards free for executors of other nodes' pods. Raises Unavailable."""
        await self.former.leave_cards(cards)
        await self.mps.leave(cards)

    def _own_children(self) -> Parent:
        config = self.config
        confinement = Confinement(config.confinement)
        self.metrics.confined(confinement.told, confinement.lacks)
        images = Images(config.state_dir / "images", config.image_cache_mib)
        driver_dir = None if config.nvml_library is None else config.nvml_library.parent
        folders = library_path(config.library_path, driver_dir)
        log.info("libraries of executors", found=found(driver_dir, folders))
        return ThisProcess(driver_dir, confinement, images, libraries=folders)

    def _plugin(self, kubelet: PodResources, pods: NodePods) -> SlotPlugin:
        """Return the plugin that answers kubelet, with the parts that fill its slots."""
        config = self.config
        return SlotPlugin(
            config,
            inventory=self.inventory,
            devices=self.devices,
            owners=Owners(
                config.node, holdings=kubelet.pods, pods=pods, prepared=self.slots.newest_owners, slots=self.slots.held
            ),
            preparer=self._preparer(self.specs, self.injection),
            metrics=self.metrics,
            specs=self.specs,
            injection=self.injection,
        )

    def _preparer(self, specs: SlotSpecs, injection: Injection) -> Preparer:
        config = self.config
        return Preparer(
            slots=self.slots,
            state_dir=config.state_dir,
            devices=self.devices,
            inventory=self.inventory,
            node=config.node,
            executors=self.executors,
            bridges=self.bridges,
            instances=self.instances,
            specs=specs,
            injection=injection,
            time_slices=self.time_slices,
            driver_limits=DriverLimits(self.slots, config.cgroup_root, MemoryLimits(config.nvml_library).set),
            mps=self.mps,
            former=self.former,
        )

    def _allocator(self, events: EventRecorder, pods: NodePods) -> Allocator:
        """Return the choice between the device plugin and the DRA driver, with the parts of both."""
        ways = {
            names.DEVICE_PLUGIN: ByPlugin(
                self.registrar,
                known=lambda: self.standing.may_register(self.injection.known, self.registrar.withdraw),
                kept_off=lambda: self.publisher.kept_off,
                others=self._card_holders,
                slots=self.slots,
                pods=pods,
            ),
            names.DRA: by_claims(
                self.config,
                self.client,
                inventory=self.inventory,
                slots=self.slots,
                devices=self.devices,
                preparer=self._preparer,
                former=self.former,
                slot_lock=self.plugin.slot_lock,
                pods_of=self.memory.pods_of,
                cordoned=lambda: self.publisher.cordoned,
                node_uid=lambda: self.allocator.node_uid,
                giving=lambda: self.allocator.by_claims and self.standing.looked.is_set(),
                priced=lambda: self.allocator.priced,
                contested=lambda: self.standing.contested,
                withdraw_plugin=lambda: None if self.allocator.priced else self.registrar.withdraw(),
            ),
        }
        return Allocator(self.config.state_dir / ALLOCATOR_FILE, ways, events=events)

    def _card_holders(self) -> list[str]:
        """Return what has cards besides this node's pods: claims, and pods of other nodes."""
        served = [] if self.serving is None else self.serving.executors()
        return [*self.publisher.holders, *(f"executor {one.name} of another node's pod" for one in served)]

    def _given_instances(self) -> frozenset[CardInstance]:
        """Return the MIG instances of this node's containers."""
        shares = [share for record in self.slots.records() for share in record.allocation.cards]
        return frozenset(CardInstance(share.uuid, share.instance) for share in shares if share.instance is not None)

    def _publisher(self, events: EventRecorder) -> Publisher:
        return Publisher(
            self.client,
            self.config.node,
            self.inventory,
            events=events,
            interval_seconds=self.config.publish_seconds,
            learn=self.injection.learn,
            vocabularies=self.config.vocabularies,
            instances=self.instances,
            given=self._given_instances,
            mps=self.mps.why_not,
            pods=self.resizer.pods,
            allocator=self.allocator,
            standing=self.standing,
            slots_first=True,
            parking_memory_mib=parking_memory_mib(self.config.parking_memory_mib),
            thrashing=lambda: self.rooms.totals.thrashing,
        )

    def _standing(self, events: EventRecorder, kubelet: PodResources) -> NodeStanding:
        return NodeStanding(
            self.client, self.config.node, inventory=self.inventory, pods=self.resizer.pods, events=events,
            devices=kubelet.allocatable, starting=self.not_ready, holders=self._card_holders,
            changed=self.allocator.changed.set,
        )  # fmt: skip

    def _resizer(self) -> SlotResizer:
        return SlotResizer(
            self.client, self.config.node, inventory=self.inventory, slots=self.slots, executors=self.executors,
            bridges=self.bridges, serving=self.serving, memory=self.memory, slot_lock=self.plugin.slot_lock,
        )  # fmt: skip

    def not_ready(self) -> str | None:
        """Return why containers cannot be prepared now, or None."""
        if not self.inventory.version:
            return "the cards have not been read"
        if not self.publisher.published:
            return "the cards have not been published"
        if not self.allocator.registered:
            return "not registered with kubelet"
        return None

    async def run(self, supervisor: Supervisor) -> None:
        """Run until the supervisor stops. Raises NotSupported if this node cannot isolate cards, or a directory
        cannot be mounted or written."""
        await asyncio.to_thread(self.devices.nowhere)
        self.devices.discard_unused(self.slots.path(slot_id) / DEVICES for slot_id in self.slots.ids())
        if self.config.cdi != "never":
            await asyncio.to_thread(self.specs.open)
        if self.config.mount_usage and not await asyncio.to_thread(mounts.allowed, self.config.slots_dir):
            raise NotSupported(f"{self.config.slots_dir}: mounting is not allowed here; run without --mount-usage")
        sock = listening.open_socket(listening.Listen.parse(self.config.listen))
        address = str(listening.bound(sock))
        write_atomically(self.config.state_dir / ADDRESS_FILE, f"{address}\n".encode())
        log.info("agent starts", node=self.config.node, listen=address)
        shown = monitoring_app(Guard(self.client), self.standing.stuck, registry=self.metrics.registry)
        supervisor.add("web", serve_monitoring(shown, sock))
        supervisor.add("pods", self.resizer.pods.run())
        supervisor.add("standing", self.standing.run())
        if self.config.nvml_library is None:
            supervisor.add("driver", self.standing.until_too_old(supervisor.stop), may_end=True)
        if self._shim is not None:
            shim = await self._shim.started(retry_seconds=SHIM_RETRY_SECONDS)
            self.metrics.confined(shim.held, shim.lacks)
        await self.executors.open()
        await self._recover()
        if self.serving is not None:
            await self._join_pool(self.serving)
        for name, work in (
            ("inventory", self.inventory.run), ("publisher", self.publisher.run), ("allocator", self.allocator.run),
            ("sweeper", self.sweeper.run), ("resizer", self.resizer.run), ("parker", self.parker.run),
            ("compute", self.compute.run), ("rooms", self.rooms.run), ("ended", self.ended.run), ("mps", self.mps.run),
            ("metrics", self.metrics.run), ("time-slices", self.time_slices.run), ("delays", self.delays.run),
            ("executors", self.executors.run), ("amounts", self.amounts.until_end), ("memory", self.memory.run),
        ):  # fmt: skip
            supervisor.add(name, work())
        taint = StartupTaint(self.client, self.config.node, self.not_ready, self.allocator)
        supervisor.add("startup-taint", taint.run(), may_end=True)
        if self.serving is not None and self.bridges is not None:
            supervisor.add("listener", self.serving.listener.serve())
            supervisor.add("serving", self.serving.run())
            supervisor.add("bridges", self.bridges.run())
        await supervisor.run()

    async def _recover(self) -> None:
        """Remove half-made MIG instances. After an error this is tried again before anything is made on a card."""
        if self.instances is not None:
            try:
                await self.instances.recover()
            except ElasticGPUError as error:
                log.warning("half-made MIG instances of a card stay for now", reason=str(error))

    async def _join_pool(self, serving: PodService) -> None:
        """Listen before the node is published as a member of the pool."""
        await serving.open()
        self.publisher.pool = PoolMember(
            address=self.config.pool_advertise or str(serving.listener.address),
            link_mbps=self.config.pool_link_mbps or fastest_link_mbps(),
            slots=self.config.slots,
        )


async def run(config: AgentConfig) -> None:
    """Run an agent until SIGTERM or SIGINT. Raises errors that end it."""
    async with Client.from_kubeconfig(config.kubeconfig) as client:
        cards = NvmlInventory(config.nvml_library, kept=config.state_dir / XIDS_FILE, instances=True)
        hardware = (lambda: read_hardware(cards)) if config.hardware_metrics else None
        agent = Agent(config, client=client, cards=cards, mig=NvmlInstances(cards.on_card), hardware=hardware)
        farewell = Farewell.of(config, client, agent.publisher, others=agent.standing.others, amounts=agent.amounts)
        supervisor = Supervisor()
        supervisor.add("farewell", farewell.learn(), may_end=True)
        with seldom_searched():
            await agent.run(supervisor)
        await farewell.end()
