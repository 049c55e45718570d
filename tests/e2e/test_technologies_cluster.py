"""Technologies that leave a card to its driver, on the simulated cluster: by a resource name and by a claim."""

import sys
import tempfile
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from egpu.adapters.cards.memory_limits import pod_group
from egpu.api import names
from egpu.core.provisioners.preparation import REMOTE_LIBRARIES
from egpu.laptop import manifests
from egpu.laptop.cluster import Cluster, ClusterConfig, cluster
from egpu_base.api.kubernetes import Pod
from egpu_base.kubernetes import Client
from support.claims import a_claim, a_class, using
from support.clearing import clear
from support.mps import asked, pid
from support.resizing import Program, given
from support.simulated_gpu import source
from support.waiting import until

pytestmark = pytest.mark.asyncio(loop_scope="module")

CARD_MIB = 81920
SAMPLE = ["egpu-sample-vectoradd"]
"""Ends with 0 where every answer is right."""


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def running() -> AsyncIterator[Cluster]:
    async with cluster(ClusterConfig(nodes=1, cards_per_node=1, cpu_nodes=1)) as one:
        yield one


@pytest.fixture
def directory() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="egpu-technologies-", dir="/tmp") as root:
        yield Path(root)


@pytest_asyncio.fixture(loop_scope="module")
async def client(running: Cluster, directory: Path) -> AsyncIterator[Client]:
    """Sees to it that the test leaves no pod, claim or class; no program writes into `directory` then."""
    _ = directory
    async with running.client() as one:
        yield one
        await clear(one)


def sample(name: str, limits: dict[str, str], annotations: dict[str, str] | None = None) -> dict[str, Any]:
    container = {"name": "app", "image": "any", "command": SAMPLE, "resources": {"limits": limits}}
    spec = {"containers": [container], "restartPolicy": "Never"}
    metadata = {"name": name, "annotations": annotations or {}}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec}


def claim_of(name: str, klass: str, resource: str) -> dict[str, Any]:
    claim = a_claim(name, klass)
    claim["spec"]["resources"]["requests"] = {resource: 1}
    return claim


async def answers_rightly(client: Client, pod: str) -> None:
    async def phase() -> str:
        found = await client.get(Pod, pod, namespace="default")
        return found.status.phase if found.status.phase in ("Succeeded", "Failed") else ""

    assert await until(phase, f"{pod} ends", seconds=90) == "Succeeded"


async def holds(client: Client, program: Program, document: dict[str, Any], pieces: int) -> None:
    """Start it; it gets so many pieces of 64 MiB."""
    await manifests.create(client, [document])
    await until(program.seen, f"{program.name} runs", seconds=90)
    program.hold(pieces)

    def has() -> bool:
        seen = program.seen()
        return seen is not None and seen.pieces == pieces

    await until(has, f"{program.name} has {pieces} pieces", seconds=60)


def lengths_set(running: Cluster) -> dict[str, str]:
    """What the node's agent wrote down of the cards whose time slices it changed."""
    directory = running.node_dir(running.node_names[0]) / "agent" / "time-slices"
    return {each.name: each.read_text() for each in directory.glob("[!.]*")}


