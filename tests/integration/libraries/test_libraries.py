"""Libraries forwarded to the server's own: what arrives is what was sent, and what there is not is said."""

import ctypes
import json
import re
import struct
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Final

import pytest
from library_codec import table

from egpu.adapters.native import path
from egpu.core.provisioners.preparation import FORWARDED
from egpu_sim.machines.machine import Machine
from support.raw_session import Raw
from support.remote_gpu import remote
from support.simulated_gpu import environment, run
from support.waiting import DEADLINE_SECONDS

CARDS = ("A100-80G", 1)
NATIVE: Final = Path(__file__).resolve().parents[3] / "native"
WIRE: Final = NATIVE / "wire"
HOST_IS_NULL, INVALID_VALUE = (1 << 64) - 1, 1
LIBRARIES: Final = table.read_all(NATIVE / "libraries")
FUNCTIONS: Final = [f for x in LIBRARIES for f in x.functions if not f.local]

HOST, CARD = 0, 1
"""Pointer modes."""
Argument = int | str | None
COMMUNICATOR: Final = ("libnccl.so.2", "ncclCommInitAll", ["*8", 1, None])
"""A call that makes a `nccl_comm`, which no function of the table does."""
ONES: Final = (1).to_bytes(4, "little") * 4
INT, LONG, ADDRESS = 0x101, -(1 << 40), 0x7F00_0000_1000
"""What the first parameter of each form is; the next ones are larger by one."""

# Makes calls in one process: of each it is given the library, the name and the arguments, and says what was returned
# and what was written to host memory. An argument is a number, one of floating point ("=f1.5", "=d1.5"), hexadecimal
# bytes, how many bytes of room ("+8"; "*8" for what is made, "!512" for what is made in that room), or the object that
# was made by an earlier call ("@K").
CALLER: Final = """
import ctypes, json, sys
objects = {}
def argument(said):
    if said is None or isinstance(said, int):
        return ctypes.c_uint64((said or 0) % 2**64), None
    if said[0] == "@":
        made = objects[said[1:]]
        return (ctypes.c_uint64(made) if isinstance(made, int) else made), None
    if said[0] == "=":
        return (ctypes.c_float if said[1] == "f" else ctypes.c_double)(float(said[2:])), None
    room = ctypes.create_string_buffer(int(said[1:]) if said[0] in "+*!" else bytes.fromhex(said))
    return room, room
libraries = {}
for soname, symbol, given in json.load(sys.stdin):
    library = libraries.setdefault(soname, ctypes.CDLL(soname))
    passed = [argument(said) for said in given]
    status = library[symbol](*(value for value, _ in passed))
    for said, (value, _) in zip(given, passed):
        if isinstance(said, str) and said[0] in "*!":
            objects[symbol] = int.from_bytes(value.raw[:8], "little") if said[0] == "*" else value
    print(json.dumps([status, [room and bytes(room).hex() for _, room in passed]]))
"""


def bytes_of(parameter: table.Parameter, values: dict[str, int]) -> int:
    """What a table's expression comes to, with these values."""
    count = 1
    for factor in parameter.detail.replace("(uint64_t)", "").split(" * "):
        count *= int(factor) if factor.isdecimal() else values.get(factor, 4)
    return count


def written(count: int) -> str:
    """What the recording writes where a library would."""
    return bytes(0x5A ^ i & 0xFF for i in range(count)).hex()


