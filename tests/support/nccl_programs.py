"""Programs that use NCCL: what a rank is, what all ranks together come to, and what the others see when one is lost."""

from typing import Final

START: Final = """
    context(int(os.environ.get("ORDINAL", "0")))
    nccl = ctypes.CDLL("libnccl.so.2")
    class Id(ctypes.Structure):
        _fields_ = [("bytes", ctypes.c_char * 128)]
    def call(name, *arguments, status=0):
        got = nccl[name](*arguments)
        assert got == status, (name, got)
    def config(**said):
        names = "blocking cga low high".split()
        class Config(ctypes.Structure):
            _fields_ = [("size", ctypes.c_size_t), ("magic", ctypes.c_uint), ("version", ctypes.c_uint),
                        *((name, ctypes.c_int) for name in names), ("net", ctypes.c_char_p)]
        values = {"size": ctypes.sizeof(Config), "magic": 0xCAFEBEEF, "version": 23007, "blocking": 1,
                  "cga": 7, "low": 8, "high": 9}
        return Config(**{**values, **said})
    UNDEFINED = -(1 << 31)
    FLOAT, SUM = 7, 0
"""

# A rank. RANK, RANKS and MEET (where the first one leaves the unique id) are in its environment.
RANK: Final = (
    START
    + """
    rank, ranks, meet = int(os.environ["RANK"]), int(os.environ["RANKS"]), os.environ["MEET"]
    size, pointer = ctypes.c_size_t, ctypes.c_void_p
    def join(meet, rank, ranks):
        unique, made = Id(), pointer()
        if rank == 0:
            call("ncclGetUniqueId", ctypes.byref(unique))
            open(meet + ".new", "wb").write(bytes(unique))
            os.rename(meet + ".new", meet)
        while not os.path.exists(meet):
            time.sleep(0.01)
        unique = Id.from_buffer_copy(open(meet, "rb").read())
        call("ncclCommInitRank", ctypes.byref(made), ranks, unique, rank)
        return made
    def error(of):
        said = ctypes.c_int(-1)
        call("ncclCommGetAsyncError", of, ctypes.byref(said))
        return said.value
"""
)

