"""Make a release in DIRECTORY: the wheel of each SOURCE folder, the image with its bill of materials, and SHA256SUMS.

Wheels are built twice and compared. The image needs mmdebstrap on Debian 12 (scripts/image.py); without it, it is left
out.

Usage: python scripts/release.py DIRECTORY [SOURCE ...]
"""

import argparse
import sys
from pathlib import Path

from image import image, missing
from reproducible_wheel import checksum, wheel


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("directory", type=Path)
    parser.add_argument("sources", nargs="*", default=["."])
    arguments = parser.parse_args()
    directory: Path = arguments.directory
    made: list[Path] = []
    for source in arguments.sources:
        print(f"wheel of {source}: building it twice", flush=True)
        made.append(wheel(source, directory))
    if lacking := missing():
        print(f"image: left out, because this machine lacks {', '.join(lacking)}", file=sys.stderr)
    else:
        print("image: building it", flush=True)
        made += image(directory)
    lines = "".join(f"{checksum(file)}\n" for file in made)
    (directory / "SHA256SUMS").write_text(lines)
    print(lines, end="")


if __name__ == "__main__":
    main()