class Call:
    """One call: what is passed, what the recording must say, and what must come back."""

    def __init__(self, function: table.Function, mode: int) -> None:
        self.function, self.mode = function, mode
        # types are numbers for which the bytes of a scalar are 4, as `bytes_of` has it; what bytes are counted by is 4
        said = " ".join(p.detail for p in function.parameters if p.form not in ("below", "among"))
        types = {"scaleType": 0} | dict.fromkeys(re.findall(r"type_bytes\((\w+)\)", said), 0)
        if function.having("set", "got"):
            types |= {"attributeName": 900, "attributeType": 3}  # elements of 8 bytes
        for computed, of in re.findall(r"scale_bytes\((\w+), (\w+)\)", said):
            types |= {computed: 68, of: 0}
        types |= dict.fromkeys(re.findall(r"nccl_bytes\((\w+)\)", said), 7)
        fixed = {p.name: 4 for p in function.parameters if re.search(rf"\b{p.name}\b", said)}
        fixed |= types | {p.name: int(p.detail) - 1 for p in function.having("below")}
        forms: dict[str, Callable[[int], int]] = {
            "long": lambda i: LONG + i,
            "wide": lambda i: -LONG + i,
            "device": lambda i: ADDRESS + i,
            "stream": lambda _: 0,
            "bind": lambda _: 0,
            "keep": lambda _: mode,
            "char": lambda _: ord("A"),
            "among": lambda _: 2,
            "residence": lambda _: int(mode == HOST),
        }
        self.values = {
            p.name: fixed.get(p.name, forms.get(p.form, lambda i: INT + i)(i)) for i, p in enumerate(function.own)
        }
        self.given: list[Argument] = []
        self.arrives: list[str] = []
        self.returned: list[str | None] = []
        for i, p in enumerate(function.own):
            self._add(i, p)

    def _on_host(self, p: table.Parameter) -> bool:
        return self.mode == HOST or p.form not in table.BY_MODE

    def _add(self, i: int, p: table.Parameter) -> None:
        given: Argument = self.values[p.name]
        arrives, returned = [self._word(p, given)], None
        if p.form in ("float", "double"):
            given, arrives = f"={p.form[0]}1.5", [f"b{struct.pack(f'<{p.form[0]}', 1.5).hex()}"]
        elif p.form in ("use", "destroy") or (p.form == "optional" and self.mode == HOST):
            given, arrives = f"@{p.detail}", [f"@{p.detail}"]
        elif p.form == "optional":
            given, arrives = None, [f"w{'00' * 8}"]
        elif p.form == "create":
            held = p.kind.held_bytes if p.kind else 0
            given, arrives = f"!{held}" if held else "*8", [f"*{p.detail}"]
        elif p.form == "scratch":
            given, arrives = None, []
        elif p.form == "streams":
            given = "00" * 8 * self.values[p.detail]  # so many of the default one
            arrives = [f"b{given}"]
        elif p.form == "scale":  # objects have data of type 0 or 1, as the mode is
            given = bytes((i + k) & 0xFF for k in range(8 if self.mode else 4)).hex()
            arrives, returned = [f"b{given}"], given
        elif p.form == "there":
            given, arrives, returned = "+8", [], written(8)
        elif p.form in ("set", "got"):
            given = bytes((i + k) & 0xFF for k in range(8 * 4)).hex()
            arrives, returned = ([f"b{given}"], given) if p.form == "set" else ([], written(8 * 4))
        elif p.form in ("in", "inout", "out", *table.BY_MODE) and self._on_host(p):
            count = bytes_of(p, self.values)
            lengths = re.search(rf"cudnn_labels\(\w+, {p.name}\)", " ".join(q.detail for q in self.function.parameters))
            content = (bytes((i + k) & 0xFF for k in range(count)) if lengths is None else ONES[:count]).hex()
            reads, writes = p.form in ("in", "inout", "scalar", "both"), p.form not in ("in", "scalar")
            given = content if reads else f"+{count}"
            arrives = [f"b{content}"] if reads else []
            returned = written(count) if writes else content
        elif p.form in table.BY_MODE:
            given = ADDRESS + i
            arrives = [self._word(p, given)]
        self.given.append(given)
        self.arrives += arrives
        self.returned.append(returned)

    @staticmethod
    def _word(p: table.Parameter, value: int) -> str:
        of_four = table.VALUES.get(p.form) == "int"
        return "w" + (value % (1 << (32 if of_four else 64))).to_bytes(8, "little").hex()


def soname_of(symbol: str) -> str:
    return next(x.soname for x in LIBRARIES if symbol in x.exports)


