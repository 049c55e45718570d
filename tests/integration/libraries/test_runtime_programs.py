"""CUDA C++ programs over our runtime: bare on simulated cards, in a slice, and over the pool."""

import json
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

from egpu.adapters.native import path
from egpu.adapters.pool.bridge import fill
from egpu_sim.machines.machine import PRELOADED, Machine, destroy, open_machine
from support.nvcc import compile_program
from support.remote_gpu import Transport, remote
from support.simulated_gpu import environment, machine, run
from support.waiting import DEADLINE_SECONDS

CARDS = ("A100-80G", 2)

SOURCES: Final = Path(__file__).parents[1] / "programs" / "runtime"
NAMES: Final = sorted(source.stem for source in SOURCES.glob("*.cu"))
LOCALLY: Final = dict.fromkeys(NAMES, "ok")
# What no network carries: memory that both sides see, what a graph keeps of the program's, and a graph's text, which
# would be a file of the server's. And a graph has copies of addresses there, not of arrays, and no bodies that it
# chooses among; what links carry is not asked.
REFUSED_OVER_THE_POOL: Final = (
    "array_nodes", "atomic_links", "graph_conditional", "graph_objects", "graph_shown", "managed",
)  # fmt: skip
OVER_THE_POOL: Final = LOCALLY | dict.fromkeys(REFUSED_OVER_THE_POOL, "refused")
FRAGMENTS: Final = SOURCES.with_name("fragments.cu")
OF_CUDA_12: Final = SOURCES.with_name("of_cuda_12.c")
TABLE: Final = Path(__file__).resolve().parents[3] / "native" / "runtime" / "generated" / "runtime_table.json"
HEADERS: Final = (
    "check.h", "cassert", "cooperative_groups.h", "atomic", "string", "thread", "sys/mman.h", "sys/wait.h", "unistd.h",
)  # fmt: skip


def together() -> str:
    """One source of all programs, each in a namespace: compiling them one by one takes minutes."""
    lines = [*(f"#include <{header}>" for header in HEADERS), "#define main run"]
    for name in NAMES:
        lines += [f"namespace {name} {{", f'#include "{name}.cu"', "}"]
    lines += ["#undef main", "static const struct { const char *name; int (*run)(); } programs[] = {"]
    lines += [f'{{"{name}", {name}::run}},' for name in NAMES]
    return "\n".join([*lines, "};", '#include "main.h"', ""])


def compiled(source: Path, program: Path, targets: tuple[int, ...], *more: str) -> Path:
    of_targets = [f"-gencode=arch=compute_{target},code=compute_{target}" for target in targets]
    flags = [*of_targets, "-Xcompiler", "-Wno-deprecated-declarations", "-I", str(SOURCES), *more]
    return compile_program(source, program, *flags)


def compiled_together(folder: Path, *more: str) -> Path:
    """All of them in one."""
    (folder / "all.cu").write_text(together())
    return compiled(folder / "all.cu", folder / "all", (75, 90), *more)


@pytest.fixture(scope="module")
def programs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The program that runs them all; its kernels are compressed PTX, as nvcc leaves them."""
    return compiled_together(tmp_path_factory.mktemp("runtime"))


@pytest.fixture(scope="module")
def programs_per_thread(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same where the default stream is each thread's own."""
    return compiled_together(tmp_path_factory.mktemp("per_thread"), "--default-stream", "per-thread")


def outcomes(command: list[str], env: dict[str, str]) -> dict[str, str]:
    """By program how it went."""
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=DEADLINE_SECONDS * 2, check=False)
    print(done.stdout, done.stderr)  # shown when the test fails: which check it was
    return dict(
        line.rsplit(" ", 1) for line in done.stdout.splitlines() if line.endswith((" ok", " refused", " failed"))
    )


def test_programs_on_a_simulated_card(sim: Machine, programs: Path) -> None:
    assert outcomes([str(programs)], environment(sim.driver_dir)) == LOCALLY


def test_programs_on_a_simulated_card_whose_driver_has_all_that_the_headers_declare(
    tmp_path: Path, programs: Path
) -> None:
    """The one of the other tests is of CUDA 13.0, and says of what came later that it does not have it."""
    newest = json.loads(TABLE.read_text())["headers"][-1]
    with machine(tmp_path, *CARDS, cuda_version=newest) as sim:
        assert outcomes([str(programs)], environment(sim.driver_dir)) == LOCALLY
        with remote(sim, tmp_path, "tcp") as (client, _, _):
            assert outcomes([str(programs)], environment(client)) == OVER_THE_POOL


# What cards of compute capability 9.0 have, and those of the other tests have not.
OF_NEWER_CARDS: Final = ("clusters", "graph_attributes", "launch_ex")


