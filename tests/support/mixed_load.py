"""A program that does a little of everything on its GPUs, and looks at every answer.

`PROGRAM` is run as `python FILE SEED WORK…` and ends with one JSON line and an exit status:

    0   {"done": […]}             all answers were right
    3   {"error": …, "at": …}     a driver call failed; what had been answered before was right
    4   {"wrong": …, "at": …}     an answer was wrong, which nothing excuses
"""

from support import simulated_gpu

DRIVER_ERROR, WRONG = 3, 4
MOST_MIB = 3072
"""No lease of the program is ever larger than this."""

WORKS = ("copies", "allocations", "kernels", "streams", "graphs", "modules", "pools", "fill", "nvml", "counting")
"""Every kind once; "cards" and "child" are for leases of several cards, and take longer."""

COUNT = r"""
.version 8.0
.target sm_70
.address_size 64
.visible .entry count(.param .u64 at, .param .u32 by)
{
    .reg .b32 %r<3>;
    .reg .b64 %d<2>;
    ld.param.u64 %d1, [at];
    ld.param.u32 %r1, [by];
    atom.global.add.u32 %r2, [%d1], %r1;
    ret;
}
"""

_CODE = '''
import random, subprocess

COUNT, MOST = %(count)r, %(most)d << 20
MIB = 1 << 20
chance = random.Random(int(sys.argv[1]))
works, done, at = sys.argv[2:], [], "start"
u32 = ctypes.c_uint32

def end(status, **said):
    print(json.dumps({**said, "at": at} if status else said), flush=True)
    os._exit(status)

def ok(result):
    """The values of a call that must succeed; the program ends where it does not."""
    if int(result[0]) != 0:
        end(%(error)d, error=result[0].name)
    values = result[1:]
    return None if not values else values[0] if len(values) == 1 else values

def right(holds, what):
    if not holds:
        end(%(wrong)d, wrong=what)

def random_bytes(count):
    return np.random.default_rng(chance.randrange(1 << 30)).integers(0, 255, count, dtype=np.uint8)

def free(*pointers):
    for pointer in pointers:
        ok(d.cuMemFree(pointer))

def copies():
    for size in (1, 7, 32769, chance.randrange(1, 1 << 16), chance.randrange(1, 1 << 20), chance.randrange(1, 9 << 20)):
        data = random_bytes(size)
        p, q = upload(data), ok(d.cuMemAlloc(size))
        right((download(p, data) == data).all(), f"{size} bytes there and back")
        s, other = ok(d.cuStreamCreate(1)), data[::-1].copy()
        ok(d.cuMemcpyHtoDAsync(p, other.ctypes.data, size, s))
        ok(d.cuMemcpyDtoDAsync(q, p, size, s))
        ok(d.cuStreamSynchronize(s))
        right((download(q, data) == other).all(), f"{size} bytes, asynchronous")
        ok(d.cuStreamDestroy(s))
        free(p, q)
    size = chance.randrange(1, 4 << 20)
    host = ok(d.cuMemAllocHost(size))
    pinned = np.ctypeslib.as_array((ctypes.c_uint8 * size).from_address(int(host)))
    pinned[:] = data = random_bytes(size)
    p = ok(d.cuMemAlloc(size))
    ok(d.cuMemcpyHtoDAsync(p, int(host), size, 0))
    ok(d.cuCtxSynchronize())
    pinned[:] = 0
    ok(d.cuMemcpyDtoHAsync(int(host), p, size, 0))
    ok(d.cuCtxSynchronize())
    right((pinned == data).all(), "pinned memory")
    ok(d.cuMemFreeHost(int(host)))
    free(p)

def allocations():
    held = {}
    for _ in range(150):
        if held and (len(held) > 20 or chance.random() < 0.4):
            p = chance.choice(list(held))
            size, value = held.pop(p)
            last = np.zeros(1, np.uint8)
            ok(d.cuMemcpyDtoH(last.ctypes.data, p + size - 1, 1))
            right(last[0] == value, f"the last of {size} bytes")
            free(p)
        else:
            size, value = chance.choice([1, 512, 4097, MIB, 3 * MIB, 17 * MIB]), chance.randrange(256)
            p = int(ok(d.cuMemAlloc(size)))
            held[p] = size, value
            # All of what is small, the end of what is large: the memory of the simulated card is the machine's own.
            first = max(0, size - 4097)
            ok(d.cuMemsetD8(p + first, value, size - first))
    free(*held)

def add(n):
    a, b = (np.random.default_rng(chance.randrange(1 << 30)).random(n, np.float32) for _ in range(2))
    f = function(VECTOR_ADD, "add")
    pointers = pa, pb, pc = upload(a), upload(b), ok(d.cuMemAlloc(4 * n))
    for _ in range(chance.randrange(1, 5)):
        ok(launch(f, -(-n // 128), 128, pa, pb, pc, (n, u32)))
    right((download(pc, a) == a + b).all(), f"a sum of {n} numbers")
    free(*pointers)

def kernels():
    for _ in range(3):
        add(chance.randrange(1, 3000))

def counting():
    """Calls that are neither lost nor done twice, whatever happens to the connection meanwhile."""
    f, p, total = function(COUNT, "count"), upload(np.zeros(1, np.uint32)), 0
    until = time.monotonic() + chance.choice([0.3, 0.5, 4])
    while time.monotonic() < until:
        for _ in range(20):
            by = chance.randrange(1, 9)
            ok(launch(f, 1, 1, p, (by, u32)))
            total += by
        right(int(download(p, np.zeros(1, np.uint32))[0]) == total, "the number of launches")
    free(p)

def streams():
    f = function(STORE.replace("DURATION", "300"), "store")
    p = upload(np.zeros(2, np.uint32))
    one, two = ok(d.cuStreamCreate(1)), ok(d.cuStreamCreate(1))
    begun, ended = ok(d.cuEventCreate(0)), ok(d.cuEventCreate(0))
    for value in range(1, 6):
        ok(d.cuEventRecord(begun, one))
        ok(launch(f, 1, 1, p, (value, u32), stream=one))
        ok(d.cuEventRecord(ended, one))
        ok(d.cuStreamWaitEvent(two, ended, 0))
        ok(d.cuMemcpyDtoDAsync(int(p) + 4, p, 4, two))
        ok(d.cuStreamSynchronize(two))
        right((download(p, np.zeros(2, np.uint32)) == value).all(), "the order of two streams")
        right(ok(d.cuEventElapsedTime(begun, ended)) > 0, "time between events")
    for event in (begun, ended):
        ok(d.cuEventDestroy(event))
    for stream in (one, two):
        ok(d.cuStreamDestroy(stream))
    free(p)

def graphs():
    f, p, s = function(COUNT, "count"), upload(np.zeros(2, np.uint32)), ok(d.cuStreamCreate(1))
    ok(d.cuStreamBeginCapture(s, d.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_RELAXED))
    for _ in range(5):
        ok(launch(f, 1, 1, p, (2, u32), stream=s))
    ok(d.cuMemcpyDtoDAsync(int(p) + 4, p, 4, s))
    graph = ok(d.cuStreamEndCapture(s))
    made = ok(d.cuGraphInstantiate(graph, 0))
    ok(d.cuGraphDestroy(graph))
    times = chance.randrange(2, 12)
    for _ in range(times):
        ok(d.cuGraphLaunch(made, s))
    ok(d.cuStreamSynchronize(s))
    right((download(p, np.zeros(2, np.uint32)) == 10 * times).all(), "a graph's launches")
    ok(d.cuGraphExecDestroy(made))
    ok(d.cuStreamDestroy(s))
    free(p)

def modules():
    p = upload(np.zeros(1, np.uint32))
    for size in (0, 100, 40_000):  # beside the call, and asked for
        ptx = STORE.replace("DURATION", "1") + "//" + "x" * size + str(chance.random())
        module = ok(d.cuModuleLoadData(ptx.encode() + b"\\0"))
        value = chance.randrange(1 << 30)
        ok(launch(ok(d.cuModuleGetFunction(module, b"store")), 1, 1, p, (value, u32)))
        right(int(download(p, np.zeros(1, np.uint32))[0]) == value, "a kernel of a new module")
        ok(d.cuModuleUnload(module))
    free(p)

def pools():
    s = ok(d.cuStreamCreate(1))
    for _ in range(10):
        count = chance.randrange(1, 100_000)
        p, out = ok(d.cuMemAllocAsync(4 * count, s)), np.zeros(count, np.uint32)
        ok(d.cuMemsetD32Async(p, count, count, s))
        ok(d.cuMemcpyDtoHAsync(out.ctypes.data, p, 4 * count, s))
        ok(d.cuMemFreeAsync(p, s))
        ok(d.cuStreamSynchronize(s))
        right((out == count).all(), "memory of a pool")
    ok(d.cuStreamDestroy(s))

def fill():
    """All that the lease has, and beyond: refused at a limit that somebody may be changing, and there again after."""
    held, size, given = [], 256 * MIB, 0
    while size >= MIB:
        result, *pointer = d.cuMemAlloc(size)
        if int(result) == 0:
            held += pointer
            given += size
            right(given <= MOST, f"{given >> 20} MiB were given")
        elif result.name == "CUDA_ERROR_OUT_OF_MEMORY":
            size //= 2
        else:
            ok((result,))
    right(given > 0, "nothing was given")
    time.sleep(chance.uniform(0, 0.2))
    free(*held)
    free(ok(d.cuMemAlloc(16 * MIB)))

def nvml():
    try:
        n.nvmlInit()
        for index in range(n.nvmlDeviceGetCount()):
            memory = n.nvmlDeviceGetMemoryInfo(n.nvmlDeviceGetHandleByIndex(index))
            right(0 < memory.total <= MOST, f"NVML shows {memory.total >> 20} MiB")
        n.nvmlShutdown()
    except n.NVMLError as error:
        end(%(error)d, error=str(error))

def cards():
    """Every card for itself, and from the last to the first."""
    contexts, pointers = [], []
    for ordinal in range(ok(d.cuDeviceGetCount())):
        contexts.append(context(ordinal))
        add(chance.randrange(1, 2000))
        pointers.append(upload(np.full(100, ordinal + 1, np.uint32)))
    ok(d.cuMemcpyPeer(pointers[0], contexts[0], pointers[-1], contexts[-1], 400))
    ok(d.cuCtxSetCurrent(contexts[0]))
    like = np.zeros(100, np.uint32)
    right((download(pointers[0], like) == len(contexts)).all(), "what a card has of another")
    for current, pointer in zip(contexts, pointers):
        ok(d.cuCtxSetCurrent(current))
        free(pointer)
    ok(d.cuCtxSetCurrent(contexts[0]))

def child():
    """A second session of the lease."""
    again = subprocess.run([sys.executable, __file__, str(chance.randrange(1 << 30)), "kernels", "copies"], stdout=-1)
    if again.returncode:
        os.write(1, again.stdout)
        os._exit(again.returncode %% 256)

context()
for at in works:
    globals()[at]()
    done.append(at)
end(0, done=done)
'''

PROGRAM = simulated_gpu.source(_CODE % {"count": COUNT, "most": MOST_MIB, "error": DRIVER_ERROR, "wrong": WRONG})