def in_order(mode: int) -> list[Call]:
    """Every function once: objects are made first, each after those that it is made of, and destroyed last."""
    makes: list[table.Function] = []
    made = {"nccl_comm"}
    while left := [f for f in FUNCTIONS if f.having("create") and f not in makes]:
        ready = [f for f in left if {p.detail for p in f.having("use")} <= made]
        assert ready, left
        makes += ready
        made |= {p.detail for f in makes for p in f.having("create")}
    ends = [f for f in FUNCTIONS if f.having("destroy")]
    sets = [f for f in FUNCTIONS if f.having("keep") and f not in makes]
    rest = [f for f in FUNCTIONS if f not in (*makes, *ends, *sets)]
    return [Call(f, mode) for f in (*makes, *sets, *rest, *ends)]


def made_by(kind: str) -> str:
    if kind == "nccl_comm":
        return COMMUNICATOR[1]
    return next(f.symbol for f in FUNCTIONS for p in f.having("create") if p.detail == kind)


def run_calls(client: Path, calls: list[tuple[str, str, list[Argument]]]) -> tuple[list[tuple[int, list[str]]], str]:
    """What each returned, and what was said on stderr."""
    done = subprocess.run(
        [sys.executable, "-c", CALLER],
        input=json.dumps(calls),
        env=environment(client),
        capture_output=True,
        text=True,
        timeout=DEADLINE_SECONDS,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()], done.stderr


@pytest.fixture(scope="module")
def recording(sim: Machine, tmp_path_factory: pytest.TempPathFactory) -> Machine:
    """A machine whose libraries say what arrives."""
    folder = tmp_path_factory.mktemp("recording")
    for item in sim.driver_dir.iterdir():
        (folder / item.name).symlink_to(item.resolve())
    for library in LIBRARIES:
        (folder / library.soname).unlink(missing_ok=True)
        flags = [
            f'-DRECORDING="generated/recording_{library.name.lower()}.h"',
            "-shared",
            "-fPIC",
            "-I",
            str(NATIVE / "wire"),
        ]
        source = NATIVE / "tests" / "libraries" / "recording.c"
        subprocess.run(["cc", *flags, "-o", str(folder / library.soname), str(source)], check=True)
    return Machine(sim.node_name, sim.directory, folder, sim.device_dir, sim.state, sim.cards)


def named(text: Argument) -> Argument:
    """An argument that is an object, by the call that made it."""
    return f"@{made_by(text[1:])}" if isinstance(text, str) and text.startswith("@") else text


@pytest.mark.parametrize("mode", [HOST, CARD])
def test_what_arrives_is_what_was_sent(recording: Machine, tmp_path: Path, mode: int) -> None:
    calls = in_order(mode)
    descriptor: list[Argument] = [f"@{made_by('cublaslt_matmul')}", 2, mode.to_bytes(4, "little").hex(), 4]
    asked: list[tuple[str, str, list[Argument]]] = [
        (soname_of(c.function.symbol), c.function.symbol, [named(g) for g in c.given]) for c in calls
    ]
    symbols = [c.function.symbol for c in calls]
    beside = {
        symbols.index("cublasSetPointerMode_v2"): (
            soname_of("cublasLtMatmul"),
            "cublasLtMatmulDescSetAttribute",
            descriptor,
        ),
        0: COMMUNICATOR,
        symbols.index("ncclCommDeregister"): COMMUNICATOR,
    }
    added = [at + i for i, at in enumerate(sorted(beside))]
    for at, call in zip(added, (beside[at] for at in sorted(beside)), strict=True):
        asked.insert(at, call)
    with remote(recording, tmp_path, "shm", "--network") as (client, executor, _):
        answers, said = run_calls(client, asked)
    recorded = [line.split()[1:] for line in executor.stderr().splitlines() if line.startswith("recorded ")]
    recorded = [words for words in recorded if not words[0].startswith("ncclGroup")]
    made = iter([recorded[at][1] for at in added if recorded[at][0] == COMMUNICATOR[1]])
    for at in reversed(added):
        del answers[at], recorded[at]
    assert said == ""
    assert len(recorded) == len(calls) == len(answers) > 180
    objects: dict[str, str] = {"nccl_comm": next(made)}
    for call, (status, returned), (symbol, *words) in zip(calls, answers, recorded, strict=True):
        if symbol == "ncclCommDeregister":  # the first one was aborted
            objects["nccl_comm"] = next(made)
        arrives = [objects[text[1:]] if text.startswith("@") else text for text in call.arrives]
        for text, word in zip(call.arrives, words, strict=True):
            if text.startswith("*"):
                objects.setdefault(text[1:], word)  # what is used is the first of its kind
                arrives[call.arrives.index(text)] = word
        assert symbol == call.function.symbol
        assert words == arrives, symbol
        assert status == {"size": 130400, "nothing": status}.get(call.function.gives, 0), symbol
        for expected, got in zip(call.returned, returned, strict=True):
            assert expected is None or got[: len(expected)] == expected, symbol


