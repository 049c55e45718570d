"""What is generated for the remote pair is up to date, and numbers on the wire are not used twice."""

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def test_generated_files_are_up_to_date() -> None:
    done = subprocess.run(
        [sys.executable, str(ROOT / "scripts/generate_remote.py"), "--check"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr


def test_every_number_has_one_meaning() -> None:
    rows = [
        line.split() for line in (ROOT / "native/wire/ops.txt").read_text().splitlines() if not line.startswith("#")
    ]
    for what in ("op", "kind"):
        numbers = [number for kind, number, _ in rows if kind == what]
        names = [name for kind, _, name in rows if kind == what]
        assert len(set(numbers)) == len(numbers)
        assert len(set(names)) == len(names)
