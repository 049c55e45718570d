"""Which of NVIDIA's libraries executors find, in which versions, and how these differ from a program's."""

from pathlib import Path

import pytest

from egpu.adapters.executors import libraries
from egpu_base.errors import InvalidInput


@pytest.fixture(autouse=True)
def nothing_is_installed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(libraries, "TOOLKIT", tmp_path / "toolkit")
    monkeypatch.setattr(libraries, "_loaders", dict[str, Path])
    monkeypatch.setattr("sys.path", [str(tmp_path / "site-packages"), "/nowhere"])


def wheel(packages: Path, folder: str, soname: str, package: str, version: str) -> Path:
    """Install a wheel of NVIDIA's, of one library, and return its folder of libraries."""
    (place := packages / "nvidia" / folder / "lib").mkdir(parents=True, exist_ok=True)
    (place / soname).touch()
    (packages / f"{package}-{version}.dist-info").mkdir()
    return place


def toolkit(folder: Path, soname: str, version: str) -> Path:
    """Install a library as a toolkit does: links to a file whose name has the whole version."""
    folder.mkdir(exist_ok=True)
    (file := folder / f"{soname.partition('.so')[0]}.so.{version}").touch()
    (folder / soname).symlink_to(file)
    return folder


def test_libraries_of_wheels_are_found_with_their_versions(tmp_path: Path) -> None:
    packages = tmp_path / "site-packages"
    new = wheel(packages, "cu13", "libcublas.so.13", "nvidia_cublas", "13.1.0.3")
    wheel(packages, "cu13", "libcusparse.so.12", "other_cusparse", "1")
    dnn = wheel(packages, "cudnn", "libcudnn.so.9", "nvidia_cudnn_cu13", "9.19.0.56")
    (new / "libcublasLt.so.13").touch()
    folders = libraries.library_path((), None)
    assert folders == (new, dnn)
    there = libraries.found(None, folders)
    assert there == {"cublas": "13.1.0.3", "cublasLt": "13.1.0.3", "cudnn": "9.19.0.56", "cusparse": ""}
    assert set(libraries.missing(there)) == {"cufft", "curand", "cusolver", "cusparseLt", "nccl"}


def test_what_is_named_comes_before_wheels_and_these_before_the_toolkit(tmp_path: Path) -> None:
    named = toolkit(tmp_path / "named", "libcudnn.so.9", "9.30.1")
    wheel(tmp_path / "site-packages", "cudnn", "libcudnn.so.9", "nvidia_cudnn_cu13", "9.19.0.56")
    wheel(tmp_path / "site-packages", "nccl", "libnccl.so.2", "nvidia_nccl_cu13", "2.28.9")
    toolkit(libraries.TOOLKIT, "libnccl.so.2", "2.20.0")
    toolkit(libraries.TOOLKIT, "libcufft.so.12", "12.0.0.61")
    folders = libraries.library_path((named,), None)
    assert libraries.found(None, folders) == {"cudnn": "9.30.1", "nccl": "2.28.9", "cufft": "12.0.0.61"}
    beside = toolkit(tmp_path / "driver", "libcudnn.so.9", "9.1.0")
    assert libraries.found(beside, folders)["cudnn"] == "9.1.0", "as an executor looks there first"


def test_a_simulated_card_has_its_own_libraries_and_what_is_named(tmp_path: Path) -> None:
    wheel(tmp_path / "site-packages", "nccl", "libnccl.so.2", "nvidia_nccl_cu13", "2.28.9")
    (machine := tmp_path / "driver").mkdir()
    assert not libraries.is_simulated(machine)
    assert len(libraries.library_path((), machine)) == 1
    (machine / "machine").touch()
    assert libraries.is_simulated(machine)
    assert libraries.library_path((), machine) == ()
    assert libraries.library_path((tmp_path,), machine) == (tmp_path,)
    with pytest.raises(InvalidInput, match=r"--library-path: .*nowhere is not a directory"):
        libraries.library_path((tmp_path / "nowhere",), machine)


def test_versions_of_a_command_s_packages_are_compared_with_the_server_s(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    packages = tmp_path / "venv/lib/python3.12/site-packages"
    for folder, soname, package, version in (
        ("cu13", "libcublas.so.13", "nvidia_cublas", "13.1.0.3"),
        ("cu13", "libcufft.so.12", "nvidia_cufft", "12.0.0.61"),
        ("cudnn", "libcudnn.so.9", "nvidia_cudnn_cu13", "9.19.0.56"),
    ):
        wheel(packages, folder, soname, package, version)
    (tmp_path / "venv/bin").mkdir()
    (command := tmp_path / "venv/bin/train").touch(0o755)
    here = libraries.of_command(str(command))
    assert here == {"cublas": "13.1.0.3", "cudnn": "9.19.0.56", "cufft": "12.0.0.61"}
    there = {"cublas": "13.0.2.14", "cudnn": "9.19.0.60", "cufft": "", "nccl": "2.28.9"}
    assert libraries.differences(here, there) == ["cublas 13.0.2.14 (here 13.1.0.3)"]
    assert libraries.of_command("no-such-command") == {}