HELD: Final = """
    context()
    sparse, solver = ctypes.CDLL("libcusparseLt.so.0"), ctypes.CDLL("libcusolver.so.12")
    def room(content=b""):
        return ctypes.create_string_buffer(content, 512)
    def made(name, at, *arguments):
        assert sparse["cusparseLt" + name](*arguments[:1], at, *arguments[1:]) == 0
        return at.raw[:8]
    def matrix(at):
        return made("DenseDescriptorInit", at, handle, *map(ctypes.c_int64, (8, 8, 8)), 16, 0, 1)
    handle, product, first, second = room(), room(), room(), room()
    made("Init", handle)
    one = matrix(first)
    said = [matrix(first) == one, matrix(second) == one]
    moved = room(first.raw)  # a copy is the same object; made there, it is another
    said.append(sparse.cusparseLtSpMMACompressedSize2(handle, moved, *(ctypes.byref(ctypes.c_size_t()) for _ in "ab")))
    said.append(matrix(moved) == one)
    assert sparse.cusparseLtMatDescriptorDestroy(first) == 0
    said.append(sparse.cusparseLtMatDescriptorDestroy(first))
    said.append(matrix(first) == one)
    made("MatmulDescriptorInit", product, handle, 0, 0, first, first, first, first, 0)
    value = ctypes.byref(ctypes.c_int(1))
    said += [sparse.cusparseLtMatmulDescSetAttribute(handle, product, at, value, 4) for at in (0, 5, 6, 63, -1)]
    said.append(sparse.cusparseLtMatmulDescSetAttribute(handle, first, 0, value, 4))  # of another kind
    solve = ctypes.c_void_p()
    assert solver.cusolverDnCreate(ctypes.byref(solve)) == 0
    params = ctypes.c_void_p()
    assert solver.cusolverDnCreateParams(ctypes.byref(params)) == 0
    def factor(bytes_on_host):
        long = ctypes.c_int64
        assert solver.cusolverDnXpotrf(solve, params, 0, long(4), 0, None, long(4), 0, None, long(0), None,
                                       long(bytes_on_host), None) == 0
        return name(d.cuCtxSynchronize())
    say([*said, factor(1 << 20), factor(1 << 40)])
"""


def test_sizes_of_64_bits_below_zero_are_refused_at_once(recording: Machine, tmp_path: Path) -> None:
    blas, one = "libcublas.so.13", "00" * 4
    asked: list[tuple[str, str, list[Argument]]] = [(blas, "cublasCreate_v2", ["*8"])]
    for m, n, k in ((-1, 1, 1), (1, -1, 1), (1, 1, -(1 << 40)), (1 << 40, 1, 1)):
        sizes: list[Argument] = ["@cublasCreate_v2", 0, 0, m, n, k]
        asked.append((blas, "cublasSgemm_v2_64", [*sizes, one, ADDRESS, 1, ADDRESS, 1, one, ADDRESS, 1]))
    for rows, element in ((-1, 4), (1, 0), (1 << 62, 4)):
        asked.append((blas, "cublasSetMatrixAsync_64", [rows, 1, element, ADDRESS, 1 << 62, ADDRESS, 1 << 62, None]))
    with remote(recording, tmp_path, "shm") as (client, executor, _):
        answers, said = run_calls(client, asked)
    assert [status for status, _ in answers] == [0, 7, 7, 7, 0, 7, 7, 7]
    assert said == ""
    assert len([line for line in executor.stderr().splitlines() if " cublasSgemm_v2_64 " in line]) == 1


