"""Graphs of the simulated driver: captured, built by hand, changed, launched."""
# ruff: noqa: E501  statements of the programs inside read better on one line

from egpu_sim.machines.machine import Machine
from support.simulated_gpu import run

CARDS = ("T4", 1)

HELPERS = """
MIB = 1 << 20
free = lambda: ok(d.cuMemGetInfo())[0]
GLOBAL, LOCAL, RELAXED = list(d.CUstreamCaptureMode)[:3]
def kinds(graph):
    nodes, count = ok(d.cuGraphGetNodes(graph, 64))
    return [ok(d.cuGraphNodeGetType(n)).name.removeprefix("CU_GRAPH_NODE_TYPE_") for n in nodes[:count]]
def value(at): return int(download(at, np.zeros(1, np.uint32))[0])
def begin(s, mode=RELAXED): ok(d.cuStreamBeginCapture(s, mode))
def instantiate(graph, flags=0): return ok(d.cuGraphInstantiate(graph, flags))
def kernel(f, at, number):
    p = d.CUDA_KERNEL_NODE_PARAMS()
    p.func = f
    p.gridDimX = p.gridDimY = p.gridDimZ = p.blockDimX = p.blockDimY = p.blockDimZ = 1
    p.kernelParams = ((int(at), number), (ctypes.c_uint64, ctypes.c_uint32))
    return p
context()
f = function(STORE.replace("DURATION", "100"), "store")
a, b = upload(np.zeros(4, np.uint32)), upload(np.zeros(4, np.uint32))
s, t = ok(d.cuStreamCreate(1)), ok(d.cuStreamCreate(1))
"""


def test_a_captured_stream_does_nothing_until_its_graph_is_launched(sim: Machine) -> None:
    """Kernels, copies, fills and host memory read at launch; and the whole takes the time of its kernels."""
    assert run(
        sim,
        HELPERS
        + """
source = np.array([5], np.uint32)
begin(s)
ok(launch(f, 1, 1, a, (9, ctypes.c_uint32), stream=s))
ok(d.cuMemcpyDtoDAsync(b, a, 4, s)); ok(d.cuMemsetD32Async(int(b) + 4, 3, 1, s)); ok(d.cuMemcpyHtoDAsync(int(b) + 8, source.ctypes.data, 4, s))
status = [ok(d.cuStreamIsCapturing(s)).name[-6:], name(d.cuStreamQuery(t))]
graph = ok(d.cuStreamEndCapture(s))
early = value(a)
e = instantiate(graph); ok(d.cuGraphDestroy(graph))
source[0] = 6
start, end = ok(d.cuEventCreate(0)), ok(d.cuEventCreate(0))
ok(d.cuEventRecord(start, s))
for _ in range(10): ok(d.cuGraphLaunch(e, s))
ok(d.cuEventRecord(end, s)); ok(d.cuStreamSynchronize(s))
took = ok(d.cuEventElapsedTime(start, end))
ok(d.cuGraphExecDestroy(e))
say([status, early, value(a), download(b, np.zeros(3, np.uint32)).tolist(), 1.0 <= took, name(d.cuGraphLaunch(e, s))])
""",
    ) == [["ACTIVE", "SUCCESS"], 0, 9, [9, 3, 6], True, "INVALID_HANDLE"]


def test_events_fork_and_join_captures(sim: Machine) -> None:
    assert run(
        sim,
        HELPERS
        + """
fork, join = ok(d.cuEventCreate(2)), ok(d.cuEventCreate(2))
def forked(joined):
    begin(s)
    ok(launch(f, 1, 1, a, (1, ctypes.c_uint32), stream=s))
    ok(d.cuEventRecord(fork, s)); ok(d.cuStreamWaitEvent(t, fork, 0))
    ok(launch(f, 1, 1, b, (2, ctypes.c_uint32), stream=t))
    ok(launch(f, 1, 1, int(a) + 4, (3, ctypes.c_uint32), stream=s))
    ok(d.cuEventRecord(join, t))
    if joined:
        ok(d.cuStreamWaitEvent(s, join, 0))
        ok(launch(f, 1, 1, int(b) + 4, (4, ctypes.c_uint32), stream=s))
    other = name(d.cuStreamEndCapture(t))
    return other, d.cuStreamEndCapture(s)
other, result = forked(True)
graph = ok(result)
edges = ok(d.cuGraphGetEdges(graph, 16))[-1]
roots = ok(d.cuGraphGetRootNodes(graph, 16))[-1]
ok(d.cuGraphLaunch(instantiate(graph), s)); ok(d.cuStreamSynchronize(s))
values = download(a, np.zeros(2, np.uint32)).tolist() + download(b, np.zeros(2, np.uint32)).tolist()
unjoined = name(forked(False)[1])
after = ok(d.cuStreamIsCapturing(t)).name[-4:]
say([other, edges, roots, values, unjoined, after, name(d.cuStreamSynchronize(t))])
""",
    ) == ["STREAM_CAPTURE_UNMATCHED", 4, 1, [1, 3, 2, 4], "STREAM_CAPTURE_UNJOINED", "NONE", "SUCCESS"]


