"""Run the console blocks of README and docs, and compare the printed with the written text.

In a block `$ ` begins a command, and its output is below it; without such lines, it may print anything. Figures, bars
and the width of gaps may differ; `…` stands for anything, and a line of `…` for any lines or none. One shell gets the
commands of a block; a failure ends the walk of its block. A comment before the block, which readers of the page do not
see, says how to walk it:

    <!-- walk: no, REASON -->   not at all: it needs what is not here, a cluster or a GPU, say
    <!-- walk: excerpt -->      one command; these paragraphs of what it prints are shown, in this order, `$` lines too
    <!-- walk: slow -->         only by `make walk-docs`, not by the tests
    <!-- walk: after            with `slow, ` before it or not: what stands in the other lines of this comment is run in
    COMMANDS -->                the same shell first; what it leaves in the background is ended with the block

Usage: python scripts/walk_docs.py [--in tree|clone|wheel] [--as USER] [FILE ...]
"""

import argparse
import os
import pwd
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parents[1]
SECONDS: Final = 900
MARK: Final = re.compile(r"no, \S.*|excerpt|slow|excerpt, slow|(slow, )?after\n[\s\S]*\S")
ENDED: Final = "-- ended with"
VOLATILE: Final = re.compile(r"\n…(?=\n|\Z)|…|\s+|[█░]+|\d[\w.]*")
"""The parts that differ from run to run, by kind: each written part stands for any of its kind."""
ANY: Final = {"…": r"[\s\S]*?", "█": "[█░]+", "0": r"\d[\w.]*", " ": r"\s+"}


@dataclass(frozen=True)
class Step:
    """A command, and its expected output."""

    command: str
    printed: str


@dataclass(frozen=True)
class Block:
    """A block of a page. `mark` is the comment, if any; `before` are commands to run first."""

    file: str
    line: int
    mark: str
    text: str
    before: str = ""

    @property
    def walked(self) -> bool:
        return not self.mark.startswith("no, ")

    @property
    def excerpt(self) -> bool:
        return self.mark.startswith("excerpt")

    @property
    def slow(self) -> bool:
        return "slow" in self.mark.split(", ")

    def steps(self) -> list[Step]:
        if self.excerpt:
            command, _, printed = self.text.removeprefix("$ ").partition("\n")
            return [Step(command, printed)]
        return [step(each) for each in re.split(r"(?m)^\$ ", self.text)[1:]]


def step(text: str) -> Step:
    """Return a step; its command continues while its lines end with a backslash."""
    lines = text.split("\n")
    last = next(at for at, line in enumerate(lines) if not line.endswith("\\"))
    return Step("\n".join(lines[: last + 1]), "\n".join(lines[last + 1 :]))


def blocks(file: str, text: str) -> list[Block]:
    found: list[Block] = []
    for match in re.finditer(r"(?m)^(?:<!-- walk: ((?:(?!-->)[\s\S])*) -->\n+)?```console\n([\s\S]*?)^```$", text):
        mark, _, before = (match[1] or "").partition("\n")
        found.append(Block(file, text.count("\n", 0, match.start(2)), mark, match[2], before))
    return found


def script(block: Block) -> str:
    """Return the input of one shell, which prints the status after each command."""
    said = f"status=$?; echo; echo '{ENDED}' $status; [ $status = 0 ] || exit 0"
    first = "trap 'kill $(jobs -p) 2> /dev/null; wait' EXIT\n" + block.before
    return "\n".join([first, *(f"{step.command}\n{said}" for step in block.steps())])


def pieces(written: str) -> list[tuple[str, str]]:
    """Return the parts of the text, each with its kind: a key of ANY, or "" for text that must appear as written."""
    parts: list[tuple[str, str]] = []
    at = 0
    for match in VOLATILE.finditer(written):
        kind = "0" if match[0][0].isdigit() else "█" if match[0][0] in "█░" else "…" if "…" in match[0] else " "
        parts += [(written[at : match.start()], ""), (match[0], kind)]
        at = match.end()
    return [*parts, (written[at:], "")]


def pattern(written: str) -> str:
    """Return a regular expression for the output that the text allows."""
    return "".join(ANY[kind] if kind else re.escape(text) for text, kind in pieces(written))