def test_a_function_with_wide_sizes_has_a_twin(tmp_path: Path) -> None:
    said = (NATIVE / "libraries/cublas.yaml").read_text()
    (tmp_path / "cublas.yaml").write_text(said.replace("cublasSaxpy_v2_64,", "cublasSaxpy_v3_64,"))
    with pytest.raises(ValueError, match="cublasSaxpy_v3_64"):
        table.read(tmp_path / "cublas.yaml")


def test_objects_in_a_programs_memory_are_names(recording: Machine, tmp_path: Path) -> None:
    """Made again in one place, they are the same; room that only the library uses is the server's, and bounded."""
    with remote(recording, tmp_path, "shm") as (client, _, _):
        again, elsewhere, copied, made_over, destroyed, anew, *attributes, lent, too_much = run(client, HELD)
    assert (again, elsewhere, copied, made_over, destroyed, anew) == (True, False, 0, False, 1, False)
    assert attributes == [0, 10, 10, 10, 10, 1]  # CUSPARSE_STATUS_NOT_SUPPORTED, CUSPARSE_STATUS_NOT_INITIALIZED
    assert (lent, too_much) == ("SUCCESS", "OUT_OF_MEMORY")


BACKEND: Final = """
    context()
    nn, long = ctypes.CDLL("libcudnn.so.9"), ctypes.c_int64
    def made(name, *arguments):
        object = ctypes.c_void_p()
        assert nn[name](*arguments, ctypes.byref(object)) == 0
        return object
    def values(kind, *numbers):
        return (kind * len(numbers))(*(n.value if isinstance(n, ctypes.c_void_p) else n for n in numbers))
    def put(of, attribute, type, array):
        return nn.cudnnBackendSetAttribute(of, attribute, type, long(len(array)), array)
    def get(of, attribute, type, array):
        return nn.cudnnBackendGetAttribute(of, attribute, type, long(len(array)), None, array)
    INT64, POINTER, BOOLEAN, HANDLE, DESCRIPTOR, CHAR, UNKNOWN = 3, 6, 2, 0, 15, 24, 33
    handle, legacy = made("cudnnCreate"), made("cudnnCreateTensorDescriptor")
    kinds = (17, 15, 4, 3, 3, 16)
    tensor, graph, heuristics, first, second, pack = (made("cudnnBackendCreateDescriptor", kind) for kind in kinds)
    objects, words = lambda *these: values(ctypes.c_void_p, *these), lambda *these: values(ctypes.c_uint64, *these)
    assert put(graph, 800, HANDLE, objects(handle)) == 0
    assert put(graph, 801, DESCRIPTOR, objects(tensor, heuristics)) == 0
    results = objects(first, second)
    assert get(heuristics, 202, DESCRIPTOR, results) == 0 and results[0] == first.value
    assert put(pack, 1001, POINTER, words(0x7f0000001000, 0x7f0000002000)) == 0
    assert put(tensor, 908, BOOLEAN, values(ctypes.c_bool, False)) == 0
    say([put(tensor, 900, POINTER, words(1)), put(tensor, 1001, INT64, words(1)), put(tensor, 800, UNKNOWN, words(1)),
         put(tensor, 9999, INT64, words(1)), put(tensor, 405, CHAR, values(ctypes.c_char, b"{")),
         put(graph, 801, DESCRIPTOR, objects(legacy)), put(graph, 801, DESCRIPTOR, objects(*[tensor] * 1025)),
         nn.cudnnBackendFinalize(handle), nn.cudnnBackendSetAttribute(graph, 801, INT64, long(-1), None)])
"""


