"""Every function of the runtime's table: exported under its version, and forwarded as it came or refused by name."""

import ctypes
import json
import subprocess
import sys
from pathlib import Path
from typing import Final, TypedDict

import pytest

from egpu.adapters.native import path

ROOT: Final = Path(__file__).resolve().parents[3]
NATIVE: Final = ROOT / "native"
MAJORS: Final = (12, 13)
IMPORTS: Final = Path(__file__).parents[1] / "programs" / "torch_runtime_imports.txt"

# Run with a library of the runtime and a driver that records; calls each function that it is given and says, for each,
# what was returned, which driver function was reached, and with what.
CALLER: Final = """
import ctypes, json, sys
driver = ctypes.CDLL("libcuda.so.1")
runtime = ctypes.CDLL(sys.argv[1])
words = (ctypes.c_uint64 * 8).in_dll(driver, "recorded")
symbol = ctypes.c_char_p.in_dll(driver, "recorded_symbol")
answers = {}
for name, arguments in json.load(sys.stdin):
    symbol.value = None
    function = runtime[name]
    function.restype = ctypes.c_int
    result = function(*map(ctypes.c_uint64, arguments))
    answers[name] = [result, symbol.value.decode() if symbol.value else None, list(words)]
print(json.dumps(answers))
"""


class Row(TypedDict):
    """One function of the table."""

    symbol: str
    major: int
    driver: str
    parameters: list[tuple[str, str]]


def rows(kind: str, major: int) -> list[Row]:
    table = json.loads((NATIVE / "runtime" / "generated" / "runtime_table.json").read_text())
    return [row for row in table["functions"] if row["class"] == kind and row["major"] == major]


