"""Make the kubectl plugin for krew in DIRECTORY: an archive for this machine, and the manifest egpu.yaml for it.

The archive has the program and all its packages, with compiled parts, so it is for one architecture and one minor
version of Python. Its launcher looks for that version. The packages are those of requirements/image.txt, by hash.

Usage: python scripts/krew.py DIRECTORY [--address URL]   (URL: where the archive will be published)
"""

import argparse
import gzip
import hashlib
import io
import os
import platform
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
import tomllib
from pathlib import Path
from typing import Final

from oci_archive import ARCHITECTURES, anonymous
from reproducible_wheel import ROOT, checksum, commit_time

TEMPLATE: Final = ROOT / "deploy" / "krew" / "egpu.yaml"
PROGRAMS: Final = {"kubectl-egpu": "egpu.cli:main", "kubectl_complete-egpu": "egpu.cli.completion:for_kubectl"}
"""The files that are run, and their functions."""
LAUNCHER: Final = """#!/bin/sh
# Starts the plugin with the Python that its compiled parts are for.
here=$(dirname "$(readlink -f "$0")")
for python in python{minor} python3; do
    if [ "$("$python" -c 'import sys; print("%d.%d" % sys.version_info[:2])' 2> /dev/null)" = "{minor}" ]; then
        exec "$python" -I -c '
import sys
sys.path.insert(0, sys.argv.pop(1))
sys.argv[0] = "{name}"
from {module} import {function}
{function}()
' "$here/site" "$@"
    fi
done
echo "error: kubectl egpu needs python{minor}, which is not in PATH. Install it, or use: pipx install elastic-gpu" >&2
exit 1
"""


def launcher(name: str, minor: str) -> str:
    """Return the script of a program, for this minor version of Python."""
    module, function = PROGRAMS[name].split(":")
    return LAUNCHER.format(name=name, minor=minor, module=module, function=function)


def pip(*arguments: str | Path) -> None:
    """Run pip, with the build tools of this environment. Raises CalledProcessError."""
    environment = {**os.environ, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
    command = [sys.executable, "-m", "pip", "--disable-pip-version-check", *map(str, arguments)]
    subprocess.run(command, env=environment, check=True, stdout=subprocess.DEVNULL)


def install(site: Path, wheels: Path) -> None:
    """Install the program and its packages into `site`."""
    into = ("install", "--no-compile", "--target", site)
    print("packages", file=sys.stderr, flush=True)
    pip(*into, "--require-hashes", "-r", ROOT / "requirements" / "image.txt")
    print("the program", file=sys.stderr, flush=True)
    pip("wheel", "--no-build-isolation", "--no-deps", "--wheel-dir", wheels, ROOT / "base", ROOT)
    pip(*into, "--no-index", "--no-deps", "--find-links", wheels, "egpu-base", "elastic-gpu")
    shutil.rmtree(site / "bin", ignore_errors=True)
    for record in site.glob("*.dist-info/RECORD"):  # its programs name the folder of this build
        record.write_text(
            "".join(one for one in record.read_text().splitlines(True) if not one.startswith("../../bin/"))
        )


def add_programs(folder: Path, minor: str) -> None:
    """Add the launchers and the licence."""
    for name in PROGRAMS:
        (folder / name).write_text(launcher(name, minor))
        (folder / name).chmod(0o755)
    shutil.copy(ROOT / "LICENSE", folder / "LICENSE")


def pack(folder: Path, target: Path, epoch: int) -> None:
    """Write the files below `folder` as an archive, which is the same for the same files."""
    with (
        target.open("wb") as file,
        gzip.GzipFile("", "wb", 9, file, mtime=0) as packed,
        tarfile.open(fileobj=packed, mode="w|", format=tarfile.PAX_FORMAT) as archive,
    ):
        for path in sorted(folder.rglob("*")):
            member = anonymous(archive.gettarinfo(path, str(path.relative_to(folder))), epoch)
            member.mode = 0o755 if member.isdir() or member.mode & 0o100 else 0o644
            content = path.read_bytes() if member.isreg() else b""
            archive.addfile(member, io.BytesIO(content))


def manifest(template: str, archive: Path, *, version: str, architecture: str, address: str) -> str:
    """Return the manifest of an archive, in krew's form."""
    digest = hashlib.sha256(archive.read_bytes()).hexdigest()
    for pattern, text in (
        (r"\A(#.*\n)+", ""),
        (r"(?<=version: )v\S+", f"v{version}"),
        (r"(?<=arch: )\S+", architecture),
        (r"(?<=uri: )\S+", f"{address}/{archive.name}"),
        (r"(?<=sha256: ).+", digest),
        (r"python3\.\d+", f"python{python_minor()}"),
    ):
        template, count = re.subn(pattern, text, template)
        assert count == 1, f"{TEMPLATE}: {pattern} is there {count} times, not once"
    return template


def python_minor() -> str:
    """Return this Python's version, such as 3.11."""
    return f"{sys.version_info.major}.{sys.version_info.minor}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("directory", type=Path)
    parser.add_argument("--address", default="https://elasticgpu.example")
    arguments = parser.parse_args()
    directory: Path = arguments.directory
    directory.mkdir(parents=True, exist_ok=True)
    version = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    architecture = ARCHITECTURES.get(platform.machine(), platform.machine())
    archive = directory / f"kubectl-egpu-{version}-linux-{architecture}.tar.gz"
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary, "plugin")
        install(folder / "site", Path(temporary, "wheels"))
        add_programs(folder, python_minor())
        print("the archive", file=sys.stderr, flush=True)
        pack(folder, archive, int(commit_time()))
    written = manifest(
        TEMPLATE.read_text(), archive, version=version, architecture=architecture, address=arguments.address.rstrip("/")
    )
    (directory / "egpu.yaml").write_text(written)
    print(f"{checksum(archive)}\n{directory / 'egpu.yaml'}")


if __name__ == "__main__":
    main()