def test_an_attribute_is_what_its_type_says(recording: Machine, tmp_path: Path) -> None:
    """Objects arrive as the server's, addresses of the card as they are; what may be one of the host does not."""
    with remote(recording, tmp_path, "shm") as (client, executor, _):
        assert run(client, BACKEND) == [3000] * 5 + [2000] * 4  # CUDNN_STATUS_NOT_SUPPORTED, CUDNN_STATUS_BAD_PARAM
        lines = [line.split()[1:] for line in executor.stderr().splitlines() if line.startswith("recorded cudnn")]
    made = [words[-1][1:] for symbol, *words in lines if "Create" in symbol]
    handle, _, tensor, graph, heuristics, first, second, pack = made
    arrived = [(words[0][1:], words[-1]) for symbol, *words in lines if "Attribute" in symbol]
    assert arrived == [
        (graph, f"b{handle}"),
        (graph, f"b{tensor}{heuristics}"),
        (heuristics, f"b{first}{second}"),
        (pack, "b" + struct.pack("<2Q", 0x7F00_0000_1000, 0x7F00_0000_2000).hex()),
        (tensor, "b00"),
    ]


BY_VALUE: Final = (
    BACKEND[: BACKEND.index("    kinds = ")]
    + """
    kinds = (17, 17, 13, 15, 4, 3, 5, 16)
    value, other, add, graph, heuristics, config, plan, pack = (made("cudnnBackendCreateDescriptor", k) for k in kinds)
    words, objects = lambda *these: values(ctypes.c_uint64, *these), lambda *these: values(ctypes.c_void_p, *these)
    number, IDS, POINTERS = ctypes.c_float(1.5), 1000, 1001
    for each, id, by_value in ((value, 7, True), (other, 8, False)):
        assert put(each, 901, 1, values(ctypes.c_int, 0)) == put(each, 902, INT64, words(1, 1)) == 0
        assert put(each, 906, INT64, words(id)) == put(each, 908, BOOLEAN, values(ctypes.c_bool, by_value)) == 0
    def describe(by):
        assert put(add, 751, DESCRIPTOR, objects(by)) == put(add, 753, DESCRIPTOR, objects(other)) == 0
        assert put(graph, 801, DESCRIPTOR, objects(add)) == put(heuristics, 201, DESCRIPTOR, objects(graph)) == 0
        assert get(heuristics, 202, DESCRIPTOR, objects(config)) == put(plan, 401, DESCRIPTOR, objects(config)) == 0
        assert put(pack, IDS, INT64, words(7, 8)) == 0
        assert put(pack, POINTERS, POINTER, words(ctypes.addressof(number), 0x7f0000001000)) == 0
    def execute():
        return nn.cudnnBackendExecute(handle, plan, pack)
    describe(value)
    said = [execute()]
    number.value = 2.5
    said.append(execute())
    assert put(pack, POINTERS, POINTER, words(0, 0x7f0000001000)) == 0
    said.append(execute())  # nothing is there to be read
    assert put(value, 902, INT64, words(3, 2)) == put(add, 751, DESCRIPTOR, objects(value)) == 0
    plan = made("cudnnBackendCreateDescriptor", 5)
    graph, heuristics, config = (made("cudnnBackendCreateDescriptor", k) for k in (15, 4, 3))
    describe(value)
    said.append(execute())  # more than can be sent
    say([said, hex(ctypes.addressof(number))])
"""
)


def test_a_value_of_the_program_is_read_where_the_program_is(recording: Machine, tmp_path: Path) -> None:
    """The server's library gets an address of the server's: it never reads where a client says."""
    with remote(recording, tmp_path, "shm") as (client, executor, _):
        said, at = run(client, BY_VALUE)
        lines = [line.split()[1:] for line in executor.stderr().splitlines() if line.startswith("recorded cudnn")]
    assert said == [0, 0, 2000, 3000]  # CUDNN_STATUS_BAD_PARAM, CUDNN_STATUS_NOT_SUPPORTED
    done = [i for i, (symbol, *_) in enumerate(lines) if symbol == "cudnnBackendExecute"]
    assert len(done) == 2
    packs = [words[2] for words in (lines[i][1:] for i in done)]
    for pack in packs:
        pointers = [words[-1] for symbol, *words in lines if symbol == "cudnnBackendSetAttribute" and words[0] == pack]
        assert pack in [words[-1] for symbol, *words in lines if symbol == "cudnnBackendCreateDescriptor"]
        bound, on_card = struct.unpack("<2Q", bytes.fromhex(pointers[1][1:]))
        assert bound not in (0, int(at, 16))
        assert on_card == 0x7F00_0000_1000
    ended = [words[0] for symbol, *words in lines if symbol == "cudnnBackendDestroyDescriptor"]
    assert set(packs) <= set(ended)