def test_programs_on_a_card_with_clusters(tmp_path: Path, programs: Path, state: Path) -> None:
    run = [sys.executable, "-m", "egpu", "run", "--state-dir", str(state), "--simulate", "H100-80G", "--core", "50"]
    with machine(tmp_path, "H100-80G", 1) as sim:
        for name in OF_NEWER_CARDS:
            for command in ([str(programs), name], [*run, "--", str(programs), name]):
                subprocess.run(command, env=environment(sim.driver_dir), check=True, timeout=DEADLINE_SECONDS)
        for transport in ("shm", "tcp", "tls"):
            with remote(sim, tmp_path / transport, transport) as (client, _, _):
                for name in OF_NEWER_CARDS:
                    command = [str(programs), name]
                    subprocess.run(command, env=environment(client), check=True, timeout=DEADLINE_SECONDS)


def test_matrices_in_fragments(sim: Machine, tmp_path: Path) -> None:
    """wmma, whose types all cards have since 8.0."""
    program = compiled(FRAGMENTS, tmp_path / "fragments", (80,))
    subprocess.run([str(program)], env=environment(sim.driver_dir), check=True, timeout=DEADLINE_SECONDS)


PLAIN: Final = "int main() { void *p; return cudaMalloc(&p, 4); }"
BROUGHT: Final = """extern "C" int run() { void *p; return cudaMalloc(&p, 4); }"""
USER: Final = "int run(void); int main(void) { return run(); }"


