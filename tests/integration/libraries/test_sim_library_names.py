"""Simulated libraries have every name that is carried over a pool, and refuse by name what they do not compute."""

import re
import subprocess
from pathlib import Path
from typing import Final

import pytest
from library_codec import table

from egpu.adapters import native
from egpu.core.provisioners.preparation import FORWARDED
from egpu_sim import native as simulated
from support.simulated_gpu import machine, run

IMPORTS: Final = Path(__file__).parents[1] / "programs" / "torch_library_imports.txt"
"""What PyTorch imports, by library."""
NOT_CARRIED: Final = {
    "ncclCommGetUniqueId", "ncclCommGrow",  # ranks that come later
    "ncclCommWindowDeregister", "ncclCommWindowRegister", "ncclDevCommCreate", "ncclDevCommDestroy",
    "ncclGetLsaMultimemDevicePointer", "ncclGetPeerDevicePointer", "ncclPutSignal", "ncclSignal", "ncclWaitSignal",
    "ncclWinGetUserPtr",  # windows
    "ncclGroupSimulateEnd",
}  # fmt: skip
"""What of it says over a pool that it is not supported, by name: symmetric memory is the one use of most."""
FOLDERS: Final = {"libraries": native.path, "sim": simulated.path}
EXPORTS: Final = Path(__file__).resolve().parents[3] / "native/libraries"
LIBRARIES: Final = table.read_all(EXPORTS)


def exported(library: Path) -> set[str]:
    """The names that a library offers, each with its version."""
    command = ["nm", "--dynamic", "--defined-only", "--format=posix", str(library)]
    said = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    return {name for name, kind, *_ in map(str.split, said.splitlines()) if kind in "TWti"}


def refused_by(soname: str) -> int:
    """The status by which a library says that it does not support something."""
    stem = soname.split(".so", maxsplit=1)[0].removeprefix("lib").lower()
    found = re.search(r"EXPORTS_NOT_SUPPORTED = (\d+)", (EXPORTS / f"generated/exports_{stem}.h").read_text())
    assert found
    return int(found[1])


def imported() -> dict[str, set[str]]:
    """What PyTorch imports of each library."""
    parts = re.split(r"^\[(\S+)\]$", IMPORTS.read_text(), flags=re.MULTILINE)[1:]
    return {soname: set(names.split()) for soname, names in zip(parts[::2], parts[1::2], strict=True)}


@pytest.mark.parametrize("soname", imported())
@pytest.mark.parametrize("folder", ["libraries", "sim"])
def test_all_that_pytorch_imports_resolves(folder: str, soname: str) -> None:
    """In the version that its shared objects ask for, where the library has one."""
    library = next(each for each in LIBRARIES if each.soname == soname)
    version = f"@@{soname}" if library.is_versioned else ""
    names = {name + version for name in imported()[soname]}
    assert names
    assert names - exported(FOLDERS[folder](f"{folder}/{soname}")) == set()


def test_what_pytorch_imports_is_carried_over_a_pool_or_named_here() -> None:
    refused = {name for library in LIBRARIES for names in library.refused.values() for name in names}
    assert set().union(*imported().values()) & refused == NOT_CARRIED


@pytest.mark.parametrize("soname", FORWARDED)
def test_a_slice_resolves_the_names_that_a_pool_does(soname: str) -> None:
    carried = exported(FOLDERS["libraries"](f"libraries/{soname}"))
    assert carried
    assert exported(FOLDERS["sim"](f"sim/{soname}")) == carried


@pytest.mark.parametrize(
    ("soname", "symbol"),
    [
        ("libcublas.so.13", "cublasChpr_v2"),
        ("libcudnn.so.9", "cudnnCTCLoss"),
        ("libcusolver.so.12", "cusolverSpCreate"),
        ("libcusparse.so.12", "cusparseCreate"),
        ("libcusparseLt.so.0", "cusparseLtInit"),
        ("libnccl.so.2", "ncclCommWindowRegister"),
    ],
)
def test_what_a_library_does_not_have_it_refuses_by_name_once(tmp_path: Path, soname: str, symbol: str) -> None:
    with machine(tmp_path, "T4") as made:
        said = run(
            made,
            f"""
            read, write = os.pipe()
            os.dup2(write, 2)
            library = ctypes.CDLL({soname!r})
            say([[library.{symbol}(), library.{symbol}()], os.read(read, 4096).decode()])
            """,
        )
    assert said == [[refused_by(soname)] * 2, f"egpu: the simulated library does not support {symbol}\n"]


@pytest.mark.parametrize(("soname", "prefix"), [("cusparse.so.12", "cusparse"), ("cusparseLt.so.0", "cusparseLt")])
def test_a_refusal_has_a_text(tmp_path: Path, soname: str, prefix: str) -> None:
    """Programs print it: it is no status."""
    program = f"""
    library, said = ctypes.CDLL("lib" + {soname!r}), []
    for function in ("GetErrorName", "GetErrorString"):
        text = library[{prefix!r} + function]
        text.restype = ctypes.c_char_p
        said.append(text({refused_by("lib" + soname)}).decode())
    say(said)
    """
    with machine(tmp_path, "T4") as made:
        assert run(made, program) == ["CUSPARSE_STATUS_NOT_SUPPORTED"] * 2


@pytest.mark.parametrize(
    ("soname", "symbol", "version"),
    [
        ("libcusolver.so.12", "cusolverGetProperty", [12, 0, 3]),
        ("libcusparse.so.12", "cusparseGetProperty", [12, 6, 2]),
        ("libcusparseLt.so.0", "cusparseLtGetProperty", [0, 8, 1]),
    ],
)
def test_a_library_says_the_version_of_the_original(
    tmp_path: Path, soname: str, symbol: str, version: list[int]
) -> None:
    with machine(tmp_path, "T4") as made:
        said = run(
            made,
            f"""
            ask, value = ctypes.CDLL({soname!r}).{symbol}, ctypes.c_int()
            say([[ask(which, ctypes.byref(value)), value.value] for which in range(3)] + [ask(3, ctypes.byref(value))])
            """,
        )
    assert said == [[0, number] for number in version] + [3]
