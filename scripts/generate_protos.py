"""Generate the Python modules of our .proto files; with --check, compare only."""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path

from grpc_tools import protoc

ROOT = Path(__file__).resolve().parent.parent
SOURCE = ROOT / "src"
SERVICES = ("egpu/adapters/kubelet/deviceplugin.proto", "egpu/adapters/kubelet/podresources.proto")
MESSAGES = ("egpu/embedded/apiserver/kubernetes.proto", "egpu/embedded/apiserver/openapi.proto")


def generate(into: Path) -> list[Path]:
    """Write the modules under `into` and return their paths relative to it."""
    arguments = ["protoc", f"-I{SOURCE}", f"--python_out={into}", f"--pyi_out={into}"]
    if protoc.main([*arguments, f"--grpc_python_out={into}", *SERVICES]) or protoc.main([*arguments, *MESSAGES]):
        sys.exit("protoc refused the .proto files")
    return sorted(path.relative_to(into) for path in into.rglob("*_pb2*") if path.suffix in {".py", ".pyi"})


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="fail when the checked-in modules differ")
    check = parser.parse_args().check
    with tempfile.TemporaryDirectory() as scratch:
        fresh = Path(scratch)
        modules = generate(fresh)
        stale = [
            module
            for module in modules
            if not (SOURCE / module).is_file() or (SOURCE / module).read_bytes() != (fresh / module).read_bytes()
        ]
        if check:
            for module in stale:
                print(f"src/{module} differs from a fresh generation: run scripts/generate_protos.py", file=sys.stderr)
            return 1 if stale else 0
        for module in stale:
            (SOURCE / module).write_bytes((fresh / module).read_bytes())
    return 0


if __name__ == "__main__":
    sys.exit(main())
