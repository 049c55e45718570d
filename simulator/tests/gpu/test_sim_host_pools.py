"""Pools of pinned and managed memory of the simulated driver: memory of the host, in the order of streams."""

from egpu_sim.machines.machine import Machine
from support.simulated_gpu import run

CARDS = ("T4", 1)

HELPERS = """
A, KIND, WHERE = d.CUmemPool_attribute, d.CUmemAllocationType, d.CUmemLocationType
PINNED, MANAGED = KIND.CU_MEM_ALLOCATION_TYPE_PINNED, KIND.CU_MEM_ALLOCATION_TYPE_MANAGED
HOST, NONE, DEVICE = WHERE.CU_MEM_LOCATION_TYPE_HOST, WHERE.CU_MEM_LOCATION_TYPE_NONE, WHERE.CU_MEM_LOCATION_TYPE_DEVICE
NODE, NEAR = WHERE.CU_MEM_LOCATION_TYPE_HOST_NUMA, WHERE.CU_MEM_LOCATION_TYPE_HOST_NUMA_CURRENT
MIB = 1 << 20
def located(where, number=0):
    location = d.CUmemLocation()
    location.type, location.id = where, number
    return location
def create(kind, where, most=0, number=0):
    wanted = d.CUmemPoolProps()
    wanted.allocType, wanted.location, wanted.maxSize = kind, located(where, number), most
    return d.cuMemPoolCreate(wanted)
def used(pool): return int(ok(d.cuMemPoolGetAttribute(pool, A.CU_MEMPOOL_ATTR_USED_MEM_CURRENT)))
def number(at): return ctypes.c_uint32.from_address(int(at))
def alloc(pool, bytes=4096): return d.cuMemAllocFromPoolAsync(bytes, pool, s)
context()
s = ok(d.cuStreamCreate(1))
f = function(STORE.replace("DURATION", "1"), "store")
"""


def test_host_and_device_see_the_same_memory_of_a_host_pool(sim: Machine) -> None:
    """It is freed in the order of the stream, or at once, or with its context, and nothing of it is kept."""
    assert run(
        sim,
        HELPERS
        + """
said = []
for kind, where in ((PINNED, HOST), (MANAGED, HOST), (MANAGED, NONE), (MANAGED, DEVICE)):
    pool = ok(create(kind, where))
    one, two, three = (ok(alloc(pool)) for _ in range(3))
    number(one).value = 1
    ok(launch(f, 1, 1, two, (2, ctypes.c_uint32), stream=s)); ok(d.cuMemcpyDtoDAsync(three, one, 4, s))
    ok(d.cuStreamSynchronize(s))
    values = [number(at).value for at in (one, two, three)]
    held = used(pool); ok(d.cuMemFreeAsync(one, s)); ok(d.cuMemFree(two)); ok(d.cuStreamSynchronize(s))
    said.append([values, held, used(pool), name(d.cuMemFreeHost(int(three))), name(d.cuMemFreeAsync(one, s))])
    ok(d.cuMemPoolDestroy(pool)); number(three).value = 7; ok(d.cuMemFreeAsync(three, s)); ok(d.cuStreamSynchronize(s))
usual = ok(d.cuMemGetMemPool(located(HOST), PINNED)); ok(alloc(usual)); there = used(usual)
ok(d.cuDevicePrimaryCtxReset(0))
say([*said, there, used(usual)])
""",
    ) == [[[1, 2, 1], 12288, 4096, "INVALID_VALUE", "INVALID_VALUE"]] * 4 + [4096, 0]


def test_managed_memory_of_a_pool_is_charged_to_the_card_and_pinned_memory_is_not(sim: Machine) -> None:
    assert run(
        sim,
        HELPERS
        + """
def charged(kind, where):
    before = ok(d.cuMemGetInfo())[0]
    at = ok(alloc(ok(create(kind, where)), 8 * MIB))
    taken = before - ok(d.cuMemGetInfo())[0]
    ok(d.cuMemFreeAsync(at, s)); ok(d.cuStreamSynchronize(s))
    return [taken // MIB, (before - ok(d.cuMemGetInfo())[0]) // MIB]
say([charged(PINNED, HOST), charged(MANAGED, NONE)])
""",
    ) == [[0, 0], [8, 0]]