ANSWERS: Final = (
    RANK
    + """
    stream = ok(d.cuStreamCreate(1))
    on = pointer(int(stream))
    comm = join(meet, rank, ranks)
    types = dict(enumerate(map(np.dtype, "i1 u1 i4 u4 i8 u8 f2 f4 f8".split())))
    def of(each, count, dtype=np.float32):  # what a rank contributes
        return (np.arange(count) % 5 + each + 1).astype(dtype)
    def there(array):
        return pointer(int(upload(np.ascontiguousarray(array))))
    def back(at, like):
        ok(d.cuStreamSynchronize(stream))
        return download(at.value, like)
    def same(got, expected):
        assert np.array_equal(got, expected), (rank, got, expected)
    everybody = range(ranks)
    count = 10_001  # more than passes at once, and no multiple of it
    for kind, dtype in types.items():
        sums = sum(of(each, 100, np.int64) for each in everybody)
        for op, expected in ((0, sums), (1, np.prod([of(each, 100, np.int64) for each in everybody], axis=0)),
                             (2, of(ranks - 1, 100)), (3, of(0, 100)), (4, sums / ranks)):
            at = there(of(rank, 100, dtype))
            call("ncclAllReduce", at, at, size(100), kind, op, comm, on)
            got = back(at, np.zeros(100, dtype))
            if op == 1 and dtype.itemsize == 1 or op == 1 and kind == 6 or op == 4 and kind == 6:
                continue  # more than fits, or rounded: shown by the wider ones
            same(got, (np.floor(expected) if op == 4 and kind < 6 else expected).astype(dtype))
    half = (of(rank, 100).view(np.uint32) >> 16).astype(np.uint16)  # bfloat16
    at = there(half)
    call("ncclAllReduce", at, at, size(100), 9, 0, comm, on)
    same((back(at, half).astype(np.uint32) << 16).view(np.float32), sum(of(each, 100) for each in everybody))

    mine, room = there(of(rank, count)), np.zeros(count * ranks, np.float32)
    whole, parts = there(room), there(np.concatenate([of(rank + each, count) for each in everybody]))
    call("ncclBroadcast", mine, whole, size(count), FLOAT, ranks - 1, comm, on)
    same(back(whole, room)[:count], of(ranks - 1, count))
    call("ncclReduce", mine, whole, size(count), FLOAT, SUM, 0, comm, on)
    if rank == 0:
        same(back(whole, room)[:count], sum(of(each, count) for each in everybody))
    call("ncclAllGather", mine, whole, size(count), FLOAT, comm, on)
    same(back(whole, room), np.concatenate([of(each, count) for each in everybody]))
    call("ncclReduceScatter", parts, whole, size(count), FLOAT, SUM, comm, on)
    same(back(whole, room)[:count], sum(of(each + rank, count) for each in everybody))
    call("ncclAlltoAll", parts, whole, size(count), FLOAT, comm, on)
    same(back(whole, room), np.concatenate([of(each + rank, count) for each in everybody]))
    call("ncclGather", mine, whole, size(count), FLOAT, 1, comm, on)
    if rank == 1:
        same(back(whole, room), np.concatenate([of(each, count) for each in everybody]))
    call("ncclScatter", parts, whole, size(count), FLOAT, 1, comm, on)
    same(back(whole, room)[:count], of(1 + rank, count))
    call("ncclBcast", mine, size(count), FLOAT, 0, comm, on)
    same(back(mine, room[:count]), of(0, count))

    # a ring, both ways at once; then a rank with itself
    call("ncclGroupStart")
    for step, place in ((1, 0), (-1, count)):
        call("ncclSend", parts, size(count), FLOAT, (rank + step) % ranks, comm, on)
        call("ncclRecv", pointer(whole.value + 4 * place), size(count), FLOAT, (rank - step) % ranks, comm, on)
    call("ncclGroupEnd")
    same(back(whole, room)[: 2 * count], np.concatenate([of((rank - step) % ranks, count) for step in (1, -1)]))
    op = ctypes.c_int()
    call("ncclRedOpCreatePreMulSum", ctypes.byref(op), ctypes.byref(ctypes.c_float(0.5)), FLOAT, 1, comm)
    call("ncclAllReduce", parts, whole, size(count), FLOAT, op, comm, on)
    same(back(whole, room)[:count], sum(of(each, count) for each in everybody) / 2)
    call("ncclRedOpDestroy", op, comm)

    # odd and even ranks apart, backwards; then without the first
    split, fewer = pointer(), pointer()
    call("ncclCommSplit", comm, rank % 2, -rank, ctypes.byref(split), None)
    members = [each for each in everybody if each % 2 == rank % 2]
    number = ctypes.c_int()
    call("ncclCommCount", split, ctypes.byref(number))
    assert number.value == len(members)
    call("ncclCommUserRank", split, ctypes.byref(number))
    assert number.value == members[::-1].index(rank)
    if rank:
        call("ncclCommShrink", comm, ctypes.byref(ctypes.c_int(0)), 1, ctypes.byref(fewer), None, 0)
    for some, who in ((split, members), (fewer, everybody[1:])):
        if some.value:
            at = there(of(rank, count))
            call("ncclAllReduce", at, at, size(count), FLOAT, SUM, some, on)
            same(back(at, room[:count]), sum(of(each, count) for each in who))
            call("ncclCommDestroy", some)

    # what training does: all come to the same weights, each from its own part of the data
    weights, rate = np.zeros(64, np.float32), np.float32(0.1)
    for _ in range(20):
        at = there((weights - of(rank, 64)).astype(np.float32))
        call("ncclAllReduce", at, at, size(64), FLOAT, 4, comm, on)
        weights = weights - rate * back(at, weights)
    assert error(comm) == 0
    call("ncclCommFinalize", comm)
    call("ncclCommDestroy", comm)
    say(weights.tolist())
"""
)

LOSES: Final = (
    RANK
    + """
    comm = join(meet, rank, ranks)
    at = pointer(int(upload(np.ones(1000, np.float32))))
    def reduce():
        return nccl.ncclAllReduce(at, at, size(1000), FLOAT, SUM, comm, None)
    assert reduce() == 0
    ok(d.cuCtxSynchronize())
    say("together")
    wait()
    if rank == ranks - 1:
        time.sleep(600)
    reduce()
    d.cuCtxSynchronize()  # it ends, though not all came
    say(error(comm))
    again = reduce()
    after = name(d.cuCtxSynchronize())
    say("error" if again == 6 or after != "SUCCESS" else "none")
    call("ncclCommAbort", comm)
    say(float(download(upload(np.ones(4, np.float32)), np.zeros(4, np.float32)).sum()))  # all else goes on
"""
)
