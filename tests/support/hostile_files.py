"""What a tenant can do to the one file that it may write: its slice's usage file."""

import os
import random
from pathlib import Path

from egpu.adapters.slices.pages import create_usage


def damage(path: Path, random_source: random.Random) -> None:
    """Whatever a container can do to its own usage file."""
    how = random_source.randrange(8)
    if path.is_dir():
        path.rmdir()
    if how == 0:
        path.unlink(missing_ok=True)
    elif how == 1 and path.is_file():
        os.truncate(path, random_source.randrange(300_000))
    elif how == 2:
        path.unlink(missing_ok=True)
        path.symlink_to("/dev/zero")
    elif how == 5:
        path.unlink(missing_ok=True)
        os.mkfifo(path)
    elif how == 6:
        path.unlink(missing_ok=True)
        path.mkdir()
    elif how == 7:
        path.unlink(missing_ok=True)
        create_usage(path)
        content = path.read_bytes()
        path.write_bytes(content[:64] + bytes([random_source.randrange(256)]) * (len(content) - 64))
    else:
        if not path.is_file() or path.is_symlink():
            path.unlink(missing_ok=True)
            create_usage(path)
        content = bytearray(path.read_bytes().ljust(4096, b"\0"))
        for _ in range(random_source.randrange(1, 200)):
            at = random_source.randrange(64 if how == 3 else 0, len(content))
            content[at] = random_source.randrange(256)
        path.write_bytes(content)