def test_what_a_pointer_of_a_host_pool_is(sim: Machine) -> None:
    assert run(
        sim,
        HELPERS
        + """
P = d.CUpointer_attribute
said = []
for kind, where in ((PINNED, HOST), (MANAGED, DEVICE)):
    pool = ok(create(kind, where)); at = ok(alloc(pool))
    asked = (P.CU_POINTER_ATTRIBUTE_MEMORY_TYPE, P.CU_POINTER_ATTRIBUTE_IS_MANAGED)
    said.append([int(ok(d.cuPointerGetAttribute(a, at))) for a in asked])
    said.append(int(ok(d.cuPointerGetAttribute(P.CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE, at))) == int(pool))
preferred = ok(d.cuMemRangeGetAttribute(4, d.CUmem_range_attribute.CU_MEM_RANGE_ATTRIBUTE_PREFERRED_LOCATION, at, 4096))
say([*said, preferred])
""",
    ) == [[1, 0], True, [2, 1], True, 0]


def test_each_place_has_its_own_pools(sim: Machine) -> None:
    """A standard pool cannot be destroyed; a pool of another place cannot be made the current one."""
    assert run(
        sim,
        HELPERS
        + """
places = [(DEVICE, PINNED), (HOST, PINNED), (HOST, MANAGED), (NONE, MANAGED), (DEVICE, MANAGED)]
usual = [ok(d.cuMemGetDefaultMemPool(located(*w), k)) for *w, k in places]
own = ok(create(PINNED, HOST, MIB))
ok(d.cuMemSetMemPool(located(HOST), PINNED, own))
now = int(ok(d.cuMemGetMemPool(located(HOST), PINNED))) == int(own)
other = name(d.cuMemSetMemPool(located(HOST), MANAGED, own)), name(d.cuDeviceSetMemPool(0, own))
fits = ok(alloc(own, MIB)); full = name(alloc(own, 1)); ok(d.cuMemPoolDestroy(own))
again = int(ok(d.cuMemGetMemPool(located(HOST), PINNED))) == int(usual[1])
say([len(set(map(int, usual))), now, other, full, again, [name(d.cuMemPoolDestroy(p)) for p in usual[1:3]]])
""",
    ) == [5, True, ["INVALID_DEVICE"] * 2, "OUT_OF_MEMORY", True, ["INVALID_VALUE"] * 2]


def test_what_is_no_memory_is_refused(sim: Machine) -> None:
    """The host has no NUMA nodes, managed memory has no limit, and a graph allocates on the device alone."""
    assert run(
        sim,
        HELPERS
        + """
pool = ok(create(PINNED, HOST))
def access(flag, where):
    wanted = d.CUmemAccessDesc()
    wanted.location, wanted.flags = located(where), flag
    return name(d.cuMemPoolSetAccess(pool, [wanted], 1)), int(ok(d.cuMemPoolGetAccess(pool, located(where))))
F = d.CUmemAccess_flags
BOTH, NOBODY = F.CU_MEM_ACCESS_FLAGS_PROT_READWRITE, F.CU_MEM_ACCESS_FLAGS_PROT_NONE
said = [access(BOTH, DEVICE), access(NOBODY, DEVICE), access(BOTH, HOST), access(NOBODY, HOST)]
wrong = ((PINNED, NONE), (PINNED, NODE), (PINNED, NEAR), (MANAGED, HOST, MIB), (PINNED, DEVICE, 0, 1))
said.append([name(create(*w)) for w in wrong])
ok(d.cuStreamBeginCapture(s, d.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_RELAXED))
say([*said, name(alloc(pool))])
""",
    ) == [
        ["SUCCESS", 3], ["SUCCESS", 0], ["SUCCESS", 3], ["INVALID_VALUE", 3],
        ["INVALID_VALUE"] * 5, "NOT_SUPPORTED",
    ]  # fmt: skip
