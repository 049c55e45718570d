"""Build NVIDIA's CUDA samples as their CMake files describe it, with kernels as PTX and a shared CUDA runtime."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from cuda_sample_sizes import CONSTANTS, shrink

from egpu.adapters import native

ROOT: Final = Path(__file__).resolve().parents[1]
GROUPS: Final = range(7)
ELSEWHERE: Final[Mapping[str, str]] = {
    "OpenGL": r"find_package\((OpenGL|GLUT)",
    "Vulkan": r"find_package\(Vulkan",
    "EGL": r"find_package\(EGL",
    "MPI": r"find_package\(MPI",
    "Direct3D": r"d3d1[12]|dxgi",
    "NvSci": r"NVSCI",
    "FreeImage": r"find_package\(FreeImage",
}
"""By what this tool does not try, how a sample's CMake file asks for it."""

WHEELS: Final = next(ROOT.glob("build/samples-env/lib/python3*/site-packages/nvidia/cu13"), ROOT / "build/samples-env")
"""Headers and libraries of NVIDIA's wheels (requirements/samples.txt), for what the toolkit does not have."""

PTX: Final = ("-gencode", "arch=compute_80,code=compute_80")
LINKED: Final = ("-rdc=true", "-arch=sm_80", "-lcudadevrt")
"""For kernels that launch kernels: NVIDIA's device linker makes machine code alone."""
SEPARATE: Final = "requires separate compilation mode"
FLAGS: Final = ("-std=c++17", "--extended-lambda", "-Wno-deprecated-gpu-targets", "-O2", "-w")
BUILD_SECONDS: Final = 1200.0
"""For a machine with much other work: nvcc takes 15 s of processor time for most samples."""
SOURCES: Final = (".cu", ".cuh", ".cpp", ".h", ".hpp")


@dataclass(frozen=True)
class Recipe:
    """The parts of a sample's CMake file that matter here."""

    sources: tuple[str, ...]
    libraries: tuple[str, ...]
    """As after `-l`."""
    images: Mapping[str, tuple[str, str]]
    """By name of a file beside the program: `-fatbin` or `-ptx`, and the source."""
    folders: tuple[str, ...]
    """Words that name folders of headers, from the sample's, among others."""
    headers: tuple[str, ...]
    """Headers of the toolkit, or folders of them, below its folder of headers, that the program reads when it runs."""
    openmp: bool
    elsewhere: str
    """The kind of system that the sample needs beside CUDA, or nothing."""


@dataclass(frozen=True)
class Sample:
    """A sample's folder."""

    folder: Path

    @property
    def name(self) -> str:
        return self.folder.name

    @property
    def group(self) -> str:
        return self.folder.parent.name


class NotBuilt(Exception):
    """A sample cannot be built here; the message is the reason, in one line."""


def samples(folder: Path) -> list[Sample]:
    """Return the samples of the groups 0 to 6 below a clone of NVIDIA/cuda-samples."""
    groups = [group for n in GROUPS for group in sorted(folder.glob(f"Samples/{n}_*"))]
    return [Sample(found.parent) for group in groups for found in sorted(group.glob("*/CMakeLists.txt"))]


def recipe(text: str) -> Recipe:
    """Read a sample's CMake file. Raises NotBuilt: it makes no program."""
    text = re.sub(r"#[^\n]*", "", text)
    variables = dict(re.findall(r'set\((\w+)\s+"?([^")]*?)"?\s*\)', text))

    def expand(value: str) -> str:
        return re.sub(r"\$\{(\w+)\}", lambda m: variables.get(m[1], ""), value)

    program = re.search(r"add_executable\(\s*\S+\s+([^)]*)\)", text)
    if program is None:
        raise NotBuilt("its CMake file makes no program")
    images = {
        Path(expand(output)).name: (kind, Path(expand(source)).name)
        for output, kind, source in re.findall(r"-o\s+(\$\{\w+\})\s+(-fatbin|-ptx)\s+(\$\{\w+\})", text)
    }
    libraries = [name.removesuffix("_driver") for name in re.findall(r"CUDA::(\w+)", text) if name != "cudart"]
    folders = " ".join(re.findall(r"include_directories\(([^)]*)\)", text)).split()
    elsewhere = next((kind for kind, asked in ELSEWHERE.items() if re.search(asked, text)), "")
    return Recipe(
        sources=tuple(expand(program[1]).split()),
        libraries=tuple(dict.fromkeys(libraries)),
        images=images,
        folders=tuple(dict.fromkeys(folders)),
        headers=tuple(dict.fromkeys(re.findall(r"\$\{CUDA_INCLUDE_DIR\}/(\S+)", text))),
        openmp="OpenMP" in text,
        elsewhere=elsewhere,
    )


