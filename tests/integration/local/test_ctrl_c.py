"""Ctrl-C at the moments that Python answers with a traceback: imports, destructors, the end."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from support.waiting import DEADLINE_SECONDS

PRESSED = "import os, signal, time; os.kill(os.getpid(), signal.SIGINT); time.sleep(60)"


def ended(*command: str, **more: str) -> tuple[int, str]:
    done = subprocess.run(
        [sys.executable, *command], env={**os.environ, **more}, stdin=subprocess.DEVNULL, capture_output=True,
        text=True, timeout=DEADLINE_SECONDS, check=False,
    )  # fmt: skip
    return done.returncode, done.stderr


@pytest.mark.parametrize("module", ["typer", "lightkube"])
def test_while_something_is_imported(tmp_path: Path, module: str) -> None:
    (tmp_path / f"{module}.py").write_text(PRESSED)
    assert ended("-m", "egpu", "get", "gpus", PYTHONPATH=str(tmp_path)) == (-signal.SIGINT, "")


def test_once_all_is_done(tmp_path: Path) -> None:
    (tmp_path / "usercustomize.py").write_text(f"import atexit\ndef last():\n    {PRESSED}\natexit.register(last)")
    (tmp_path / "sitecustomize.py").write_text("import usercustomize")
    assert ended("-m", "egpu", "version", PYTHONPATH=str(tmp_path)) == (-signal.SIGINT, "")


@pytest.mark.parametrize("where", ["time.sleep(60)", "Fallen(); time.sleep(60)"])
def test_in_a_command_and_in_its_destructors(where: str) -> None:
    """What a destructor raises, Python prints and forgets."""
    program = f"""
import os, signal, threading, time
from egpu.cli.interruption import ends_at_once, is_raised
class Fallen:
    def __del__(self):
        signal.raise_signal(signal.SIGINT)
ends_at_once()
is_raised()
{"" if "Fallen" in where else "threading.Timer(0.1, os.kill, (os.getpid(), signal.SIGINT)).start()"}
try:
    {where}
finally:
    os.write(2, b"put away")
"""
    assert ended("-c", program) == (-signal.SIGINT, "put away")


def test_who_is_started_with_it_ignored_goes_on() -> None:
    program = """
import signal
from egpu.cli.interruption import ends_at_once, is_raised
signal.signal(signal.SIGINT, signal.SIG_IGN)
ends_at_once()
is_raised()
signal.raise_signal(signal.SIGINT)
"""
    assert ended("-c", program) == (0, "")
