"""Build the wheel twice, in two folders with other names, and say whether both are the same, byte by byte.

What is in git goes in, and the time of the last commit is that of every file. The first wheel is left in DIRECTORY.

Usage: python scripts/reproducible_wheel.py DIRECTORY
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
    """A copy of what is in git."""
    names = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, check=True).stdout.decode()
    for name in filter(None, names.split("\0")):
        if (ROOT / name).is_file():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, folder / name)
    return folder


def built(folder: Path, epoch: str) -> Path:
    """The wheel of the sources in `folder`."""
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "wheel", "--no-build-isolation", "--no-deps"]
    tools = str(Path(sys.executable).parent)  # cmake and ninja
    environment = {**os.environ, "SOURCE_DATE_EPOCH": epoch, "PATH": f"{tools}:{os.environ['PATH']}"}
    subprocess.run(
        [*pip, "--wheel-dir", "dist", "."], cwd=folder, env=environment, check=True, stdout=subprocess.DEVNULL
    )
    (wheel,) = (folder / "dist").glob("*.whl")
    return wheel


def differences(one: Path, other: Path) -> list[str]:
    """The members that are not the same in both, or not there; the order and times of all where these are."""
    with zipfile.ZipFile(one) as first, zipfile.ZipFile(other) as second:
        names = [*first.namelist(), *second.namelist()]
        different = [
            name for name in dict.fromkeys(names) if names.count(name) != 2 or first.read(name) != second.read(name)
        ]
    if not different and one.read_bytes() != other.read_bytes():
        different.append("the archives themselves: the order or the times of their members")
    return different


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("directory", type=Path)
    target: Path = parser.parse_args().directory
    log = ["git", "log", "-1", "--format=%ct"]
    epoch = subprocess.run(log, cwd=ROOT, capture_output=True, check=True, text=True).stdout.strip()
    with tempfile.TemporaryDirectory() as folder:
        one = sources(Path(folder, "one"))
        other = shutil.copytree(one, Path(folder, "another-place"))
        first, second = built(one, epoch), built(other, epoch)
        if different := differences(first, second):
            print("not reproducible: " + ", ".join(different), file=sys.stderr)
            return 1
        target.mkdir(parents=True, exist_ok=True)
        shutil.copy2(first, target)
        print(f"{hashlib.sha256(first.read_bytes()).hexdigest()}  {target / first.name}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