def test_a_client_that_sends_no_value_gets_none_of_the_servers_memory(recording: Machine, tmp_path: Path) -> None:
    """A client of ours sends it; the server goes by what it was told of the graph, and by nothing else."""
    kinds = {
        name: int(number) for name, number in re.findall(r"KIND_(\w+) = (\d+)", (WIRE / "generated/ops.h").read_text())
    }

    def word(number: int) -> bytes:
        return struct.pack("<Q", number)

    def block(data: bytes) -> bytes:
        return word(len(data)) + data + bytes(-len(data) % 8)

    def handle(kind: str, index: int) -> bytes:
        return word(kinds[kind] << 45 | 1 << 20 | index)

    with remote(recording, tmp_path, "shm") as (client, executor, _):
        raw = Raw(client / "lease.sock")
        context = handle("context", 1)
        assert raw.call("cuDevicePrimaryCtxRetain", word(1) + context + word(0))[0] == 0
        raw.post(10, context, flags=0)
        cudnn = handle("cudnn", 2)
        assert raw.call("cudnnCreate", cudnn)[0] == 0
        tensor, add, graph, engine, config, plan, pack = (handle("cudnn_backend", index) for index in range(3, 10))
        for of, kind in ((tensor, 17), (add, 13), (graph, 15), (engine, 2), (config, 3), (plan, 5), (pack, 16)):
            assert raw.call("cudnnBackendCreateDescriptor", word(kind) + of)[0] == 0

        def put(of: bytes, attribute: int, kind: int, count: int, data: bytes) -> None:
            elements = word(attribute) + word(kind) + word(count) + word(0) + block(data)
            assert raw.call("cudnnBackendSetAttribute", of + elements)[0] == 0

        for attribute, kind, data in ((901, 1, bytes(4)), (902, 3, word(1)), (906, 3, word(7)), (908, 2, b"\1")):
            put(tensor, attribute, kind, 1, data)
        for of, attribute, part in ((add, 751, tensor), (graph, 801, add), (engine, 1300, graph), (config, 300, engine),
                                    (plan, 401, config)):  # fmt: skip
            put(of, attribute, 15, 1, part)
        put(pack, 1000, 3, 1, word(7))
        put(pack, 1001, 6, 1, word(0x1234))

        def execute(values: bytes) -> int:
            return raw.call("cudnnBackendExecute", cudnn + plan + pack + values)[0]

        answers = [
            execute(word(HOST_IS_NULL)),
            execute(block(b"")),
            execute(block(bytes(8))),
            execute(block(bytes(32))),
        ]
        assert answers == [INVALID_VALUE] * 4
        assert "recorded cudnnBackendExecute" not in executor.stderr()
        assert execute(block(bytes(16))) == 0
        lines = [line.split()[1:] for line in executor.stderr().splitlines() if line.startswith("recorded cudnn")]
    given = [words[-1] for symbol, *words in lines if symbol == "cudnnBackendSetAttribute"]
    assert "b" + word(0x1234).hex() == given[-4]  # kept for the pack itself; the one that is executed has another
    assert given.count("b" + word(0x1234).hex()) == 1


#: What makes an object and is not waited for where the library is known to be there.
POSTED_CREATORS: Final = [
    (x.soname, f.symbol, x.statuses["NOT_INITIALIZED"])
    for x in LIBRARIES
    for f in x.functions
    if f.having("create") and not f.waits and not f.having("use")
]
WITHOUT: Final = f"""
    import ctypes
    context()
    made = ctypes.c_void_p()
    def make(soname, symbol):
        return ctypes.CDLL(soname)[symbol](ctypes.byref(made), *[ctypes.c_int64(1)] * 12)
    said = [symbol for soname, symbol, status in {POSTED_CREATORS!r} if make(soname, symbol) != status]
    say([said, name(d.cuCtxSynchronize())])
"""


