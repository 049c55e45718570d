"""A program that asks for more than a simulated card does is told so on stderr, without any variable."""

import pytest

from egpu_sim.machines.machine import Machine
from support.simulated_gpu import run

CARDS = ("A100-80G", 2)

HELPERS = """
T, H = d.CUmemAllocationHandleType, d.CUmemLocationType
FILE, FABRIC = T.CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, T.CU_MEM_HANDLE_TYPE_FABRIC
def array(form=d.CUarray_format.CU_AD_FORMAT_FLOAT, flags=0, channels=4):
    a = d.CUDA_ARRAY3D_DESCRIPTOR()
    a.Width, a.Height, a.Flags, a.NumChannels, a.Format = 64, 64, flags, channels, form
    return d.cuArray3DCreate(a)
def placed(handles):
    p = d.CUmemAllocationProp()
    p.type = d.CUmemAllocationType.CU_MEM_ALLOCATION_TYPE_PINNED
    p.location.type, p.location.id, p.requestedHandleTypes = H.CU_MEM_LOCATION_TYPE_DEVICE, 0, handles
    return d.cuMemCreate(2 << 20, p, 0)
def access(flags, kind):
    physical, at = ok(placed(FILE)), ok(d.cuMemAddressReserve(2 << 20, 0, 0, 0))
    ok(d.cuMemMap(at, 2 << 20, 0, physical, 0))
    a = d.CUmemAccessDesc()
    a.location.type, a.location.id, a.flags = kind, 0, flags
    return d.cuMemSetAccess(at, 2 << 20, [a], 1)
def edge():
    graph, data = ok(d.cuGraphCreate(0)), d.CUgraphEdgeData()
    one, two = (ok(d.cuGraphAddEmptyNode(graph, None, 0)) for _ in range(2))
    data.type = d.CUgraphDependencyType.CU_GRAPH_DEPENDENCY_TYPE_PROGRAMMATIC
    return d.cuGraphAddDependencies(graph, [one], [two], [data], 1)
def textured(flags):
    how, of = d.CUDA_TEXTURE_DESC(), d.CUDA_RESOURCE_DESC()
    of.resType, of.res.array.hArray, how.flags = d.CUresourcetype.CU_RESOURCE_TYPE_ARRAY, ok(array()), flags
    return d.cuTexObjectCreate(of, how, None)
def other_pool():
    pool = ok(d.cuDeviceGetDefaultMemPool(1))
    return d.cuMemAllocFromPoolAsync(4096, pool, 0)
context()
"""


@pytest.mark.parametrize(
    ("call", "said"),
    [
        ("array(d.CUarray_format.CU_AD_FORMAT_NV12, channels=3)", "an array of a planar or compressed format"),
        ("array(d.CUarray_format.CU_AD_FORMAT_BC7_UNORM)", "an array of a planar or compressed format"),
        ("array(flags=d.CUDA_ARRAY3D_SPARSE)", "a sparse, depth or colour array"),
        ("textured(1 << 10)", "a texture with such a flag"),
        ("placed(FABRIC)", "cuMemCreate with handles of fabrics or other systems"),
        ("d.cuMemExportToShareableHandle(ok(placed(FILE)), FABRIC, 0)", "cuMemExportToShareableHandle with handles of"),
        ("access(d.CUmemAccess_flags.CU_MEM_ACCESS_FLAGS_PROT_READ, H.CU_MEM_LOCATION_TYPE_DEVICE)",
         "cuMemSetAccess for reading alone"),
        ("access(d.CUmemAccess_flags.CU_MEM_ACCESS_FLAGS_PROT_READWRITE, H.CU_MEM_LOCATION_TYPE_HOST)",
         "cuMemSetAccess for the host"),
        ("edge()", "an edge between kernels of a graph that may overlap"),
        ("other_pool()", "cuMemAllocFromPoolAsync of another device's pool"),
    ],
)  # fmt: skip
def test_a_refusal_has_a_line_with_its_reason(sim: Machine, call: str, said: str) -> None:
    done = run(sim, f"{HELPERS}\nsay([name({call})])", fails=True)
    assert "NOT_SUPPORTED" in done.stdout, done.stdout + done.stderr
    (line,) = [line for line in done.stderr.splitlines() if line.startswith("egpu-sim: ")]
    assert line.startswith(f"egpu-sim: {said}")
    assert "is not simulated: " in line
