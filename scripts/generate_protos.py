"""The Python modules of our .proto files."""

from __future__ import annotations

import tempfile
from pathlib import Path

from generate import ToolError
from grpc_tools import protoc

ROOT = Path(__file__).resolve().parent.parent
KUBELET = ("deviceplugin.proto", "dra.proto", "pluginregistration.proto", "podresources.proto")
PACKAGES = {
    "base/src": ("egpu_base/kubelet", "", KUBELET, "--grpc_python_out"),
    "simulator/src": ("egpu_sim/cluster/apiserver", "http", ("kubernetes.proto", "openapi.proto"), ""),
}
"""By source folder: the package with `generated`, its folder of .proto files, these, and the option for services."""
GENERATED = "generated"


def generate(into: Path) -> dict[Path, Path]:
    """Write the modules under `into`; return the fresh file of each checked-in one."""
    found: dict[Path, Path] = {}
    for source, (package, folder, files, services) in PACKAGES.items():
        fresh = into / source
        fresh.mkdir(parents=True)
        # protoc names modules by the paths of their sources: so these seem to be where the modules go.
        arguments = ["protoc", f"-I{package}/{GENERATED}={ROOT / source / package / folder}", f"--python_out={fresh}"]
        arguments += [f"--pyi_out={fresh}", *([f"{services}={fresh}"] if services else [])]
        if protoc.main([*arguments, *(f"{package}/{GENERATED}/{file}" for file in files)]):
            raise ToolError("protoc refused the .proto files")
        made = sorted(path for path in fresh.rglob("*_pb2*") if path.suffix in {".py", ".pyi"})
        found |= {ROOT / source / path.relative_to(fresh): path for path in made}
    return found


def files() -> dict[Path, str]:
    with tempfile.TemporaryDirectory() as scratch:
        return {ours: fresh.read_text() for ours, fresh in generate(Path(scratch)).items()}
