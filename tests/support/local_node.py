"""One node of this machine: API server, simulated kubelet, shim, agent. Cards are stand-ins; all else is real."""

from __future__ import annotations

import asyncio
import contextlib
import signal
from collections.abc import AsyncGenerator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import httpx2
import msgspec
import yaml

from egpu.adapters.cards.nvml import CardProcess, CardReading
from egpu.adapters.executors import process
from egpu.adapters.shim import ShimDirectory
from egpu.adapters.shim import offer as offers
from egpu.api import names
from egpu.api.allocation import CardShare, ContainerAllocation, PodAllocation, encode
from egpu.apps.agent import Agent, AgentConfig
from egpu.apps.agent.slots.injection import Mode
from egpu.apps.shim import NodeShim, ShimConfig
from egpu.apps.shim.executors import FOLDERS
from egpu_base.api.kubernetes import ContainerStateTerminated
from egpu_base.errors import NotFound
from egpu_base.kubernetes import Client
from egpu_base.runtime.supervisor import Supervisor
from egpu_base.system import mounts
from egpu_sim.cluster import janitor, log_lines
from egpu_sim.cluster.apiserver import Config, ServerHandle, serve
from egpu_sim.cluster.kubelet import end_all, objects
from egpu_sim.machines.machine import Machine
from support import forked_commands
from support.forked_commands import Fork
from support.process_table import processes
from support.waiting import until

ROOT = Path(__file__).resolve().parents[2]
NODE = "node-a"


def card(number: int, **changes: Any) -> CardReading:
    return replace(
        CardReading(
            uuid=f"GPU-{number:08x}-0000-4000-8000-000000000000",
            index=number,
            minor=number,
            model="Simulated T4",
            memory_mib=16384,
            compute_capability="7.5",
            tflops=8.1,
        ),
        **changes,
    )


class Cards:
    """A source of cards that a test changes."""

    def __init__(self, count: int) -> None:
        self.cards = tuple(card(index) for index in range(count))

    def read(self) -> tuple[CardReading, ...]:
        return self.cards

    def processes(self) -> dict[str, tuple[CardProcess, ...]]:
        return {}

    def used_bytes(self) -> dict[str, int]:
        return {}

    def close(self) -> None:
        pass


def share(index: int, *, core: int = 50, memory_mib: int = 1024) -> CardShare:
    return CardShare(uuid=card(index).uuid, index=index, minor=index, core=core, memory_mib=memory_mib)


def vcuda(*shares: CardShare) -> ContainerAllocation:
    return ContainerAllocation(provisioner=names.VCUDA, mode="shared", cards=shares)


def whole(*indexes: int) -> ContainerAllocation:
    shares = tuple(share(index, core=100, memory_mib=16384) for index in indexes)
    return ContainerAllocation(provisioner=names.PHYSICAL, mode="exclusive", cards=shares)


def shell(name: str, script: str, *, gpu: bool = True, **more: Any) -> dict[str, Any]:
    resources = {"limits": {names.SLOT: "1"}} if gpu else {}
    return {"name": name, "image": "x", "command": ["sh", "-c", script], "resources": resources, **more}