def test_a_server_without_the_library_is_named(sim: Machine, tmp_path: Path) -> None:
    folder = tmp_path / "bare"
    folder.mkdir()
    for item in sim.driver_dir.iterdir():
        if item.name not in FORWARDED:
            (folder / item.name).symlink_to(item.resolve())
    bare = Machine(sim.node_name, sim.directory, folder, sim.device_dir, sim.state, sim.cards)
    with remote(bare, tmp_path, "shm") as (client, executor, _):
        waiting = [[f for f in x.functions if f.waits == "true" and not f.having("use", "destroy")] for x in LIBRARIES]
        makes = [next((f for f in each if f.having("create")), each[0]) for each in waiting]
        asked = [(x.soname, f.symbol, Call(f, HOST).given) for x, f in zip(LIBRARIES, makes, strict=True)]
        answers, said = run_calls(client, asked)
        assert [status for status, _ in answers] == [x.statuses["NOT_INITIALIZED"] for x in LIBRARIES]
        assert said.splitlines() == [
            f"egpu: the server of this GPU has no {x.soname}; install it there" for x in LIBRARIES
        ]
        assert all(x.soname in executor.stderr() for x in LIBRARIES)
        assert len(POSTED_CREATORS) > 20
        assert run(client, WITHOUT) == [[], "SUCCESS"]


def test_programs_are_given_every_library_that_there_is() -> None:
    assert list(FORWARDED) == [x.soname for x in LIBRARIES]


@pytest.mark.parametrize("library", [x for x in LIBRARIES if x.refused], ids=lambda library: library.name)
def test_what_is_refused_says_its_name_once(sim: Machine, tmp_path: Path, library: table.Library) -> None:
    names = [name for group in library.refused.values() for name in group]
    with remote(sim, tmp_path, "shm") as (client, _, _):
        answers, said = run_calls(client, [(library.soname, name, []) for name in names for _ in range(2)])
    assert {status for status, _ in answers} == {library.statuses["NOT_SUPPORTED"]}
    assert re.findall(r"egpu: (\w+) is not supported on a remote GPU", said) == names


@pytest.mark.parametrize("library", LIBRARIES, ids=lambda library: library.name)
def test_every_export_has_the_version_that_programs_link_to(library: table.Library) -> None:
    loaded = ctypes.CDLL(str(path(f"libraries/{library.soname}")))
    find = ctypes.CDLL(None).dlvsym
    find.restype, find.argtypes = ctypes.c_void_p, [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_char_p]
    for name in library.exports:
        if library.is_versioned:
            assert find(loaded._handle, name.encode(), library.soname.encode()), name
        else:
            assert hasattr(loaded, name), name


FAILING: Final = """
    context()
    solver, handle, size = ctypes.CDLL("libcusolver.so.12"), ctypes.c_void_p(), ctypes.c_int()
    assert solver.cusolverDnCreate(ctypes.byref(handle)) == 0
    assert solver.cusolverDnDpotrf_bufferSize(handle, 0, -1, None, 1, ctypes.byref(size)) != 0  # waits
    solver.cusolverDnDpotrf(handle, 0, 4, None, 1, None, 0, None)  # is posted
    say(name(d.cuCtxSynchronize()))
"""


@pytest.mark.parametrize("verbose", ["0", "1"])
def test_functions_of_libraries_that_fail_are_named_on_request(sim: Machine, tmp_path: Path, verbose: str) -> None:
    """In the program if it waits for the answer, and always in the executor's log."""
    env = {"EGPU_REMOTE_VERBOSE": verbose}
    with remote(sim, tmp_path, "shm", env=env) as (client, executor, _):
        done = run(client, FAILING, env, fails=True)
    assert json.loads(done.stdout) != "SUCCESS", done.stderr
    told, logged = (re.findall(r"(cusolverDn\w+): status [1-9]", text) for text in (done.stderr, executor.stderr()))
    waits, posted = "cusolverDnDpotrf_bufferSize", "cusolverDnDpotrf"
    assert (told, logged) == (([waits], [waits, posted]) if verbose == "1" else ([], []))