@pytest.fixture(scope="module")
def with_nvidias_runtime(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """By the remedy: a program that has NVIDIA's runtime inside, and one whose library has it."""
    if (nvcc := shutil.which("nvcc")) is None:
        pytest.skip("nvcc is not installed")
    folder = tmp_path_factory.mktemp("static")
    for name, text in (("plain.cu", PLAIN), ("brought.cu", BROUGHT), ("user.c", USER)):
        (folder / name).write_text(text)
    for command in (
        [nvcc, "plain.cu", "-o", "plain"],
        [nvcc, "-shared", "-Xcompiler", "-fPIC", "brought.cu", "-o", "libbrought.so"],
        ["cc", "user.c", f"-Wl,-rpath,{folder}", "-L.", "-lbrought", "-o", "user"],
    ):
        subprocess.run(command, cwd=folder, check=True, timeout=DEADLINE_SECONDS * 2)
    library = f"{folder}/libbrought.so has it inside, use a build of it with `nvcc -cudart shared`"
    return {"link the program with `nvcc -cudart shared`": folder / "plain", library: folder / "user"}


def test_a_program_with_nvidias_runtime_inside_is_told_how_to_build_it(
    sim: Machine, with_nvidias_runtime: dict[str, Path], tmp_path: Path
) -> None:
    with remote(sim, tmp_path, "tcp") as (client, _, _):
        for driver in (sim.driver_dir, client):
            for remedy, program in with_nvidias_runtime.items():
                done = subprocess.run(
                    [str(program)], env=environment(driver), capture_output=True, text=True, check=False
                )
                assert done.returncode != 0
                assert f": {remedy}" in done.stderr
                assert done.stderr.count("\n") == 1


def called(sources: list[Path]) -> set[str]:
    """What they call by name. A declaration, or the address of a function alone, is no call."""
    text = "\n".join(re.sub(r"/\*.*?\*/|//[^\n]*", "", source.read_text(), flags=re.DOTALL) for source in sources)
    text = re.sub(r'(?m)^extern "C" [^;]*;|^int (?:cuda\w+\([^;]*);', "", text)
    return set(re.findall(r"\b(cuda\w+)\s*\(", text))


@pytest.mark.parametrize("major", [12, 13])
def test_every_function_of_the_runtime_is_called_by_a_program(major: int) -> None:
    """By its name; what ends in _ptsz or _ptds is what that name becomes with --default-stream per-thread."""
    rows = [row for row in json.loads(TABLE.read_text())["functions"] if row["class"] in ("done", "forwarded")]
    ours = {row["symbol"] for row in rows if row["major"] == major}
    known = called([*SOURCES.glob("*.cu")])
    if major == 12:
        known |= called([OF_CUDA_12])
    assert len(ours) > 300
    assert sorted(symbol for symbol in ours if re.sub("_pt[sd][sz]$", "", symbol) not in known) == []


def test_programs_whose_threads_have_default_streams_of_their_own(sim: Machine, programs_per_thread: Path) -> None:
    assert outcomes([str(programs_per_thread)], environment(sim.driver_dir)) == LOCALLY


def test_programs_whose_threads_have_default_streams_of_their_own_over_the_pool(
    sim: Machine, programs_per_thread: Path, tmp_path: Path
) -> None:
    with remote(sim, tmp_path, "tcp") as (client, _, _):
        assert outcomes([str(programs_per_thread)], environment(client)) == OVER_THE_POOL


def of_cuda_12(folder: Path) -> Path:
    """The program of what CUDA 12 alone has, which needs no compiler of NVIDIA's."""
    program = folder / "of_cuda_12"
    library = path("runtime/libcudart.so.12")
    command = ["cc", str(OF_CUDA_12), str(library), f"-Wl,-rpath,{library.parent}", "-o", str(program)]
    subprocess.run(command, check=True)
    return program


@pytest.mark.parametrize("sliced", [False, True])
def test_what_cuda_12_alone_has(sim: Machine, tmp_path: Path, state: Path, sliced: bool) -> None:
    run = [sys.executable, "-m", "egpu", "run", "--state-dir", str(state), "--simulate", "A100-80G", "--core", "50"]
    command = [*([*run, "--"] if sliced else []), str(of_cuda_12(tmp_path))]
    subprocess.run(command, env=environment(sim.driver_dir), check=True, timeout=DEADLINE_SECONDS)


@pytest.mark.parametrize("transport", ["shm", "tcp", "tls"])
def test_what_cuda_12_alone_has_over_the_pool(sim: Machine, tmp_path: Path, transport: Transport) -> None:
    with remote(sim, tmp_path, transport) as (client, _, _):
        command = [str(of_cuda_12(tmp_path))]
        subprocess.run(command, env=environment(client), check=True, timeout=DEADLINE_SECONDS)


@pytest.fixture
def state(tmp_path: Path) -> Iterator[Path]:
    """A directory for the slices and the machine of one test."""
    yield tmp_path / "state"
    for description in (tmp_path / "state").glob("*/machine/machine.json"):
        destroy(open_machine(description.parent))


def test_programs_in_a_slice_without_an_environment(sim: Machine, programs: Path, state: Path) -> None:
    run = [sys.executable, "-m", "egpu", "run", "--state-dir", str(state), "--simulate", "A100-80G", "--core", "50"]
    command = [*run, "--", "env", "-i", str(programs)]
    assert outcomes(command, environment(sim.driver_dir)) == LOCALLY


@pytest.mark.parametrize("transport", ["shm", "tcp", "tls"])
def test_programs_over_the_pool(sim: Machine, programs: Path, tmp_path: Path, transport: Transport) -> None:
    with remote(sim, tmp_path, transport) as (client, _, _):
        assert outcomes([str(programs)], environment(client)) == OVER_THE_POOL


PROPERTIES: Final = """
import ctypes, sys
runtime = ctypes.CDLL(sys.argv[1])
said = ctypes.create_string_buffer(2048)
assert runtime[sys.argv[2]](said, 0) == 0
print(said.raw[:256].rstrip(b"\\0").decode(), int.from_bytes(said.raw[288:296], "little"))
"""


def test_each_major_version_has_its_structure_of_device_properties(sim: Machine) -> None:
    said = [
        subprocess.run(
            [sys.executable, "-c", PROPERTIES, str(path(f"runtime/libcudart.so.{major}")), function],
            env=environment(sim.driver_dir),
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for major, function in ((12, "cudaGetDeviceProperties_v2"), (13, "cudaGetDeviceProperties"))
    ]
    assert said[0] == said[1] == f"{sim.cards[0].model} {sim.cards[0].memory_mib << 20}\n"


FAT_BINARY: Final = """
    import struct
    def ptx(entry, target):
        text = f".version 7.0\\n.target sm_{target}\\n.address_size 64\\n.visible .entry {entry}() {{ ret; }}\\n"
        return b"\\x01\\0" + text.encode()
    def frame(image):  # of Zstandard, its one block as it is
        image = image[2:]
        return b"\\x01\\0\\x28\\xb5\\x2f\\xfd\\x20" + struct.pack("<BI", len(image), len(image) << 3 | 1)[:4] + image
    def load(*parts):
        body = b"".join(parts)
        result, module = d.cuModuleLoadData(struct.pack("<IIQ", 0xBA55ED50, 1, len(body)) + body)
        if int(result) != 0:
            return name((result,))
        has = lambda entry: int(d.cuModuleGetFunction(module, entry.encode())[0]) == 0
        return [entry for entry in ("old", "best", "new") if has(entry)]
    context()
"""


@pytest.mark.parametrize("packed", ["best", "old", "new", ""])
def test_a_fat_binary_gives_the_ptx_that_suits_the_card_best(sim: Machine, packed: str) -> None:
    targets = {"old": 70, "best": 75, "new": 90}
    parts = [f"{'frame' if entry == packed else ''}(ptx({entry!r}, {target}))" for entry, target in targets.items()]
    assert run(sim, FAT_BINARY + f"    say(load({parts[0]}, b'\\x7fELF', {parts[1]}, {parts[2]}))") == ["best"]


UNFIT: Final = {
    "no PTX": r"b'\x7fELF' + bytes(64)",
    "for newer cards": "ptx('new', 90)",
    "a frame of nothing": r"b'\x28\xb5\x2f\xfd' + bytes(64)",
    "a text that is none": "b'.version 7.0'",
}


def test_a_fat_binary_without_ptx_that_runs_here_is_refused(sim: Machine) -> None:
    loads = ", ".join(f"{why!r}: load({parts})" for why, parts in UNFIT.items())
    assert run(sim, FAT_BINARY + f"    say({{{loads}}})") == dict.fromkeys(UNFIT, "NO_BINARY_FOR_GPU")


def test_the_pool_loads_the_runtimes_before_those_that_a_program_brings(
    sim: Machine, programs: Path, tmp_path: Path
) -> None:
    """As PyTorch's packages do. The one that this program brings has nothing in it."""
    bundled, put = tmp_path / "bundled", tmp_path / "put"
    bundled.mkdir()
    put.mkdir()
    name = "libcudart.so.13"
    flags = ["-shared", f"-Wl,-soname,{name}", "-x", "c", "/dev/null", "-o", str(bundled / name)]
    subprocess.run(["cc", *flags], check=True)
    first = [put / library.name for library in fill(put)]
    with remote(sim, tmp_path, "shm") as (client, _, _):
        env = environment(client, {"LD_LIBRARY_PATH": f"{bundled}:{client}"})
        command = [str(programs), "launch"]
        alone = subprocess.run(command, env=env, capture_output=True, text=True, check=False)
        assert "symbol lookup error" in alone.stderr or "version" in alone.stderr
        preload = ":".join([env.get("LD_PRELOAD", ""), *(str(client / library.name) for library in first)])
        subprocess.run(command, env=env | {"LD_PRELOAD": preload}, check=True, timeout=DEADLINE_SECONDS)


def test_a_simulated_slice_has_our_libraries_whatever_path_a_program_has_in_it(state: Path, tmp_path: Path) -> None:
    """As PyTorch's packages have, to libraries that work over NVIDIA's driver alone. These have nothing in them."""
    for name in PRELOADED:
        flags = ["-shared", f"-Wl,-soname,{name}", "-x", "c", "/dev/null", "-o", str(tmp_path / name)]
        subprocess.run(["cc", *flags], check=True)
    (tmp_path / "program.c").write_text("int main(void) { return 0; }\n")
    needs = ["-Wl,--no-as-needed,--disable-new-dtags,-rpath,$ORIGIN", *(str(tmp_path / name) for name in PRELOADED)]
    program = tmp_path / "program"
    subprocess.run(["cc", str(tmp_path / "program.c"), *needs, "-o", str(program)], check=True)
    run = [sys.executable, "-m", "egpu", "run", "--state-dir", str(state), "--simulate", "A100-80G", "--"]
    listed = ["env", "LD_TRACE_LOADED_OBJECTS=1", str(program)]  # the loader says what it loads, and from where
    alone = subprocess.run(listed, capture_output=True, text=True, check=True).stdout
    assert all(f"{tmp_path}/{name} " in alone for name in PRELOADED), "the program brings none"
    inside = subprocess.run([*run, *listed], capture_output=True, text=True, check=True, timeout=DEADLINE_SECONDS)
    assert all(name in inside.stdout for name in PRELOADED)
    assert f"{tmp_path}/lib" not in inside.stdout.replace(str(state), "")


CUPTI: Final = """
import ctypes
cupti = ctypes.CDLL("libcupti.so.13")
said = ctypes.c_char_p()
results = [cupti.cuptiSubscribe(None, None, None), cupti.cuptiActivityEnable(1)]
assert cupti.cuptiGetResultString(results[0], ctypes.byref(said)) == 0
assert cupti.cuptiGetResultString(0, ctypes.byref(said)) != 0
version = ctypes.c_uint32()
assert cupti.cuptiGetVersion(ctypes.byref(version)) == 0
assert version.value // 10000 == 13
print(*results, said.value.decode())
"""


def test_a_profiler_is_told_that_there_is_none_and_goes_on(sim: Machine) -> None:
    """NVIDIA's library for profilers ends in a crash over another driver than theirs."""
    done = subprocess.run(
        [sys.executable, "-c", CUPTI], env=environment(sim.driver_dir), capture_output=True, text=True, check=True
    )
    assert done.stdout == "27 27 CUPTI_ERROR_NOT_SUPPORTED\n"
    assert done.stderr == "egpu: cuptiSubscribe: profiling this GPU (CUPTI) is not supported\n"
