"""Make the image in DIRECTORY without a container engine: an OCI archive, and its bill of materials beside it.

The archive is the same, byte by byte, for the same commit and the same packages of Debian. It is for this machine's
architecture: nothing here builds for another one. It needs Debian 12 with mmdebstrap, python3.11-venv, gcc and
libc6-dev. Another user than root works in a user namespace, with a range of user ids of its own.

Usage: python scripts/image.py DIRECTORY
"""

import argparse
import os
import platform
import pwd
import shutil
import subprocess
import sys
import tempfile
import tomllib
from pathlib import Path
from typing import Final

import oci_archive
from reproducible_wheel import ROOT, checksum, commit_time

TOOLS: Final = ("mmdebstrap", "python3.11", "gcc")
OF_NAMESPACES: Final = ("unshare", "newuidmap", "newgidmap")
RANGES: Final = (Path("/etc/subuid"), Path("/etc/subgid"))
SBOM: Final = "opt/elastic-gpu/sbom.cdx.json"
"""The bill of materials in the image, which deploy/image/build.sh writes."""


def missing() -> list[str]:
    """Return what the image needs and this machine lacks."""
    lacking = [each for each in TOOLS if shutil.which(each) is None]
    if os.geteuid() == 0:
        return lacking
    user = pwd.getpwuid(os.geteuid()).pw_name
    lacking += [f"{each} (or root)" for each in OF_NAMESPACES if shutil.which(each) is None]
    return lacking + [f"a range of {user} in {file} (or root)" for file in RANGES if not has_range(file, user)]


def has_range(file: Path, user: str) -> bool:
    """Return whether a user has a range of ids in /etc/subuid or /etc/subgid."""
    return file.exists() and any(line.startswith(f"{user}:") for line in file.read_text().splitlines())


def namespace(command: list[str]) -> list[str]:
    """Return the command as root of a user namespace; as it is for root."""
    if os.geteuid() == 0:
        return command
    return ["unshare", "--user", "--map-auto", "--map-root-user", "--mount", "--fork", "--kill-child", *command]


def image(directory: Path) -> list[Path]:
    """Build the image's root file system and archive it. Return the archive and the bill of materials."""
    version = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    stem = f"elastic-gpu-{version}-{platform.machine()}"
    target, bill = directory / f"{stem}.oci.tar", directory / f"{stem}.cdx.json"
    directory.mkdir(parents=True, exist_ok=True)
    made = [sys.executable, __file__, "--build", str(target.resolve()), str(bill.resolve()), f"elastic-gpu:{version}"]
    subprocess.run(namespace(made), env={**os.environ, "SOURCE_DATE_EPOCH": epoch()}, check=True)
    return [target, bill]


def epoch() -> str:
    """Return the time of all files, in seconds since 1970: SOURCE_DATE_EPOCH, or else the last commit's."""
    return os.environ.get("SOURCE_DATE_EPOCH") or commit_time()


def build(target: Path, bill: Path, name: str) -> None:
    """Build and archive as root, or as root of a namespace. An interrupted build leaves no file."""
    with tempfile.TemporaryDirectory() as folder:
        root, draft = Path(folder, "root"), target.with_name(f".{target.name}")
        root.mkdir()
        subprocess.run([ROOT / "deploy/image/build.sh", root], check=True)
        print("image: the archive", file=sys.stderr, flush=True)
        try:
            oci_archive.write(root, draft, name, int(os.environ["SOURCE_DATE_EPOCH"]))
            shutil.copyfile(root / SBOM, bill)
            draft.rename(target)
        finally:
            draft.unlink(missing_ok=True)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("directory", type=Path)
    arguments = parser.parse_args()
    if lacking := missing():
        print(f"the image needs {', '.join(lacking)}: install or add them", file=sys.stderr)
        return 1
    archive, bill = image(arguments.directory)
    print(f"{checksum(archive)}\n{checksum(bill)}")
    return 0


if __name__ == "__main__":
    if sys.argv[1:2] == ["--build"]:
        build(Path(sys.argv[2]), Path(sys.argv[3]), sys.argv[4])
    else:
        sys.exit(main())