def build(sample: Sample, into: Path) -> Path:
    """Build a sample in a copy of its folder; return its program. Raises NotBuilt."""
    found = recipe((sample.folder / "CMakeLists.txt").read_text())
    if found.elsewhere:
        raise NotBuilt(f"needs {found.elsewhere}")
    work = into / sample.folder.parent.name / sample.name
    program, made_with = work / sample.name, work / "constants.json"
    constants = CONSTANTS.get(sample.name, {})
    if program.exists() and json.loads(made_with.read_text()) == constants:
        return program
    shutil.rmtree(work, ignore_errors=True)
    shutil.copytree(sample.folder, work, ignore=shutil.ignore_patterns("doc"))
    if missing := shrink((file for file in work.rglob("*") if file.suffix in SOURCES), constants):
        raise NotBuilt(f"has no {' and no '.join(missing)} to make smaller")
    made_with.write_text(json.dumps(constants))
    for data in work.glob("data/*"):  # CMake copies it beside the program
        if data.is_file():
            shutil.copy(data, work)
    for name in found.headers:
        _copy_header(name, work)
    inside = [sample.folder if name.startswith("..") else work for name in found.folders]
    folders = [place / name for place, name in zip(inside, found.folders, strict=True) if (place / name).is_dir()]
    places = [sample.folder.parents[2] / "Common", Path(), *folders]
    common = [*(f"-I{place}" for place in places), "-Xcompiler", f"-idirafter,{WHEELS / 'include'}"]
    for name, (kind, source) in found.images.items():
        target = PTX if kind == "-fatbin" else ("-arch=compute_80",)
        _nvcc([*common, *FLAGS, *target, kind, "-o", name, source], work)
    libraries = [flag for name in found.libraries for flag in _linked(name, into / "libraries")]
    openmp = ["-Xcompiler", "-fopenmp"] if found.openmp else []
    sources = [str(sample.folder / name) if name.startswith("..") else name for name in found.sources]
    system = ["-lpthread", "-ldl", "-lrt", "-Xlinker", "--copy-dt-needed-entries"]  # as CMake's targets link them
    linked = [*openmp, "-o", sample.name, *sources, *libraries, *system]
    try:
        _nvcc([*common, *FLAGS, "-cudart", "shared", *PTX, *linked], work)
    except NotBuilt as reason:
        if SEPARATE not in str(reason):
            raise
        _nvcc([*common, *FLAGS, "-cudart", "shared", *LINKED, *linked], work)
    return program


def _copy_header(name: str, work: Path) -> None:
    """Copy a header, or a folder of headers, beside the program. Raises NotBuilt if this machine does not have it."""
    folders = (*sorted(Path("/usr/local").glob("cuda*/include")), WHEELS / "include")
    there = next((folder / name for folder in folders if (folder / name).exists()), None)
    if there is None:
        raise NotBuilt(f"needs {name}")
    if there.is_dir():
        shutil.copytree(there, work / there.name, dirs_exist_ok=True)
    else:
        shutil.copy(there, work)


def _linked(name: str, folder: Path) -> list[str]:
    """Return the flags that link a library of CUDA: a wheel's, which is complete, else one of ours or the toolkit's."""
    folder.mkdir(exist_ok=True)
    link = folder / f"lib{name}.so"
    ours = [directory / built for directory in native.directories() for built in ("remote", "libraries")]
    found = [file for directory in (WHEELS / "lib", *ours) for file in sorted(directory.glob(f"lib{name}.so.*"))]
    if found and not link.exists():
        link.symlink_to(found[0].resolve())
    wheels = str(WHEELS / "lib")
    return ["-L", str(folder), f"-l{name}", "-Xlinker", "-rpath", "-Xlinker", wheels]


def _nvcc(arguments: list[str], work: Path) -> None:
    try:
        done = subprocess.run(
            ["nvcc", *arguments], cwd=work, capture_output=True, text=True, timeout=BUILD_SECONDS, check=False
        )
    except subprocess.TimeoutExpired as error:
        raise NotBuilt(f"nvcc did not end in {BUILD_SECONDS:.0f} s") from error
    if done.returncode != 0:
        raise NotBuilt(_reason(done.stdout + done.stderr))


def _reason(output: str) -> str:
    """Return the line of a compiler's output that says what is missing."""
    if missing := re.search(r"fatal error: (\S+): No such file", output):
        return f"needs {Path(missing[1]).name}"
    if SEPARATE in output:
        return SEPARATE
    lines = output.splitlines()
    wrong = [line for line in lines if re.search(r"error|cannot find|undefined", line, re.IGNORECASE)]
    return (wrong or lines or ["nvcc failed"])[0].strip()[:200].replace("`", "'")