@dataclass
class LocalNode:
    directory: Path
    client: Client
    kubeconfig: Path
    api: ServerHandle
    cards: Cards
    _agent: Agent | None = None
    _shim: NodeShim | None = None
    _shim_task: asyncio.Task[None] | None = None
    kubelet: asyncio.subprocess.Process | Fork | None = None
    agent_process: asyncio.subprocess.Process | Fork | None = None
    _agent_task: asyncio.Task[None] | None = None
    _agent_supervisor: Supervisor | None = None
    kubelet_flags: list[str] = field(default_factory=list[str])
    cdi: Mode = "auto"

    @property
    def kubelet_dir(self) -> Path:
        return self.directory / "k"

    @property
    def state_dir(self) -> Path:
        return self.directory / "s"

    @property
    def cdi_dir(self) -> Path:
        return self.directory / "cdi"

    @property
    def agent(self) -> Agent:
        assert self._agent is not None, "no agent was started in this process"
        return self._agent

    @property
    def shim(self) -> NodeShim:
        assert self._shim is not None, "no agent was started, and so no shim"
        return self._shim

    def offered_devices(self) -> set[str]:
        """Device files that kubelet is told to give to every container with a slot, by their names in it."""
        offer = offers.read(ShimDirectory.of(self.state_dir).offer)
        return set() if offer is None else {device.container_path for device in offer.answer.devices}

    # ---- processes

    def _start_shim(self, driver_dir: Path | None = None) -> None:
        """Once: it is there as long as the node is, whatever becomes of agents."""
        if self._shim is None:
            config = ShimConfig(kubelet_dir=self.kubelet_dir, state_dir=self.state_dir, driver_dir=driver_dir)
            self._shim = NodeShim(config)
            self._shim_task = asyncio.create_task(self._shim.run(Supervisor(signals=())))

    async def stop_shim(self) -> None:
        """With its executors, as its control group ends them on a node."""
        if self._shim is not None and self._shim_task is not None:
            self._shim_task.cancel()
            await asyncio.gather(self._shim_task, return_exceptions=True)
            for folder in FOLDERS:
                for executor in process.find(self.state_dir / folder, msgspec.Raw, self._shim.confinement):
                    executor.end()

    async def start_agent(self) -> Agent:
        agent = self.begin_agent()
        await until(lambda: agent.not_ready() is None or self._agent_failed(), "agent ready")
        return agent

    def begin_agent(self) -> Agent:
        """Start an agent, and do not wait until it is ready."""
        self._start_shim()
        config = AgentConfig(
            node=NODE,
            kubeconfig=self.kubeconfig,
            kubelet_dir=self.kubelet_dir,
            state_dir=self.state_dir,
            device_root=self.directory / "dev",
            slots_per_card=4,
            inventory_seconds=0.1,
            sweep_seconds=0.3,
            mount_usage=mounts.allowed(self.directory),
            cdi=self.cdi,
            cdi_directories=(self.cdi_dir,),
            shim=True,
        )
        agent = self._agent = Agent(config, client=self.client, cards=self.cards)
        self._agent_supervisor = Supervisor(signals=())
        self._agent_task = asyncio.create_task(agent.run(self._agent_supervisor))
        return agent

    def _agent_failed(self) -> bool:
        assert self._agent_task is not None
        if self._agent_task.done():
            self._agent_task.result()
        return False

    async def stop_agent(self) -> None:
        if self._agent_task is not None and self._agent_supervisor is not None:
            self._agent_supervisor.stop()
            await self._agent_task
        self._agent_task = None

    async def start_kubelet(self) -> None:
        arguments = ["--kubeconfig", str(self.kubeconfig), "--node", NODE, "--kubelet-dir", str(self.kubelet_dir)]
        arguments += ["--cdi-dir", str(self.cdi_dir), "--backoff-seconds", "0.2", *self.kubelet_flags]
        log_file = self.directory / "kubelet.log"
        self.kubelet = await forked_commands.start(forked_commands.KUBELET, arguments, log_file)
        await until((self.kubelet_dir / "device-plugins/kubelet.sock").exists, "kubelet listens")

    async def kill_kubelet(self, number: signal.Signals = signal.SIGKILL) -> None:
        if self.kubelet is not None and self.kubelet.returncode is None:
            self.kubelet.send_signal(number)
            await self.kubelet.wait()
        self.kubelet = None

    # ---- pods

    async def create(
        self,
        name: str,
        containers: list[dict[str, Any]],
        allocation: Mapping[str, ContainerAllocation] | None = None,
        *,
        inits: list[dict[str, Any]] | None = None,
        bind: bool = True,
        annotations: Mapping[str, str] | None = None,
        **spec: Any,
    ) -> objects.Pod:
        """Make a pod and bind it here with `allocation` (None: without), as the extender does."""
        body = {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {"name": name, "namespace": "default", "annotations": dict(annotations or {})},
            "spec": {
                "containers": containers,
                "initContainers": inits or [],
                "restartPolicy": "Never",
                "terminationGracePeriodSeconds": 2,
                **spec,
            },
        }
        await self.client.raw("POST", "/api/v1/namespaces/default/pods", body=body)
        pod = await self.read(name)
        plain = tuple(each["name"] for each in inits or [] if each.get("restartPolicy") != "Always")
        if bind:
            written: dict[str, str] = {}
            if allocation is not None:
                given = PodAllocation(
                    node=NODE, containers=dict(allocation), init=tuple(n for n in plain if n in allocation)
                )
                written = {names.ALLOCATION: encode(given)}
            await self.client.bind(name, NODE, namespace="default", uid=pod.uid, annotations=written)
        return pod

    async def reallocate(self, name: str, allocation: Mapping[str, ContainerAllocation]) -> None:
        """Write a bound pod's allocation anew, as the extender does for another size."""
        text = encode(PodAllocation(node=NODE, containers=dict(allocation)))
        patch = {"metadata": {"annotations": {names.ALLOCATION: text}}}
        await self.client.patch(objects.Pod, name, patch, namespace="default")

    async def read(self, name: str) -> objects.Pod:
        return await self.client.get(objects.Pod, name, namespace="default")

    async def phase(self, name: str, *wanted: str) -> objects.Pod:
        """Wait for the pod to be in one of these phases."""

        async def look() -> objects.Pod | None:
            pod = await self.read(name)
            return pod if pod.status.phase in wanted else None

        try:
            return await until(look, f"{name} {wanted}")
        except AssertionError as error:
            status = msgspec.json.encode((await self.read(name)).status).decode()
            raise AssertionError(f"{error}\n{status}\n{self.kubelet_log()[-3000:]}") from None

    async def gone(self, name: str) -> None:
        async def look() -> bool:
            try:
                await self.read(name)
            except NotFound:
                return True
            return False

        await until(look, f"{name} gone")

    def log(self, pod: objects.Pod, container: str, number: int = 0) -> str:
        directory = self.kubelet_dir / "pods" / f"default_{pod.name}_{pod.uid}" / container
        file = directory / f"{number}.log"
        return (
            log_lines.plain(file.read_bytes()) if file.exists() else ""
        )  # a container that has not started has said nothing yet

    def kubelet_log(self) -> str:
        return (self.directory / "kubelet.log").read_text()

    def slot_of(self, pod: objects.Pod, container: str) -> Any:
        """The slot record of a container, if there is one."""
        owned = [each for each in self.agent.slots.records() if each.owner == (pod.uid, container)]
        return owned[0] if owned else None

    # ---- a simulated machine

    async def start_agent_process(self, machine: Machine) -> None:
        """The agent as a process of its own, on the simulated machine's NVML."""
        self._start_shim(machine.driver_dir)
        arguments = ["agent", "--shim", "--node", NODE, "--kubeconfig", str(self.kubeconfig)]
        arguments += ["--kubelet-dir", str(self.kubelet_dir), "--state-dir", str(self.state_dir)]
        arguments += ["--device-root", str(machine.device_dir), "--cdi", self.cdi, "--cdi-dir", str(self.cdi_dir)]
        arguments += ["--nvml-library", str(machine.driver_dir / "libnvidia-ml.so.1")]
        arguments += ["--mount-usage"] if mounts.allowed(self.directory) else []
        self.agent_process = await forked_commands.start("egpu", arguments, self.directory / "agent.log")
        await until(self._agent_answers, "agent ready")

    async def _agent_answers(self) -> bool:
        assert self.agent_process is not None
        assert self.agent_process.returncode is None, (self.directory / "agent.log").read_text()
        try:
            return "ok" in await self.agent_page("/readyz")
        except (OSError, httpx2.HTTPError):
            return False

    async def agent_page(self, path: str) -> str:
        address = (self.state_dir / "agent.address").read_text().strip()
        token = yaml.safe_load(self.kubeconfig.read_text())["users"][0]["user"]["token"]
        async with httpx2.AsyncClient(headers={"Authorization": f"Bearer {token}"}) as http:
            return (await http.get(f"http://{address}{path}")).text

    async def kill_agent(self, number: signal.Signals = signal.SIGKILL) -> None:
        if self.agent_process is not None and self.agent_process.returncode is None:
            self.agent_process.send_signal(number)
            await self.agent_process.wait()
        self.agent_process = None


