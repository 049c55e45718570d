"""The generated gRPC modules are those of the .proto files."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path


def test_generated_modules_are_fresh() -> None:
    script = Path(__file__).resolve().parents[2] / "scripts/generate.py"
    done = subprocess.run([sys.executable, script, "--check", "protos"], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