def test_what_may_not_be_done_while_capturing(sim: Machine) -> None:
    assert run(
        sim,
        HELPERS
        + """
event = ok(d.cuEventCreate(2))
said = []
begin(s); said += [name(d.cuStreamSynchronize(s)), name(launch(f, 1, 1, a, (1, ctypes.c_uint32), stream=s)), name(d.cuStreamEndCapture(s))]
begin(s, GLOBAL); said += [name(d.cuMemAlloc(64)), name(d.cuStreamEndCapture(s))]
begin(s); said += [name(d.cuMemAlloc(64)), name(d.cuStreamEndCapture(s))]
u = ok(d.cuStreamCreate(0))
begin(u); said += [name(launch(f, 1, 1, a, (1, ctypes.c_uint32))), name(d.cuStreamEndCapture(u))]
ok(d.cuEventRecord(event, t))
begin(s); said += [name(d.cuStreamWaitEvent(s, event, 0)), name(d.cuStreamEndCapture(s))]
begin(s); ok(d.cuEventRecord(event, s)); said += [name(d.cuEventQuery(event)), name(d.cuEventSynchronize(event)), name(d.cuStreamEndCapture(s))]
said += [name(d.cuStreamEndCapture(s)), name(d.cuStreamBeginCapture(0, RELAXED))]
ok(launch(f, 1, 1, a, (7, ctypes.c_uint32))); ok(d.cuCtxSynchronize())
say([said, value(a)])
""",
    ) == [
        [
            "STREAM_CAPTURE_UNSUPPORTED", "STREAM_CAPTURE_INVALIDATED", "STREAM_CAPTURE_INVALIDATED",
            "STREAM_CAPTURE_UNSUPPORTED", "STREAM_CAPTURE_INVALIDATED",
            "SUCCESS", "SUCCESS",
            "STREAM_CAPTURE_IMPLICIT", "STREAM_CAPTURE_INVALIDATED",
            "STREAM_CAPTURE_ISOLATION", "STREAM_CAPTURE_INVALIDATED",
            "CAPTURED_EVENT", "CAPTURED_EVENT", "SUCCESS",
            "ILLEGAL_STATE", "STREAM_CAPTURE_UNSUPPORTED",
        ],
        7,
    ]  # fmt: skip


def test_graphs_by_hand_are_changed_cloned_and_updated(sim: Machine) -> None:
    assert run(
        sim,
        HELPERS
        + """
graph = ok(d.cuGraphCreate(0))
root = ok(d.cuGraphAddEmptyNode(graph, None, 0))
fill = d.CUDA_MEMSET_NODE_PARAMS(); fill.dst, fill.value, fill.elementSize, fill.width, fill.height = int(b), 8, 4, 4, 1
filled = ok(d.cuGraphAddMemsetNode(graph, [root], 1, fill, d.CUcontext(0)))
one = ok(d.cuGraphAddKernelNode(graph, [filled], 1, kernel(f, b, 21)))
params = ok(d.cuGraphKernelNodeGetParams(one))
clone = ok(d.cuGraphClone(graph))
twin = ok(d.cuGraphNodeFindInClone(one, clone))
e = instantiate(graph)
def launched(exec_):
    ok(d.cuGraphLaunch(exec_, s)); ok(d.cuStreamSynchronize(s))
    return download(b, np.zeros(2, np.uint32)).tolist()
first = launched(e)
ok(d.cuGraphExecKernelNodeSetParams(e, one, kernel(f, b, 22))); second = launched(e)
ok(d.cuGraphKernelNodeSetParams(one, kernel(f, b, 23))); untouched = launched(e)
updated = [name(d.cuGraphExecUpdate(e, graph)), launched(e)]
ok(d.cuGraphNodeSetEnabled(e, one, 0)); disabled = launched(e)
twins = launched(instantiate(clone))
ok(d.cuGraphAddEmptyNode(clone, None, 0))
changed = name(d.cuGraphExecUpdate(e, clone))
cycle = [name(d.cuGraphAddDependencies(graph, [one], [root], None, 1)), name(d.cuGraphInstantiate(graph, 0))]
again = name(d.cuGraphAddDependencies(graph, [one], [root], None, 1))
ok(d.cuGraphRemoveDependencies(graph, [one], [root], None, 1))
parent = ok(d.cuGraphCreate(0)); ok(d.cuGraphAddChildGraphNode(parent, None, 0, graph)); child = launched(instantiate(parent))
ok(d.cuGraphDestroyNode(one)); left = kinds(graph)
ok(d.cuGraphDestroy(graph))
say([int(params.gridDimX), int(twin) != int(one), first, second, untouched, updated, disabled, twins, changed, cycle, again, child, left,
     name(d.cuGraphDestroy(graph)), kinds(clone)])
""",
    ) == [
        1, True, [21, 8], [22, 8], [22, 8], ["SUCCESS", [23, 8]], [8, 8], [21, 8], "GRAPH_EXEC_UPDATE_FAILURE",
        ["SUCCESS", "INVALID_VALUE"], "INVALID_VALUE", [23, 8], ["EMPTY", "MEMSET"], "INVALID_VALUE", ["EMPTY", "MEMSET", "KERNEL", "EMPTY"],
    ]  # fmt: skip


