"""Figures that once got better do not get worse again."""

import ast
import re
from collections.abc import Iterator
from typing import Final

from support import prose
from support.repository import SOURCES, listed, of, text, tree

RATCHETS: Final = {
    "lines of the longest function in src": 75,
    "lines of the longest module in src": 388,
    "lines of Python wider than 120 columns": 46,
    "lines of C wider than 100 columns": 57,
    "lines of the longest C file": 881,
    "C files of more than 400 lines": 13,
    "lines of the longest C function": 86,
    "C functions of more than 60 lines": 3,
    "columns of the widest line of Markdown": 378,
    "noqa in src": 16,
    "type: ignore in src": 5,
    "cast( in src": 57,
    "noqa in tests, benchmarks and scripts": 18,
    "type: ignore in tests, benchmarks and scripts": 25,
    "long sentences for users": 0,
    "clauses as subjects for users": 0,
    "vague words for users": 0,
    "long sentences in reference and internals": 2,
    "clauses as subjects in reference and internals": 2,
    "vague words in reference and internals": 6,
}
"""As good as it ever was. Who makes one better lowers its number here; nobody raises one."""


def functions(file: str) -> Iterator[tuple[int, str]]:
    for node in ast.walk(tree(file)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield (node.end_lineno or node.lineno) - node.lineno + 1, f"{file}:{node.lineno} {node.name}"


def c_functions(file: str) -> Iterator[tuple[int, str]]:
    """The length of each function, as clang-format lays them out: the first line is not indented, `}` stands alone."""
    begun = 0
    lines = text(file).splitlines()
    for number, line in enumerate(lines, 1):
        if re.match(r"\w", line):
            begun = number
        if line == "}" and begun and ")" in "".join(lines[begun - 1 : number]).partition("{")[0]:
            yield number - begun + 1, f"{file}:{begun}"


def beyond(goal: int, lengths: list[tuple[int, str]]) -> tuple[int, str]:
    """How many are longer than the goal, and which."""
    found = [f"{where} {length}" for length, where in sorted(lengths, reverse=True) if length > goal]
    return len(found), ", ".join(found)


def count(pattern: str, python: list[str]) -> tuple[int, str]:
    """How often it is found, and the file with most of it."""
    found = {file: len(re.findall(pattern, text(file))) for file in python}
    return sum(found.values()), f"most in {max(found, key=lambda file: found[file])}"


def reading(what: str, pages: list[str]) -> dict[str, tuple[int, str]]:
    """Count what makes pages hard to read, with the first example."""
    kinds = {"long sentences": prose.long, "clauses as subjects": prose.clauses_as_subjects, "vague words": prose.vague}
    found = {kind: [f"{file}: {each}" for file in pages for each in find(file)] for kind, find in kinds.items()}
    return {f"{kind} {what}": (len(each), each[0] if each else "none") for kind, each in found.items()}


def figures() -> dict[str, tuple[int, str]]:
    """Each figure, and where it comes from."""
    users = prose.pages("README.md", "docs/index.md", "docs/start/", "docs/operate/")
    ours = [each for each in of(".py") if each.startswith(SOURCES) and "/tests/" not in each]
    others = [*of(".py", under="tests/"), *of(".py", under="benchmarks/"), *of(".py", under="scripts/")]
    others.remove("tests/test_ratchets.py")  # it has to write these words
    c = [each for each in of(".c", ".h") if "tests/" not in each]
    c_files = [(text(file).count("\n"), file) for file in c]
    c_lengths = [each for file in c for each in c_functions(file)]
    return {
        "lines of the longest function in src": max(each for file in ours for each in functions(file)),
        "lines of the longest module in src": max((text(file).count("\n"), file) for file in ours),
        "lines of Python wider than 120 columns": count(r"(?m)^.{121,}$", [*ours, *others]),
        "lines of C wider than 100 columns": count(r"(?m)^.{101,}$", of(".c", ".h")),
        "lines of the longest C file": max(c_files),
        "C files of more than 400 lines": beyond(400, c_files),
        "lines of the longest C function": max(c_lengths),
        "C functions of more than 60 lines": beyond(60, c_lengths),
        "columns of the widest line of Markdown": max(
            (max(map(len, text(file).splitlines())), file) for file in of(".md")
        ),
        "noqa in src": count(r"# noqa", ours),
        "type: ignore in src": count(r"# (?:type|pyright): ignore", ours),
        "cast( in src": count(r"\bcast\(", ours),
        "noqa in tests, benchmarks and scripts": count(r"# noqa", others),
        "type: ignore in tests, benchmarks and scripts": count(r"# (?:type|pyright): ignore", others),
        **reading("for users", users),
        **reading("in reference and internals", prose.pages("docs/reference/", "docs/internals/")),
    }


def test_no_figure_gets_worse() -> None:
    found = figures()
    worse = [
        f"{name}: {found[name][0]}, was {best} ({found[name][1]})"
        for name, best in RATCHETS.items()
        if found[name][0] > best
    ]
    assert not worse, listed("worse than it was; make it as good again", worse)
    better = [f"{name}: {found[name][0]}, was {best}" for name, best in RATCHETS.items() if found[name][0] < best]
    assert not better, listed("better than it was: write the new number into RATCHETS, so that it stays so", better)
