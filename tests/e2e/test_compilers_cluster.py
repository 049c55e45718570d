"""Programs that compile kernels while they run, in pods: as `egpu run --simulate` runs them, nothing said of it."""

import json
import sys
from typing import Any

from egpu.api import names
from egpu.laptop import manifests
from egpu.laptop.cluster import ClusterConfig, cluster
from egpu_base.api.kubernetes import Pod
from egpu_base.kubernetes import Client
from support.programs import WITHOUT_GPUS
from support.repository import ROOT
from support.simulated_gpu import STORE_SEVEN
from support.waiting import until

NUMBA = ["-W", "ignore", str(ROOT / "tests/integration/programs/numba_six.py")]
OWN = "/of/the/pod"
ASSEMBLED = f"""
import json, os, shutil, subprocess, tempfile
import numpy as np
from cuda.bindings import driver as d

def ok(result):
    assert int(result[0]) == 0, result
    return result[1] if len(result) == 2 else None

ok(d.cuInit(0))
ok(d.cuCtxSetCurrent(ok(d.cuDevicePrimaryCtxRetain(ok(d.cuDeviceGet(0))))))
said = []
out = tempfile.mkdtemp() + "/k"
for assembler in (os.environ["TRITON_PTXAS_PATH"], shutil.which("ptxas")):
    subprocess.run([assembler, "-arch=sm_80", "/dev/stdin", "-o", out], input={STORE_SEVEN.encode()!r}, check=True)
    at = ok(d.cuMemAlloc(4))
    argument = np.array([int(at)], dtype=np.uint64)
    pointers = np.array([argument.ctypes.data], dtype=np.uint64)
    kernel = ok(d.cuModuleGetFunction(ok(d.cuModuleLoadData(open(out, "rb").read())), b"k"))
    ok(d.cuLaunchKernel(kernel, 1, 1, 1, 1, 1, 1, 0, 0, pointers, 0))
    number = np.zeros(1, np.uint32)
    ok(d.cuMemcpyDtoH(number.ctypes.data, at, 4))
    said.append(int(number[0]))
print(json.dumps([*said, os.environ["XLA_FLAGS"], os.environ["PYTHONPATH"].split(":")[-1]]))
"""
"""What Triton and XLA do with what their compilers made: each finds its assembler in its own way."""


def finite(name: str, program: list[str], core: str, memory: str, **spec: Any) -> dict[str, Any]:
    """A pod with a slice, and with modules of its own."""
    container = {
        "name": "main",
        "image": "any",
        "command": [sys.executable, *program],
        "env": [{"name": "PYTHONPATH", "value": OWN}],
        "resources": {"limits": {core: 20, memory: 1024}},
    }
    settings = {"restartPolicy": "Never", "terminationGracePeriodSeconds": 1, **spec, "containers": [container]}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": settings}


async def log(client: Client, name: str) -> str:
    """What the pod said, which is to have succeeded."""

    async def ended() -> Pod | None:
        found = await client.get(Pod, name, namespace="default")
        return found if found.status.phase in ("Succeeded", "Failed") else None

    found = await until(ended, f"the end of {name}")
    said = await client.text(f"/api/v1/namespaces/default/pods/{name}/log", params={"container": "main"})
    assert found.status.phase == "Succeeded", said
    return said


async def test_compilers_in_pods_make_what_simulated_cards_run() -> None:
    """In a slice of the node's own card, and in one of another node's."""
    near: tuple[Any, ...] = (names.GPU_CORE, names.GPU_MEMORY)
    far: tuple[Any, ...] = (names.POOL_CORE, names.POOL_MEMORY)
    async with cluster(ClusterConfig(nodes=1, cards_per_node=1, cpu_nodes=1)) as running, running.client() as client:
        pods = [
            finite("numba-near", NUMBA, *near),
            finite("numba-far", NUMBA, *far, nodeSelector=WITHOUT_GPUS),
            finite("ptxas-near", ["-c", ASSEMBLED], *near),
            finite("ptxas-far", ["-c", ASSEMBLED], *far, nodeSelector=WITHOUT_GPUS),
        ]
        await manifests.create(client, pods)
        for name in ("numba-near", "numba-far"):
            kernels = json.loads((await log(client, name)).splitlines()[-1])
            assert kernels
            assert all(kernels.values()), kernels
        for name in ("ptxas-near", "ptxas-far"):
            said = json.loads((await log(client, name)).splitlines()[-1])
            assert said == [7, 7, "--xla_gpu_autotune_level=0", OWN]
