"""Ctrl-C at the moments that Python answers with a traceback: imports, destructors, the end, half a line."""

import io
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from rich.console import Console

from egpu.cli import get
from egpu.cli.interruption import held
from egpu.cli.output import Table
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
{"" if "Fallen" in where else "threading.Timer(0.1, signal.raise_signal, (signal.SIGINT,)).start()"}
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


def test_what_is_held_is_done_whole() -> None:
    done: list[str] = []

    def drawn() -> None:
        with held():
            signal.raise_signal(signal.SIGINT)
            done.append("whole")

    with pytest.raises(KeyboardInterrupt):
        drawn()
    assert done == ["whole"]


def test_a_table_that_is_watched_is_not_left_half_drawn(monkeypatch: pytest.MonkeyPatch) -> None:
    """Interrupted in the middle of a write, it would be shown once more, behind its own last line."""

    class Terminal(io.StringIO):
        pressed = False

        def write(self, text: str) -> int:
            half = len(text) // 2
            written = super().write(text[:half])
            if "runs" in text and not self.pressed:
                self.pressed = True
                signal.raise_signal(signal.SIGINT)
            return written + super().write(text[half:])

    terminal = Terminal()
    monkeypatch.setattr(get, "console", Console(file=terminal, force_terminal=True, width=80, _environ={}))
    monkeypatch.setattr(get, "load_from", lambda _: None)
    monkeypatch.setattr(get, "_table", lambda *_: Table(("pod", "phase"), rows=[("runs", "Running")]))
    with pytest.raises(KeyboardInterrupt):
        get._watch(get.What.PODS, None, None)
    shown = terminal.getvalue()
    assert terminal.pressed
    assert shown.count("runs") == 2, "when it was drawn, and when it was left standing"
    assert shown.endswith("\n\x1b[?25h"), "the cursor is there again, below the table"
