"""What programs that call cuDNN begin with: arrays on the card, descriptors, and graphs of its backend."""

from typing import Final

START: Final = """
    import itertools, threading
    context()
    nn, stream = ctypes.CDLL("libcudnn.so.9"), ok(d.cuStreamCreate(1))
    pointer, long, answers, kept = lambda at: ctypes.c_void_p(int(at)), ctypes.c_int64, [], []
    random = np.random.default_rng(7)
    def call(name, *arguments, status=0):
        got = nn[name](*arguments)
        assert got == status, (name, got)
    def made(name, *arguments):
        object = ctypes.c_void_p()
        call(name, *arguments, ctypes.byref(object))
        return object
    def ints(*numbers):
        return (ctypes.c_int * len(numbers))(*numbers)
    handle = made("cudnnCreate")
    call("cudnnSetStream", handle, pointer(stream))
    found = ctypes.c_void_p()
    call("cudnnGetStream", handle, ctypes.byref(found))
    assert (found.value, nn.cudnnGetVersion()) == (int(stream), 92600)
    def floats(*shape, kind=np.float32):
        return random.standard_normal(shape).astype(kind)
    def card(array):
        kept.append(np.ascontiguousarray(array))
        return pointer(upload(kept[-1]))
    def back(at, like):
        ok(d.cuStreamSynchronize(stream))
        return download(at.value, np.zeros_like(like))
    def near(got, expected, within=1e-4):
        assert np.allclose(got.astype(float), expected.astype(float), rtol=within, atol=within), (got, expected)
        answers.append(got.tobytes().hex())
    TYPES = {"float32": 0, "float64": 1, "float16": 2}
    def of(value, like):
        return ctypes.byref((ctypes.c_double if like.dtype == np.float64 else ctypes.c_float)(value))
    def tensor(array):
        at = made("cudnnCreateTensorDescriptor")
        strides = [step // array.itemsize for step in array.strides]
        call("cudnnSetTensorNdDescriptor", at, TYPES[array.dtype.name], array.ndim, ints(*array.shape), ints(*strides))
        return at
    def weights(array):
        at = made("cudnnCreateFilterDescriptor")
        call("cudnnSetFilterNdDescriptor", at, TYPES[array.dtype.name], 0, array.ndim, ints(*array.shape))
        return at
"""
"""Arrays, and descriptors of cuDNN's functions; `near` compares with numpy's answer, and keeps the bits."""

BACKEND: Final = """
    DATA, BOOLEAN, INT64, FLOAT, POINTER, MODE, HANDLE, DESCRIPTOR = 1, 2, 3, 4, 6, 7, 0, 15
    KINDS = {DATA: ctypes.c_int, BOOLEAN: ctypes.c_bool, INT64: long, FLOAT: ctypes.c_float, MODE: ctypes.c_int}
    def array(type, values):
        values = [value.value if isinstance(value, ctypes.c_void_p) else value for value in values]
        return (KINDS.get(type, ctypes.c_void_p) * len(values))(*values)
    def descriptor(kind, *attributes, status=0):
        at = made("cudnnBackendCreateDescriptor", kind)
        for attribute, type, *values in attributes:
            call("cudnnBackendSetAttribute", at, attribute, type, long(len(values)), array(type, values))
        call("cudnnBackendFinalize", at, status=status)
        return at
    def asked(of, attribute, type, *given):
        there, room = long(), array(type, given)
        call("cudnnBackendGetAttribute", of, attribute, type, long(len(given)), ctypes.byref(there), room)
        return there.value, room
    def shape(array, name):
        strides = [step // array.itemsize for step in array.strides]
        return descriptor(17, (901, DATA, TYPES[array.dtype.name]), (902, INT64, *array.shape), (903, INT64, *strides),
                          (906, INT64, ord(name)), (900, INT64, 4), (907, BOOLEAN, False), (908, BOOLEAN, False))
    def plan(graph):
        heuristics = descriptor(4, (201, DESCRIPTOR, graph), (200, 8, 0))
        count, _ = asked(heuristics, 202, DESCRIPTOR)
        configs = [made("cudnnBackendCreateDescriptor", 3) for _ in range(count)]
        assert asked(heuristics, 202, DESCRIPTOR, *configs)[0] == count == 1
        engine = made("cudnnBackendCreateDescriptor", 2)
        asked(configs[0], 300, DESCRIPTOR, engine)
        notes = (ctypes.c_int * 1)(7)  # more are asked for than there is room for, as none are there
        call("cudnnBackendGetAttribute", engine, 1303, 11, long(10), ctypes.byref(long()), notes)
        assert asked(engine, 1301, INT64, -1)[1][0] == 0 and notes[0] == 7
        made_plan = descriptor(5, (400, HANDLE, handle), (401, DESCRIPTOR, configs[0]))
        assert asked(made_plan, 402, INT64, -1)[1][0] == 0
        assert asked(made_plan, 400, HANDLE, 0)[1][0] == handle.value
        for each in (heuristics, *configs, engine, graph):
            call("cudnnBackendDestroyDescriptor", each)  # what was made of them stays
        return made_plan
"""
"""Descriptors of the backend, and a plan of a graph."""

