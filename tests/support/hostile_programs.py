"""Programs of tenants on one card: honest ones, which want every byte of theirs, and hostile ones, which want more.

Both go on for as long as the storm: a line says what to do, a line of JSON says what came of it. An honest program is
told nothing but its turn. It looks whether what it left in its memory is still there, takes exactly its limit again, is
refused one byte more, fills it with another pattern, and runs a kernel. A hostile program is told which attack of
`ATTACKS` to try, and says what it got that it should not have: nothing, if all is well.
"""

import json
from typing import Any

from support import simulated_gpu
from support.mixed_load import COUNT

MIB = 1 << 20

HONEST = '''
COUNT, LIMIT, PAGE_BYTES = %(count)r, %(limit)d, 2 << 20
chance, wrong, held = np.random.default_rng(%(seed)d), [], None

def right(holds, what):
    if not holds:
        wrong.append(what)

def fill():
    """All of the memory, with a pattern; what was there, and whose it was."""
    given, at = d.cuMemAlloc(LIMIT)
    if int(given) != 0:
        right(False, f"was refused its {LIMIT} bytes: {given.name}, free and total are {ok(d.cuMemGetInfo())}")
        return None
    right(name(d.cuMemAlloc(1)) == "OUT_OF_MEMORY", "a byte more was not refused")
    data = chance.integers(0, 255, LIMIT, dtype=np.uint8)
    ok(d.cuMemcpyHtoD(at, data.ctypes.data, LIMIT))
    return at, data

def counted():
    """Launches that are neither lost nor done twice."""
    # The driver gives whole pages. While a machine stands still, the rest of a page is charged as uncounted memory.
    at, total = upload(np.zeros(PAGE_BYTES // 4, np.uint32)), 0
    for by in map(int, chance.integers(1, 9, 5)):
        ok(launch(adding, 1, 1, at, (by, ctypes.c_uint32)))
        total += by
    right(int(download(at, np.zeros(1, np.uint32))[0]) == total, "the number of launches")
    ok(d.cuMemFree(at))

context()
adding = function(COUNT, "count")
while True:
    if held:
        at, data = held
        right((download(at, data) == data).all(), "bytes are not what was written")
        ok(d.cuMemFree(at))
    shown = tuple(ok(d.cuMemGetInfo()))
    right(shown == (LIMIT, LIMIT), f"of {LIMIT} bytes, {shown} are said to be free and there")
    counted()
    held = fill()
    mark = [int(held[0]), bytes(held[1][:8]).hex()] if held else []
    say({"wrong": wrong, "bytes": LIMIT if held else 0, "mark": mark})
    wrong = []
    wait()
'''

ATTACKS = ("globals", "heaps", "managed", "greed", "pools", "long kernels", "stray pointers", "contexts")
"""What a program can do on the card of any lease or slice."""

FILE_ATTACKS = ("forged account", "damaged file")
"""What one can do whose account is a file of its own: a slice's."""

LIES = ("odd name", "odd maps", "odd root")
"""What a program can do so that whoever watches slices takes it for a neighbour, whose directory it is told."""

LIAR = '''
import mmap, tempfile
GREAT, SECONDS = 5 << 30, 2
how, neighbours = sys.argv[1], sys.argv[2:]

def names():
    """One that no text has, and ones with other fields of its status."""
    for said in ([255, 254], [12, *b"NSpid:"], [10, *b"Uid:", 9, *b"0"], b") S 1 1"):
        ctypes.CDLL(None).prctl(15, bytes(said), 0, 0, 0)
        time.sleep(SECONDS / 4)

def maps(place):
    """Files whose paths hold whole lines of `maps`, which name the pages of neighbours."""
    pages = []
    for page in (f"{one}/policy" for one in neighbours):
        found = os.stat(page)
        device = f"{os.major(found.st_dev):02x}:{os.minor(found.st_dev):02x}"
        for cut in (11, 12, 13, 28, 30, 133, 8232):
            path = f"{place}/{chr(cut)}7f0000000000-7f0000001000 r--s 00000000 {device} {found.st_ino} {page}"
            os.makedirs(os.path.dirname(path), exist_ok=True)
            with open(path, "wb+") as file:
                file.truncate(4096)
                pages.append(mmap.mmap(file.fileno(), 4096, mmap.MAP_SHARED, mmap.PROT_READ))
    time.sleep(SECONDS)

def root(place):
    """One in which the place of its slice is a link to a neighbour's."""
    before = os.open("/", os.O_RDONLY)
    os.mkdir(place + "/opt")
    os.symlink(neighbours[0], place + "/opt/egpu")
    os.chroot(place)
    time.sleep(SECONDS)
    os.fchdir(before)
    os.chroot(".")

with tempfile.TemporaryDirectory() as place:
    context()
    ok(d.cuMemAlloc(GREAT))
    {"name": lambda _: names(), "maps": maps, "root": root}[how](place)
'''