@pytest.fixture(scope="module")
def recorder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a driver that writes down what it is asked."""
    folder = tmp_path_factory.mktemp("recorder")
    sources = [Path(__file__).parents[1] / "programs/recording_driver.c", NATIVE / "driver" / "driver_table.c"]
    flags = ["-shared", "-fPIC", "-I", str(NATIVE / "driver"), "-o", str(folder / "libcuda.so.1")]
    subprocess.run(["cc", *flags, *map(str, sources)], check=True)
    return folder


def arguments(row: Row) -> list[int]:
    """Another number for each parameter, and the default stream."""
    return [0 if type_ == "cudaStream_t" else 0x1001 + i for i, (type_, _) in enumerate(row["parameters"])]


def arriving(row: Row) -> list[int]:
    """The same, with the thread's own default stream where the function's name asks for it."""
    own = 2 if row["symbol"].endswith(("_ptsz", "_ptds")) else 0  # CU_STREAM_PER_THREAD
    return [
        own if type_ == "cudaStream_t" else word
        for (type_, _), word in zip(row["parameters"], arguments(row), strict=True)
    ]


def call(
    recorder: Path, major: int, asked: dict[str, list[int]]
) -> tuple[dict[str, tuple[int, str | None, list[int]]], str]:
    """What each answered with these arguments, and what was said on stderr."""
    done = subprocess.run(
        [sys.executable, "-c", CALLER, str(path(f"runtime/libcudart.so.{major}"))],
        input=json.dumps(list(asked.items())),
        env={"LD_LIBRARY_PATH": str(recorder)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout), done.stderr


@pytest.mark.parametrize("major", MAJORS)
def test_what_is_forwarded_arrives_with_its_arguments(recorder: Path, major: int) -> None:
    asked = rows("forwarded", major)
    answers, _ = call(recorder, major, {row["symbol"]: arguments(row) for row in asked})
    assert len(asked) > 90
    for row in asked:
        result, reached, words = answers[row["symbol"]]
        assert (result, words[: len(row["parameters"])]) == (0, arriving(row)), row["symbol"]
        assert (reached or "").partition("_v")[0] == row["driver"], row["symbol"]


@pytest.mark.parametrize("major", MAJORS)
def test_what_is_refused_says_its_name_once(recorder: Path, major: int) -> None:
    asked = rows("refused", major)
    answers, said = call(recorder, major, {row["symbol"]: arguments(row) for row in asked})
    assert {result for result, _, _ in answers.values()} == {801}
    for row in asked:
        assert said.count(f"egpu: {row['symbol']} is not supported by this CUDA runtime (") == 1


@pytest.mark.parametrize("major", MAJORS)
def test_every_function_has_the_version_that_programs_link_to(major: int) -> None:
    library = ctypes.CDLL(str(path(f"runtime/libcudart.so.{major}")))
    find = ctypes.CDLL(None).dlvsym
    find.restype, find.argtypes = ctypes.c_void_p, [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_char_p]
    for kind in ("done", "forwarded", "refused"):
        for row in rows(kind, major):
            version = f"libcudart.so.{major}".encode()
            assert find(library._handle, row["symbol"].encode(), version), row["symbol"]


def test_nothing_that_pytorch_imports_is_refused() -> None:
    imported = [line for line in IMPORTS.read_text().splitlines() if not line.startswith("#")]
    assert len(imported) == 111
    assert not set(imported) & {row["symbol"] for row in rows("refused", 13)}
    library = ctypes.CDLL(str(path("runtime/libcudart.so.13")))
    assert [name for name in imported if not hasattr(library, name)] == []


# By function of CUDA 12 that CUDA 13 has in another form: what it is given, and what of the driver it calls with what.
OLDER: Final[dict[str, tuple[list[int], str, list[int]]]] = {
    "cudaGraphAddDependencies": ([1, 2, 3, 4], "cuGraphAddDependencies", [1, 2, 3, 0, 4]),
    "cudaGraphRemoveDependencies": ([1, 2, 3, 4], "cuGraphRemoveDependencies", [1, 2, 3, 0, 4]),
    "cudaGraphGetEdges": ([1, 2, 3, 4], "cuGraphGetEdges", [1, 2, 3, 0, 4]),
    "cudaGraphNodeGetDependencies": ([1, 2, 3], "cuGraphNodeGetDependencies", [1, 2, 0, 3]),
    "cudaGraphNodeGetDependentNodes": ([1, 2, 3], "cuGraphNodeGetDependentNodes", [1, 2, 0, 3]),
    "cudaStreamGetCaptureInfo_v2": ([0, 2, 3, 4, 5, 6], "cuStreamGetCaptureInfo", [0, 2, 3, 4, 5, 0, 6]),
    "cudaStreamGetCaptureInfo_v2_ptsz": ([0, 2, 3, 4, 5, 6], "cuStreamGetCaptureInfo", [2, 2, 3, 4, 5, 0, 6]),
    "cudaStreamUpdateCaptureDependencies": ([0, 2, 3, 4], "cuStreamUpdateCaptureDependencies", [0, 2, 0, 3, 4]),
    "cudaStreamUpdateCaptureDependencies_ptsz": ([0, 2, 3, 4], "cuStreamUpdateCaptureDependencies", [2, 2, 0, 3, 4]),
    "cudaMemAdvise": ([1, 2, 3, 7], "cuMemAdvise", [1, 2, 3, 1 | 7 << 32]),
    "cudaMemPrefetchAsync_ptsz": ([1, 2, 7, 0], "cuMemPrefetchAsync", [1, 2, 1 | 7 << 32, 0, 2]),
}


def test_the_older_forms_of_cuda_12_reach_the_driver_in_its_newest(recorder: Path) -> None:
    asked = {name: given for name, (given, _, _) in OLDER.items()}
    answers, _ = call(recorder, 12, asked)
    for name, (_, driver, words) in OLDER.items():
        result, reached, recorded = answers[name]
        assert (result, (reached or "").partition("_v")[0], recorded[: len(words)]) == (0, driver, words), name


@pytest.mark.parametrize("major", MAJORS)
def test_an_attribute_of_a_function_is_also_set_for_the_kernel_that_is_launched(recorder: Path, major: int) -> None:
    shared_bytes, value, kernel = 8, 70_000, 0x1001
    answers, _ = call(recorder, major, {"cudaFuncSetAttribute": [kernel, shared_bytes, value]})
    result, reached, words = answers["cudaFuncSetAttribute"]
    assert (result, reached, words[:4]) == (0, "cuKernelSetAttribute", [shared_bytes, value, kernel, 0])
