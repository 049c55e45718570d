"""Every function of the runtime's table: exported under its version, and forwarded as it came or refused by name."""

import ctypes
import json
import subprocess
import sys
from pathlib import Path
from typing import Final, TypedDict

import pytest

from egpu.adapters.native import path

ROOT: Final = Path(__file__).resolve().parents[2]
NATIVE: Final = ROOT / "native"
MAJORS: Final = (12, 13)

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
    answers[name] = [result, symbol.value.decode() if symbol.value else None, list(words)[: len(arguments)]]
print(json.dumps(answers))
"""


class Row(TypedDict):
    """One function of the table."""

    symbol: str
    major: int
    driver: str
    parameters: list[tuple[str, str]]


def rows(kind: str, major: int) -> list[Row]:
    table = json.loads((NATIVE / "runtime" / "runtime_table.json").read_text())
    return [row for row in table["functions"] if row["class"] == kind and row["major"] == major]


@pytest.fixture(scope="module")
def recorder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a driver that writes down what it is asked."""
    folder = tmp_path_factory.mktemp("recorder")
    sources = [Path(__file__).with_name("recording_driver.c"), NATIVE / "driver" / "driver_table.c"]
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


def call(recorder: Path, major: int, asked: list[Row]) -> tuple[dict[str, tuple[int, str | None, list[int]]], str]:
    """What each answered, and what was said on stderr."""
    done = subprocess.run(
        [sys.executable, "-c", CALLER, str(path(f"runtime/libcudart.so.{major}"))],
        input=json.dumps([(row["symbol"], arguments(row)) for row in asked]),
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
    answers, _ = call(recorder, major, asked)
    assert len(asked) > 90
    for row in asked:
        result, reached, words = answers[row["symbol"]]
        assert (result, words) == (0, arriving(row)), row["symbol"]
        assert (reached or "").partition("_v")[0] == row["driver"], row["symbol"]


@pytest.mark.parametrize("major", MAJORS)
def test_what_is_refused_says_its_name_once(recorder: Path, major: int) -> None:
    asked = rows("refused", major)
    answers, said = call(recorder, major, asked)
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
