"""What is in the repository, as text: its files and folders, and the code that its documents show."""

import ast
import re
import subprocess
from collections.abc import Iterator, Sequence
from functools import cache
from pathlib import Path
from typing import Final, NamedTuple

ROOT: Final = Path(__file__).parents[2]
GENERATED: Final = ("_pb2.py", "_pb2_grpc.py", "_pb2.pyi")
SOURCES: Final = ("src/", "base/src/", "simulator/src/")


class Word(NamedTuple):
    """Something that a document, a docstring or a comment names, and where."""

    file: str
    line: int
    text: str

    def __str__(self) -> str:
        return f"{self.file}:{self.line}: {self.text}"


@cache
def files() -> frozenset[str]:
    """What is in the repository, or would be if it were committed now."""
    asked = ("git", "ls-files", "--cached", "--others", "--exclude-standard")
    listed = subprocess.run(asked, cwd=ROOT, capture_output=True, text=True, check=True).stdout.splitlines()
    return frozenset(each for each in listed if (ROOT / each).is_file())


@cache
def file_names() -> frozenset[str]:
    return frozenset(Path(each).name for each in files())


@cache
def folders() -> frozenset[str]:
    return frozenset(str(parent) for each in files() for parent in Path(each).parents if str(parent) != ".")


@cache
def text(file: str) -> str:
    return (ROOT / file).read_text(errors="replace")


@cache
def tree(file: str) -> ast.Module:
    return ast.parse(text(file))


def of(*suffixes: str, under: str = "") -> list[str]:
    found = [each for each in sorted(files()) if each.endswith(suffixes) and each.startswith(under)]
    return [each for each in found if not each.endswith(GENERATED) and "/generated/" not in each]


def documents() -> list[str]:
    return of(".md")


def packages() -> list[str]:
    return [str(Path(each).parent) for each in of("/__init__.py") if each.startswith(SOURCES)]


def commands() -> Iterator[Word]:
    """What is code in documents: in back-ticks or in blocks, a line or a `;` at a time, without comments."""
    for file in documents():
        fenced = False
        for number, line in enumerate(text(file).splitlines(), 1):
            if line.lstrip().startswith("```"):
                fenced = not fenced
                continue
            is_block = fenced or re.match(r" {4}\S", line)
            for code in [line] if is_block else re.findall(r"`([^`]+)`", line):
                for command in re.split(r"; | \| ", re.sub(r"(^|\s)# .*", "", code)):
                    yield Word(file, number, command)


def listed(what: str, wrong: Sequence[object]) -> str:
    """The message of an assertion that nothing is wrong: all that is, not only the first."""
    return f"{what}:\n  " + "\n  ".join(map(str, wrong))