GRAPH: Final = """
    DATA_TYPES = {"float32": 0, "float16": 2, "int32": 4, "uint8": 6}
    class Tensor:
        def __init__(self, uid, shape, kind, strides, virtual, by_value):
            self.uid, self.shape, self.kind = uid, shape, np.dtype(kind)
            self.strides = strides or [int(np.prod(shape[i + 1:])) for i in range(len(shape))]
            self.is_ = descriptor(17, (901, DATA, DATA_TYPES[self.kind.name]), (902, INT64, *shape),
                                  (903, INT64, *self.strides), (906, INT64, uid), (900, INT64, 16),
                                  (907, BOOLEAN, virtual), (908, BOOLEAN, by_value))
    class Graph:
        "Operations, and what is bound to their tensors."
        def __init__(self):
            self.operations, self.at, self.uid = [], {}, 100
        def tensor(self, shape, kind="float32", strides=None, virtual=False, by_value=False):
            self.uid += 1
            return Tensor(self.uid, list(shape), kind, strides, virtual, by_value)
        def input(self, values):
            made = self.tensor(values.shape, values.dtype)
            self.at[made.uid] = card(values)
            return made
        def value(self, number, kind="float32", rank=4):
            made = self.tensor([1] * rank, kind, by_value=True)
            kept.append(np.array([number], kind))
            self.at[made.uid] = pointer(kept[-1].ctypes.data)
            return made
        def virtual(self, shape, kind="float32", strides=None):
            return self.tensor(shape, kind, strides, virtual=True)
        def output(self, shape, kind="float32"):
            made = self.tensor(shape, kind)
            self.at[made.uid] = card(np.full(shape, 77, kind))
            return made
        def operation(self, type, *attributes, status=0):
            set_ = [(a, k, *(v.is_ if isinstance(v, Tensor) else v for v in values)) for a, k, *values in attributes]
            self.operations.append(descriptor(type, *set_, status=status))
        def pointwise(self, mode, y, x, b=None, t=None, settings=(), alpha=None, status=0):
            how = descriptor(0, (0, 14, mode), (1, DATA, 0), *settings)
            back = 200 <= mode < 300
            given = [(750, DESCRIPTOR, how), (751, DESCRIPTOR, x), (756 if back else 753, DESCRIPTOR, y)]
            given += [(757 if back else 752, DESCRIPTOR, b)] if b else []
            given += [(758, DESCRIPTOR, t)] if t else []
            given += [(754, FLOAT, alpha)] if alpha else []
            self.operation(13, *given, status=status)
            return y
        def product(self, c, a, b):
            how = descriptor(18, (1500, DATA, 0))
            self.operation(19, (1520, DESCRIPTOR, a), (1521, DESCRIPTOR, b), (1522, DESCRIPTOR, c),
                           (1523, DESCRIPTOR, how))
            return c
        def reduction(self, mode, y, x):
            how = descriptor(21, (1600, 18, mode), (1601, DATA, 0))
            self.operation(22, (1610, DESCRIPTOR, x), (1611, DESCRIPTOR, y), (1612, DESCRIPTOR, how))
            return y
        def softmax(self, y, x, stats=None):
            self.operation(45, (3100, DESCRIPTOR, x), (3101, DESCRIPTOR, y),
                           *([(3102, DESCRIPTOR, stats)] if stats else []))
            return y
        def turned(self, x):
            "The last two dimensions of a virtual tensor, in the other order: a view."
            swap = lambda of: [*of[:-2], of[-1], of[-2]]
            y = self.virtual(swap(x.shape), strides=swap(x.strides))
            self.operation(31, (2200, DESCRIPTOR, x), (2201, DESCRIPTOR, y))
            return y
        def descriptor(self):
            return descriptor(15, (800, HANDLE, handle), (801, DESCRIPTOR, *self.operations))
        def plan(self):
            return plan(self.descriptor())
        def pack(self):
            return descriptor(16, (1003, POINTER, 0), (1001, POINTER, *self.at.values()), (1000, INT64, *self.at))
        def run(self):
            call("cudnnBackendExecute", handle, self.plan(), self.pack())
        def got(self, tensor):
            return back(self.at[tensor.uid], np.zeros(tensor.shape, tensor.kind))
"""
"""Graphs of several operations: `Graph`, whose tensors are arrays of the card, values of the program's, or virtual."""
