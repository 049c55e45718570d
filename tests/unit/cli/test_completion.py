"""What a shell is offered after TAB, and that it takes no time: nothing heavy is loaded for it."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from egpu.adapters.simulator.machine import profiles
from egpu.cli.panels import PANELS

HEAVY = ("typer", "rich", "numpy", "structlog", "uvicorn", "starlette", "lightkube", "httpx2", "grpc", "msgspec")
"""Half a second of imports and more; `msgspec` alone is what leases cannot be asked for without."""
PROGRAM = f"""
import sys
from egpu.cli import main
sys.argv = ["egpu"]
try:
    main()
finally:
    loaded = sorted(sys.modules.keys() & {set(HEAVY)!r})
    print(*loaded, file=sys.stderr)
"""


def offered(typed: str, shell: str = "bash", **environment: str) -> tuple[list[str], list[str]]:
    """What is printed for a line that was typed, by line, and which heavy packages were loaded for it."""
    words = typed.split(" ")
    asked = {
        "_EGPU_COMPLETE": f"complete_{shell}",
        "COMP_WORDS": typed,
        "COMP_CWORD": str(len(words) - 1),
        "_TYPER_COMPLETE_ARGS": typed,
    }
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM],
        env={**os.environ, **asked, **environment},
        capture_output=True,
        text=True,
        check=True,
    )
    return done.stdout.splitlines(), done.stderr.split()


def test_commands_and_profiles_without_anything_heavy() -> None:
    assert offered("egpu ") == ([name for names in PANELS.values() for name in names], [])
    assert offered("egpu se") == (["selftest", "serve"], [])
    assert offered("egpu run --simulate ") == (sorted(profiles()), [])
    assert offered("egpu up --nodes 2 --profile a100") == (["A100-40G", "A100-80G"], [])
    assert offered("egpu explain ") == (["pod"], [])


def test_zsh_is_answered_in_its_own_form() -> None:
    assert offered("egpu se", "zsh") == (['_arguments \'*: :(("selftest"', '"serve"))\''], [])
    assert offered("egpu run --simulate X", "zsh") == (["_files"], [])


@pytest.mark.parametrize("typed", ["egpu run --si", "egpu sim ", "egpu get "])
def test_all_else_is_the_command_lines(typed: str) -> None:
    found, loaded = offered(typed)
    assert found
    assert "typer" in loaded


@pytest.mark.parametrize(
    "text", ["", "clusters: 7", "current-context: x\ncontexts: []\nclusters: []\nusers: []\n", ": ["]
)
def test_where_no_cluster_can_be_asked_nothing_is_offered_or_said(tmp_path: Path, text: str) -> None:
    file = tmp_path / "config"
    file.write_text(text)
    assert offered("egpu explain pod ", KUBECONFIG=str(file)) == ([], [])
    assert offered("egpu explain pod ", KUBECONFIG=str(tmp_path / "none")) == ([], [])


def test_where_no_broker_answers_nothing_is_offered_or_said() -> None:
    assert offered("egpu resize ", EGPU_POOL="127.0.0.1:1") == ([], ["msgspec"])