def restarts(pod: objects.Pod) -> int:
    """How often the pod's only container was started again."""
    (status,) = pod.status.container_statuses or []
    return status.restart_count


def ended(pod: objects.Pod) -> ContainerStateTerminated:
    """How the pod's only container ended."""
    (status,) = pod.status.container_statuses or []
    assert status.state is not None
    assert status.state.terminated is not None
    return status.state.terminated


@contextlib.asynccontextmanager
async def local_node(
    directory: Path, *, cards: int = 2, agent: bool = True, machine: Machine | None = None, cdi: Mode = "auto"
) -> AsyncGenerator[LocalNode]:
    """A node whose kubelet runs, and its agent too unless told otherwise."""
    devices = directory / "dev"
    devices.mkdir()
    for index in range(cards):
        (devices / f"nvidia{index}").write_text(f"EGPUSIM1 {card(index).uuid}")
    async with serve(Config(directory / "api")) as api, Client.from_kubeconfig(api.kubeconfig) as client:
        for path in sorted((ROOT / "deploy/crds").glob("*.yaml")):
            definition = yaml.safe_load(path.read_text())
            await client.raw("POST", "/apis/apiextensions.k8s.io/v1/customresourcedefinitions", body=definition)
        here = LocalNode(directory, client, api.kubeconfig, api, Cards(cards), cdi=cdi)
        try:
            if machine is not None:
                here.kubelet_flags += ["--driver-dir", str(machine.driver_dir)]
            await here.start_kubelet()
            if machine is not None:
                await here.start_agent_process(machine)
            elif agent:
                await here.start_agent()
            yield here
        finally:
            await here.stop_agent()
            await here.kill_agent(signal.SIGTERM)
            await here.stop_shim()
            await here.kill_kubelet(signal.SIGTERM)
            await end_all(here.kubelet_dir)
            janitor.unmount(directory)
            left = [one.command for one in processes() if str(directory) in one.command and one.state != "Z"]
            assert not left, f"processes of the node have outlived it: {left}"