HOSTILE = '''
LIMIT, GREAT, LIAR = %(limit)d, %(great)r, %(liar)r
MIB = 1 << 20
spin = None

def more_than_its_own(got, how):
    return [f"{got} bytes by {how}, beyond its {LIMIT}"] if got > LIMIT else []

def had(how, *results):
    """What was given that cannot be its own."""
    return [how for result in results if name(result) == "SUCCESS"]

def take(allocate, free, how):
    """All that is given, in pieces that get smaller."""
    got, held, size = 0, [], 4 * MIB
    while size >= 4096 and got <= 4 * LIMIT:
        result = allocate(size)
        if name(result) == "SUCCESS":
            got += size
            held.append(result[1])
        else:
            size //= 4
    for pointer in held:
        free(pointer)
    return more_than_its_own(got, how)

def attack_globals(_):
    image = GREAT.encode() + bytes(1)
    return had("5 GiB of variables", d.cuModuleLoadData(image), d.cuModuleLoadDataEx(image, 0, [], []))

def attack_heaps(_):
    limits = [("MALLOC_HEAP_SIZE", 5 << 30), ("PRINTF_FIFO_SIZE", 5 << 30), ("STACK_SIZE", 128 << 10)]
    return [how for limit, size in limits
            for how in had(f"{size} bytes of {limit}", d.cuCtxSetLimit(getattr(d.CUlimit, "CU_LIMIT_" + limit), size))]

def attack_managed(_):
    return take(lambda size: d.cuMemAllocManaged(size, 1), d.cuMemFree, "managed memory") + had(
        "managed memory beyond the limit", d.cuMemAllocManaged(LIMIT + MIB, 1))

def attack_greed(_):
    return take(d.cuMemAlloc, d.cuMemFree, "allocations")

def attack_pools(_):
    stream = ok(d.cuStreamCreate(1))
    found = take(lambda size: d.cuMemAllocAsync(size, stream), lambda at: d.cuMemFreeAsync(at, stream), "a pool")
    ok(d.cuStreamSynchronize(stream))
    ok(d.cuStreamDestroy(stream))
    return found

def attack_long_kernels(_):
    global spin
    spin = spin or function(STORE.replace("DURATION", "5000"), "store")
    at = upload(np.zeros(1, np.uint32))
    for value in range(8):
        ok(launch(spin, 1, 1, at, (value, ctypes.c_uint32)))
    ok(d.cuCtxSynchronize())
    ok(d.cuMemFree(at))
    return []

def attack_stray_pointers(others):
    """Memory of others, by addresses that are theirs; `others`: each address, and the first bytes that are there."""
    found, out = [], np.zeros(8, np.uint8)
    for at, mark in others:
        if name(d.cuMemcpyDtoH(out.ctypes.data, at, 8)) == "SUCCESS" and bytes(out).hex() == mark:
            found.append(f"read a neighbour's bytes at {at:#x}")
    return found

def attack_contexts(_):
    """Contexts without end: refused at some number, and no byte more with them."""
    found = []
    ok(d.cuCtxGetCurrent())
    total = ok(d.cuMemGetInfo())[1]
    if total != LIMIT:
        found.append(f"sees a card of {total} bytes")
    primary = ok(d.cuDevicePrimaryCtxRetain(0))
    ok(d.cuCtxSetCurrent(primary))
    found += take(d.cuMemAlloc, d.cuMemFree, "another context")
    ok(d.cuDevicePrimaryCtxRelease(0))
    return found

def attack_forged_account(_):
    """Its total set back before each allocation: one process remembers what it has itself."""
    import mmap
    path = next(line.split()[-1] for line in open("/proc/self/maps") if line.rstrip().endswith("/usage"))
    with open(path, "r+b") as file:
        usage = mmap.mmap(file.fileno(), 0)

    def forging(size):
        usage[64:72] = bytes(8)
        return d.cuMemAlloc(size)

    return take(forging, d.cuMemFree, "a forged account")

def lie(how, neighbours):
    """By a child that leaves the slice's library out, and has so much that whoever it is taken for is ended."""
    import subprocess
    alone = {key: value for key, value in os.environ.items() if key != "LD_PRELOAD"}
    subprocess.run([sys.executable, "-c", LIAR, how, *neighbours], env=alone, stdout=subprocess.DEVNULL, timeout=60)
    return []

def attack_odd_name(neighbours):
    return lie("name", neighbours)

def attack_odd_maps(neighbours):
    return lie("maps", neighbours)

def attack_odd_root(neighbours):
    return lie("root", neighbours)

context()
say([])
while True:
    asked = json.loads(sys.stdin.readline() or "[]")
    if not asked:
        break
    try:
        say(globals()["attack_" + asked[0].replace(" ", "_")](asked[1]))
    except SystemExit as error:
        say([f"what it may do failed: {error}"])
'''


def honest(limit_bytes: int, seed: int) -> str:
    return HONEST % {"count": COUNT, "limit": limit_bytes, "seed": seed}


def hostile(limit_bytes: int) -> str:
    liar = simulated_gpu.source(LIAR)
    return HOSTILE % {"limit": limit_bytes, "great": simulated_gpu.variables(5 << 30), "liar": liar}


class Tenant(simulated_gpu.Program):
    """A program of a tenant that is spoken to in lines."""

    @property
    def ended(self) -> bool:
        return self.process.poll() is not None

    def ask(self, *words: Any) -> Any:
        """Tell it a line, and its answer. Raises OSError or AssertionError when it is gone."""
        assert self.process.stdin
        self.process.stdin.write(json.dumps(words) + "\n")
        self.process.stdin.flush()
        return self.hear()