def test_memory_that_graphs_allocate(sim: Machine) -> None:
    """Charged while it is allocated; freed by the graph, by the program, or before the next launch."""
    assert run(
        sim,
        HELPERS
        + """
A = d.CUgraphMem_attribute
used = lambda: int(ok(d.cuDeviceGetGraphMemAttribute(0, A.CU_GRAPH_MEM_ATTR_USED_MEM_CURRENT))) // MIB
before = free()
begin(s)
p = ok(d.cuMemAllocAsync(8 * MIB, s))
ok(launch(f, 1, 1, p, (31, ctypes.c_uint32), stream=s)); ok(d.cuMemcpyDtoDAsync(a, p, 4, s)); ok(d.cuMemFreeAsync(p, s))
whole = ok(d.cuStreamEndCapture(s))
types = kinds(whole)
e = instantiate(whole)
for _ in range(3): ok(d.cuGraphLaunch(e, s))
ok(d.cuStreamSynchronize(s))
first = [value(a), used(), before - free()]
begin(s); q = ok(d.cuMemAllocAsync(8 * MIB, s)); ok(launch(f, 1, 1, q, (32, ctypes.c_uint32), stream=s)); half = ok(d.cuStreamEndCapture(s))
h = instantiate(half); ok(d.cuGraphLaunch(h, s))
ok(d.cuMemcpyDtoDAsync(a, q, 4, s)); ok(d.cuStreamSynchronize(s))
second = [value(a), used(), (before - free()) // MIB, name(d.cuGraphLaunch(h, s))]
ok(d.cuMemFreeAsync(q, s)); relaunched = name(d.cuGraphLaunch(h, s)); ok(d.cuMemFree(q))
third = [relaunched, used(), before - free(), name(d.cuMemFree(q))]
ok(d.cuGraphExecDestroy(h)) # there is one at a time
auto = instantiate(half, d.CUgraphInstantiate_flags.CUDA_GRAPH_INSTANTIATE_FLAG_AUTO_FREE_ON_LAUNCH)
for _ in range(3): ok(d.cuGraphLaunch(auto, s))
ok(d.cuStreamSynchronize(s)); fourth = used(); ok(d.cuMemFree(q))
say([types, first, second, third, fourth, before - free()])
""",
    ) == [
        ["MEM_ALLOC", "KERNEL", "MEMCPY", "MEM_FREE"], [31, 0, 0], [32, 8, 8, "INVALID_VALUE"], ["SUCCESS", 0, 0, "INVALID_VALUE"], 8, 0,
    ]  # fmt: skip