async def test_time_slices_by_name_and_by_claim(running: Cluster, client: Client, directory: Path) -> None:
    shared = names.NVIDIA_GPU_SHARED
    await manifests.create(client, [sample("plain", {shared: "1"})])
    await answers_rightly(client, "plain")
    pod = await client.get(Pod, "plain", namespace="default")
    assert "time slices isolate neither memory nor faults" in pod.annotations[names.ISOLATION]
    await client.delete(Pod, "plain", namespace="default", grace_period_seconds=0)
    klass = a_class("eight", names.TIMESLICE, parameters={"replicas": "8", "timeSlice": "long"})
    claims = [claim_of("one", "eight", shared), claim_of("two", "eight", shared)]
    await manifests.create(client, [klass, *claims, sample("claimed", {}, using("one"))])
    await answers_rightly(client, "claimed")
    whole = Program(directory, "whole")
    document = whole.pod({}, using("two"))
    await holds(client, whole, document, CARD_MIB // 2 // 64)  # four times its part: nobody holds it to that
    container = await given(client, "whole")
    assert container is not None
    assert (container.provisioner, container.alike, container.cards[0].core) == (names.TIMESLICE, "long", 12)
    assert lengths_set(running) == {container.cards[0].uuid: "long"}


MPS_VICTIM = """
from pathlib import Path
try:
    Path(os.environ["CUDA_MPS_PIPE_DIRECTORY"], "nvidia-cuda-mps-control.pid").write_text("1")
except OSError:
    context()
Path(HERE, "victim").touch()
while name(d.cuCtxSynchronize()) == "SUCCESS": time.sleep(0.02)
raise SystemExit(name(d.cuCtxSynchronize()) != "ILLEGAL_ADDRESS")
"""
"""Ends with 0 where it may not write beside the sockets of its server, and is told of a fault that is not its own."""
MPS_FAULT = """
context()
ok(launch(function(STORE.replace("DURATION", "10"), "store"), 1, 1, 0x10, (1, ctypes.c_uint32)))
raise SystemExit(name(d.cuCtxSynchronize()) != "ILLEGAL_ADDRESS")
"""


def python(name: str, code: str, claim: str) -> dict[str, Any]:
    """A pod whose container runs it with NVIDIA's bindings, in the slice of the claim."""
    pod = sample(name, {}, using(claim))
    pod["spec"]["containers"][0]["command"] = [sys.executable, "-c", source(code)]
    return pod


async def test_mps_by_name_and_by_claim(running: Cluster, client: Client, directory: Path) -> None:
    servers = running.node_dir(running.node_names[0]) / "agent" / "mps"
    await manifests.create(client, [sample("plain", {names.MPS: "1"})])
    await answers_rightly(client, "plain")
    pod = await client.get(Pod, "plain", namespace="default")
    assert "a fault of one ends all programs on its card" in pod.annotations[names.ISOLATION]
    await client.delete(Pod, "plain", namespace="default", grace_period_seconds=0)
    sizes = [a_claim(name, "sizes", core=30, memory_mib=1024) for name in ("one", "two")]
    await manifests.create(client, [a_class("sizes", names.MPS), *sizes])
    program = Program(directory, "held")
    await manifests.create(client, [program.pod({}, using("one"))])
    await until(program.seen, "it runs", seconds=90)
    program.hold(1024 // 64 + 4)
    most = 1024 // 64

    def full() -> bool:
        seen = program.seen()
        return seen is not None and seen.pieces == most

    await until(full, lambda: f"it has what the server lets it have: {program.seen()}", seconds=60)
    container = await given(client, "held")
    assert container is not None
    (share,) = container.cards
    pipes = servers / share.uuid / "pipe"
    server = pid(pipes)
    assert asked(pipes, f"get_active_thread_percentage {server}", f"get_device_pinned_mem_limit {server} 0") == [
        "30.0", "1024M",
    ]  # fmt: skip
    await client.delete(Pod, "held", namespace="default", grace_period_seconds=0)
    await manifests.create(client, [python("victim", f"HERE = {str(directory)!r}\n{MPS_VICTIM}", "one")])
    await until((directory / "victim").exists, "the other one runs", seconds=90)
    await manifests.create(client, [python("faulty", MPS_FAULT, "two")])
    for name in ("faulty", "victim"):
        await answers_rightly(client, name)
    await clear(client)
    await until(lambda: not list(servers.glob("*")), "its server ends", seconds=60)
    await manifests.create(client, [sample("whole", {names.NVIDIA_GPU: "1"})])
    await answers_rightly(client, "whole")


async def test_sizes_with_names_of_a_class(running: Cluster, client: Client, directory: Path) -> None:
    parameters = {"vgpuProfiles": "small: 10 %, 2Gi", "vgpuMode": "equal-size"}
    small = f"{names.VGPU}-small"
    klass = a_class("sizes", names.VGPU, parameters=parameters)
    claims = [claim_of("one", "sizes", small), claim_of("two", "sizes", small)]
    await manifests.create(client, [klass, *claims, sample("sample", {}, using("one"))])
    await answers_rightly(client, "sample")
    program = Program(directory, "held")
    await holds(client, program, program.pod({}, using("two")), 2048 // 64 - 16)
    seen = program.seen()
    assert seen is not None
    assert seen.total_mib == 2048


async def test_the_driver_holds_a_pod_to_its_memory(running: Cluster, client: Client, directory: Path) -> None:
    klass = a_class("held", names.VCUDA, parameters={"memoryIsolation": "driver"})
    claims = [a_claim("one", "held", core=20, memory_mib=1024), a_claim("two", "held", core=20, memory_mib=1024)]
    await manifests.create(client, [klass, *claims, sample("sample", {}, using("one"))])
    await answers_rightly(client, "sample")
    program = Program(directory, "held")
    await holds(client, program, program.pod({}, using("two")), 8)
    pod = await client.get(Pod, "held", namespace="default")
    container = await given(client, "held")
    assert container is not None
    assert container.memory_isolation == "driver"
    groups = running.node_dir(running.node_names[0]) / "kubelet" / "cgroup"
    limit = pod_group(groups, pod.uid)
    assert limit is not None
    (written,) = limit.glob("dmem.*")
    assert written.name.removeprefix("dmem.") == container.cards[0].uuid
    assert written.read_text().split() == ["0", str(1024 << 20)]
    # With another limit than the interposer's: who refuses is the driver.
    written.write_text(f"0 {640 << 20}\n")
    program.hold(16)
    await until(lambda: (seen := program.seen()) and seen.pieces, "it goes on", seconds=30)
    most = 640 // 64
    await until(lambda: (seen := program.seen()) is not None and 8 < seen.pieces <= most, "it takes more", seconds=30)
    await clear(client)
    await until(lambda: pod_group(groups, pod.uid) is None, "its group goes", seconds=30)


COMPUTES = """
import ctypes, struct
runtime, blas = ctypes.CDLL("libcudart.so.13"), ctypes.CDLL("libcublas.so.13")
def ok(status):
    assert status == 0, status
x, y, handle, driver = (ctypes.c_void_p() for _ in range(4))
data, alpha, back = struct.pack("4f", 1, 2, 3, 4), ctypes.c_float(2), ctypes.create_string_buffer(16)
for at in (x, y):
    ok(runtime.cudaMalloc(ctypes.byref(at), ctypes.c_size_t(16)))
    ok(runtime.cudaMemcpy(at, data, ctypes.c_size_t(16), 1))
ok(blas.cublasCreate_v2(ctypes.byref(handle)))
ok(blas.cublasSaxpy_v2(handle, 4, ctypes.byref(alpha), x, 1, y, 1))
ok(runtime.cudaMemcpy(back, y, ctypes.c_size_t(16), 2))
print("has", struct.unpack("4f", back.raw), flush=True)
print("mapped", *{line.split()[-1].rsplit("/", 1)[-1] for line in open("/proc/self/maps")}, flush=True)
ok(ctypes.CDLL("libnccl.so.2").ncclGetVersion(ctypes.byref(ctypes.c_int())))
"""
QGPU = {names.QGPU_CORE: "30", names.QGPU_MEMORY: "1"}
POOL = {names.POOL_CORE: "30", names.POOL_MEMORY: "1024"}


@pytest.mark.parametrize("limits", [QGPU, POOL], ids=["qgpu", "pool"])
async def test_runtime_and_carried_libraries_are_there_with_the_driver(
    running: Cluster, client: Client, limits: dict[str, str]
) -> None:
    """Whatever is in the image, and without an environment; where the pod has no card near it as well."""
    document = sample("computes", limits)
    document["spec"]["containers"][0]["command"] = ["env", "-i", sys.executable, "-c", COMPUTES]
    if limits is POOL:
        document["spec"]["nodeSelector"] = {"kubernetes.io/hostname": running.node_names[-1]}
    await manifests.create(client, [document])
    await answers_rightly(client, "computes")
    said = await client.text("/api/v1/namespaces/default/pods/computes/log")
    assert "has (3.0, 6.0, 9.0, 12.0)" in said, said
    (mapped,) = (line for line in said.splitlines() if line.startswith("mapped"))
    assert set(REMOTE_LIBRARIES) <= set(mapped.split()), said
