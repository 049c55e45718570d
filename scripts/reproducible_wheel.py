"""Build the wheel of each SOURCE folder twice, in two places, and compare the two byte by byte.

Only files that git tracks go in. Every file has the time of the last commit. The first wheel is left in DIRECTORY.

Usage: python scripts/reproducible_wheel.py DIRECTORY [SOURCE ...]
"""

import argparse
import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent


def sources(folder: Path) -> Path:
    """Copy the files that git tracks."""
    names = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, check=True).stdout.decode()
    for name in filter(None, names.split("\0")):
        if (ROOT / name).is_file():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, folder / name)
    return folder


def built(folder: Path, epoch: str) -> Path:
    """Build the wheel of the sources in `folder`."""
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "wheel", "--no-build-isolation", "--no-deps"]
    tools = str(Path(sys.executable).parent)  # cmake and ninja
    environment = {**os.environ, "SOURCE_DATE_EPOCH": epoch, "PATH": f"{tools}:{os.environ['PATH']}"}
    subprocess.run(
        [*pip, "--wheel-dir", "dist", "."], cwd=folder, env=environment, check=True, stdout=subprocess.DEVNULL
    )
    (wheel,) = (folder / "dist").glob("*.whl")
    return wheel


def differences(one: Path, other: Path) -> list[str]:
    """Return the members that differ or are missing, or that the archives' order or times differ."""
    with zipfile.ZipFile(one) as first, zipfile.ZipFile(other) as second:
        names = [*first.namelist(), *second.namelist()]
        different = [
            name for name in dict.fromkeys(names) if names.count(name) != 2 or first.read(name) != second.read(name)
        ]
    if not different and one.read_bytes() != other.read_bytes():
        different.append("the archives themselves: the order or the times of their members")
    return different


def commit_time() -> str:
    """Return the time of the last commit, in seconds since 1970."""
    log = ["git", "log", "-1", "--format=%ct"]
    return subprocess.run(log, cwd=ROOT, capture_output=True, check=True, text=True).stdout.strip()


def wheel(source: str, target: Path) -> Path:
    """Build the wheel of a folder of the repository twice, and put it into `target`."""
    with tempfile.TemporaryDirectory() as folder:
        one = sources(Path(folder, "one"))
        other = shutil.copytree(one, Path(folder, "another-place"))
        first, second = (built(place / source, commit_time()) for place in (one, other))
        if different := differences(first, second):
            sys.exit(f"the wheel of {source} is not reproducible: {', '.join(different)}")
        target.mkdir(parents=True, exist_ok=True)
        return Path(shutil.copy2(first, target))


def checksum(file: Path) -> str:
    """Return a file's line for `sha256sum --check`."""
    with file.open("rb") as content:
        return f"{hashlib.file_digest(content, 'sha256').hexdigest()}  {file.name}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("directory", type=Path)
    parser.add_argument("sources", nargs="*", default=["."])
    arguments = parser.parse_args()
    for source in arguments.sources:
        print(checksum(wheel(source, arguments.directory)))


if __name__ == "__main__":
    main()