def difference(step: Step, printed: str, *, excerpt: bool) -> str:
    """Return the first paragraph (of an excerpt), or all written text, that differs from the output; "" if none."""
    paragraphs = re.split(r"\n\s*\n", step.printed.strip()) if excerpt else [step.printed.strip()]
    at = 0
    for paragraph in paragraphs:
        match = re.compile(pattern(paragraph.strip())).search(printed, at)
        if match is None:
            return paragraph
        at = match.end()
    return ""


def walk(block: Block, *, folder: Path, environment: Mapping[str, str], user: Sequence[str] = ()) -> str:
    """Return the block's problem in words, or ""."""
    done = subprocess.run(
        [*user, "bash", "-c", script(block)], cwd=folder, env=environment, stdin=subprocess.DEVNULL,
        capture_output=True, text=True, timeout=SECONDS, check=False,
    )  # fmt: skip
    said = re.split(rf"\n{ENDED} (\d+)\n", done.stdout)
    for at, step in enumerate(block.steps()):
        printed, status = said[2 * at], said[2 * at + 1] if 2 * at + 1 < len(said) else "none"
        if status != "0":
            return f"`{step.command}` ends with status {status}:\n{printed[-1000:]}{done.stderr[-3000:]}"
        if lacking := difference(step, printed, excerpt=block.excerpt):
            return f"`{step.command}` does not print\n{lacking}\nbut\n{printed[-6000:]}"
    return ""


def pages() -> Iterable[Path]:
    return [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md")), *sorted((ROOT / "simulator").glob("*.md"))]


def place(kind: str, scratch: Path) -> tuple[Path, Path]:
    """Return the folder in which commands run, and the folder of their programs."""
    if kind == "tree":
        return ROOT, ROOT / ".venv/bin"
    clone = scratch / "clone"
    subprocess.run(["git", "clone", "--quiet", ROOT, clone], check=True)
    if kind == "clone":
        return clone, clone / ".venv/bin"
    build = [
        sys.executable,
        "-m",
        "pip",
        "--disable-pip-version-check",
        "-qq",
        "wheel",
        "--no-build-isolation",
        "--no-deps",
    ]
    tools = os.environ | {"PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
    sources = [clone / "base", clone / "simulator", clone]
    subprocess.run([*build, "--wheel-dir", clone / "dist", *sources], env=tools, check=True)
    environment = scratch / "environment"
    subprocess.run([clone / "scripts/make_venv.sh", sys.executable, environment], check=True)
    pip = [environment / "bin/pip", "--disable-pip-version-check", "-qq", "install", "--require-hashes"]
    subprocess.run([*pip, "-r", clone / "requirements/run.txt"], check=True)
    subprocess.run([*pip[:-1], "--no-deps", *(clone / "dist").glob("*.whl")], check=True)
    (packages,) = environment.glob("lib/python*/site-packages")
    return packages / "egpu", environment / "bin"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--in", dest="kind", choices=["tree", "clone", "wheel"], default="tree")
    parser.add_argument("--as", dest="user", metavar="USER", help="whom the commands run as, from root")
    parser.add_argument("files", nargs="*", type=Path, metavar="FILE")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="egpu-walk-") as scratch:
        folder, programs = place(options.kind, Path(scratch))
        (home := Path(scratch) / "home").mkdir(mode=0o700)
        as_user: list[str] = []
        if options.user:
            who = pwd.getpwnam(options.user)
            subprocess.run(["chown", "-R", f"{who.pw_uid}:{who.pw_gid}", scratch], check=True)
            as_user = ["setpriv", f"--reuid={who.pw_uid}", f"--regid={who.pw_gid}", "--clear-groups"]
        environment = {**os.environ, "PATH": f"{programs}:{os.environ['PATH']}", "HOME": str(home), "DEV": "CUDA:PTX"}
        environment |= {"EGPU_RUN_DIR": str(home / "run")}
        wrong = 0
        for path in options.files or pages():
            for block in blocks(path.resolve().relative_to(ROOT).as_posix(), path.read_text()):
                made = options.kind == "wheel" and block.text.startswith("$ make ")
                if not block.walked or made:
                    print(f"{block.file}:{block.line}: not walked: {block.mark or 'a wheel has no Makefile'}")
                    continue
                problem = walk(block, folder=folder, environment=environment, user=as_user)
                print(f"{block.file}:{block.line}: {problem or 'as written'}", flush=True)
                wrong += bool(problem)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
