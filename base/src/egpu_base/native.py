"""Find the native libraries and programs of a package: installed with it, or in the build folder of a source tree."""

import importlib
from dataclasses import dataclass
from pathlib import Path

from egpu_base.errors import NativeMissing


@dataclass(frozen=True)
class Artefacts:
    """The native artefacts of the Python package `package`; `sources` is their CMake folder in the repository, and
    `build` where a build by hand leaves them."""

    package: str
    sources: str
    build: str

    def directories(self) -> tuple[Path, ...]:
        """Return the folders to search, first match first. An editable install keeps its artefacts beside the sources,
        so every folder of the package counts."""
        package = importlib.import_module(self.package)
        installed = (Path(folder) / "_native" for folder in package.__path__)
        return (*installed, _repository(Path(str(package.__file__)).resolve()) / self.build)

    def search_path(self, others: str) -> str:
        """Return a PATH with the package's programs first (samples, a small nvidia-smi), then `others`."""
        programs = [directory / name for name in ("tools", "samples") for directory in self.directories()]
        ours = [str(directory) for directory in programs if directory.is_dir()]
        return ":".join([*ours, *(each for each in others.split(":") if each not in ours)])

    def path(self, name: str) -> Path:
        """Return the absolute path of an artefact, such as ``libegpu-interposer.so`` or ``sim/libcuda.so.1``.

        Raises:
            NativeMissing: it is in none of the folders; the message says how to build it.
        """
        for directory in self.directories():
            candidate = directory / name
            if candidate.exists():
                return candidate
        searched = " or ".join(str(directory) for directory in self.directories())
        raise NativeMissing(
            f"{name} was not found in {searched}; install the package again, or in a source tree run: "
            f"cmake -S {self.sources} -B {self.build} -G Ninja && cmake --build {self.build}"
        )


def _repository(module: Path) -> Path:
    """Return the root of the source tree: the folder that holds `src` or `simulator`."""
    source = next((parent for parent in module.parents if parent.name == "src"), module.parent)
    return source.parent.parent if source.parent.name == "simulator" else source.parent
