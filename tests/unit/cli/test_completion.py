"""Shell completion: the candidates, and that it loads no slow packages."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from egpu.cli.panels import PANELS
from egpu_sim.machines.machine import profiles

HEAVY = ("typer", "rich", "numpy", "structlog", "uvicorn", "starlette", "lightkube", "httpx2", "grpc", "msgspec")
"""Packages whose imports take half a second or more. Only completion of leases may load `msgspec`."""
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
    """Return the lines printed for a typed line, and the slow packages that were loaded."""
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


def test_commands_and_profiles_load_nothing_heavy() -> None:
    assert offered("egpu ") == ([name for names in PANELS.values() for name in names], [])
    assert offered("egpu se") == (["selftest", "serve"], [])
    assert offered("egpu run --simulate ") == (sorted(profiles()), [])
    assert offered("egpu up --nodes 2 --profile a100") == (["A100-40G", "A100-80G"], [])
    assert offered("egpu explain ") == (["pod", "claim", "node"], [])


def test_zsh_gets_its_own_format() -> None:
    assert offered("egpu se", "zsh") == (['_arguments \'*: :(("selftest"', '"serve"))\''], [])
    assert offered("egpu run --simulate X", "zsh") == (["_files"], [])


@pytest.mark.parametrize("typed", ["egpu run --si", "egpu sim ", "egpu get "])
def test_the_command_line_completes_the_rest(typed: str) -> None:
    found, loaded = offered(typed)
    assert found
    assert "typer" in loaded


@pytest.mark.parametrize(
    "text", ["", "clusters: 7", "current-context: x\ncontexts: []\nclusters: []\nusers: []\n", ": ["]
)
def test_without_a_cluster_completion_prints_nothing(tmp_path: Path, text: str) -> None:
    file = tmp_path / "config"
    file.write_text(text)
    assert offered("egpu explain pod ", KUBECONFIG=str(file)) == ([], [])
    assert offered("egpu explain pod ", KUBECONFIG=str(tmp_path / "none")) == ([], [])


def test_without_a_broker_completion_prints_nothing() -> None:
    assert offered("egpu resize ", EGPU_POOL="127.0.0.1:1") == ([], ["msgspec"])


@pytest.mark.parametrize(
    ("words", "answer"),
    [
        (["se"], ["selftest", "serve", ":4"]),
        (["explain", ""], ["pod", "claim", "node", ":4"]),
        (["get", "--mod"], ["--model", "--mode", ":4"]),
        (["run", "--simulate", "X"], [":0"]),
        (["explain", "pod", "it's"], [":0"]),
    ],
)
def test_kubectl_gets_candidates_and_what_else_the_shell_does(
    words: list[str], answer: list[str], tmp_path: Path
) -> None:
    program = "import sys; from egpu.cli.completion import for_kubectl; for_kubectl()"
    environment = {**os.environ, "KUBECONFIG": str(tmp_path / "none")}
    done = subprocess.run(
        [sys.executable, "-c", program, *words], env=environment, capture_output=True, text=True, check=True
    )
    assert (done.stdout.splitlines(), done.stderr) == (answer, "")