def test_what_a_stream_writes_stays_and_is_of_one_graph(sim: Machine) -> None:
    """Of a graph that is being written nothing goes away, no edge leads to another; a capture goes with its stream."""
    assert run(
        sim,
        HELPERS
        + """
graph, other = ok(d.cuGraphCreate(0)), ok(d.cuGraphCreate(0))
mine, stranger = ok(d.cuGraphAddEmptyNode(graph, None, 0)), ok(d.cuGraphAddEmptyNode(other, None, 0))
strange = name(d.cuStreamBeginCaptureToGraph(s, graph, [stranger], None, 1, RELAXED))
ok(d.cuStreamBeginCaptureToGraph(s, graph, [mine], None, 1, RELAXED))
ok(d.cuMemsetD32Async(int(b), 3, 1, s))
written = [name(d.cuGraphDestroy(graph)), name(d.cuGraphDestroyNode(mine))]
crossed = name(d.cuStreamUpdateCaptureDependencies(s, [stranger], None, 1, 0))
ok(d.cuStreamEndCapture(s))
left = kinds(graph)
after = [left, *(name(r) for r in (d.cuGraphDestroyNode(mine), d.cuGraphDestroy(graph), d.cuGraphDestroy(other)))]
for _ in range(20):  # the stream goes, and the capture with it: neither calls nor other streams meet it
    gone = ok(d.cuStreamCreate(0))
    begin(gone, GLOBAL)
    event = ok(d.cuEventCreate(0))
    ok(d.cuEventRecord(event, gone)); ok(d.cuStreamWaitEvent(t, event, 0))
    ok(d.cuStreamDestroy(gone))
    again = [ok(d.cuStreamIsCapturing(t)).name[-4:], name(d.cuMemAlloc(4096)), name(d.cuMemsetD32(int(b), 1, 1)),
             name(d.cuStreamEndCapture(t))]
    ok(d.cuEventDestroy(event))
say([strange, written, crossed, after, again])
""",
    ) == [
        "INVALID_VALUE", ["INVALID_VALUE"] * 2, "INVALID_VALUE", [["EMPTY", "MEMSET"], "SUCCESS", "SUCCESS", "SUCCESS"],
        ["NONE", "SUCCESS", "SUCCESS", "ILLEGAL_STATE"],
    ]  # fmt: skip


def test_a_graph_with_memory_is_whole_and_one(sim: Machine) -> None:
    """As the documentation of cuGraphAddMemAllocNode has it."""
    assert run(
        sim,
        HELPERS
        + """
begin(s); p = ok(d.cuMemAllocAsync(MIB, s)); ok(d.cuMemsetD32Async(p, 3, 1, s)); ok(d.cuMemFreeAsync(p, s))
graph = ok(d.cuStreamEndCapture(s))
nodes, count = ok(d.cuGraphGetNodes(graph, 8))
parent = ok(d.cuGraphCreate(0))
e = instantiate(graph)
begin(t)
captured = name(d.cuGraphLaunch(e, t))
ok(d.cuStreamEndCapture(t))
say([name(d.cuGraphClone(graph)), name(d.cuGraphAddChildGraphNode(parent, None, 0, graph)), captured,
     [name(d.cuGraphDestroyNode(node)) for node in nodes[:count]],
     name(d.cuGraphRemoveDependencies(graph, [nodes[0]], [nodes[1]], None, 1)), name(d.cuGraphLaunch(e, s))])
""",
    ) == ["NOT_SUPPORTED", "NOT_SUPPORTED", "NOT_SUPPORTED", ["NOT_SUPPORTED"] * 3, "NOT_SUPPORTED", "SUCCESS"]


GRID_BARRIER = r"""
.version 8.0
.target sm_70
.address_size 64
.visible .entry together(.param .u64 at, .param .u32 blocks)
{
    .reg .pred %p;
    .reg .b32 %r<6>;
    .reg .b64 %d<4>;
    ld.param.u64 %d1, [at];
    ld.param.u32 %r1, [blocks];
    atom.global.add.u32 %r2, [%d1], 1;
WAIT:
    ld.volatile.global.u32 %r3, [%d1];
    setp.lt.u32 %p, %r3, %r1;
    @%p bra WAIT;
    mov.u32 %r4, %ctaid.x;
    mul.wide.u32 %d2, %r4, 4;
    add.u64 %d3, %d1, %d2;
    st.global.u32 [%d3+4], %r3;
    ret;
}
"""


def test_blocks_of_a_cooperative_launch_wait_for_each_other(sim: Machine) -> None:
    assert run(
        sim,
        f"GRID_BARRIER = {GRID_BARRIER!r}\n"
        + HELPERS
        + """
g = function(GRID_BARRIER, "together")
def cooperative(blocks, threads=1):
    at = upload(np.zeros(blocks + 1, np.uint32))
    result = d.cuLaunchCooperativeKernel(g, blocks, 1, 1, threads, 1, 1, 0, s, ((int(at), blocks), (ctypes.c_uint64, ctypes.c_uint32)))
    if int(result[0]) != 0: return name(result)
    ok(d.cuStreamSynchronize(s))
    return set(download(at, np.zeros(blocks + 1, np.uint32)).tolist()) == {blocks}
say([cooperative(1), cooperative(24), cooperative(100000), cooperative(500), ok(d.cuDeviceGetAttribute(d.CUdevice_attribute.CU_DEVICE_ATTRIBUTE_COOPERATIVE_LAUNCH, 0))])
""",
    ) == [True, True, "COOPERATIVE_LAUNCH_TOO_LARGE", True, 1]
