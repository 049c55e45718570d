"""Figures that once got better do not get worse again."""

import ast
import re
from collections.abc import Iterator
from typing import Final

from support.repository import listed, of, text, tree

RATCHETS: Final = {
    "lines of the longest function in src": 75,
    "lines of the longest module in src": 389,
    "lines of Python wider than 120 columns": 136,
    "lines of C wider than 100 columns": 58,
    "columns of the widest line of Markdown": 379,
    "noqa in src": 26,
    "type: ignore in src": 5,
    "cast( in src": 57,
    "noqa in tests, benchmarks and scripts": 18,
    "type: ignore in tests, benchmarks and scripts": 26,
}
"""As good as it ever was. Who makes one better lowers its number here; nobody raises one."""


def functions(file: str) -> Iterator[tuple[int, str]]:
    for node in ast.walk(tree(file)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield (node.end_lineno or node.lineno) - node.lineno + 1, f"{file}:{node.lineno} {node.name}"


def count(pattern: str, python: list[str]) -> tuple[int, str]:
    """How often it is found, and the file with most of it."""
    found = {file: len(re.findall(pattern, text(file))) for file in python}
    return sum(found.values()), f"most in {max(found, key=lambda file: found[file])}"


def figures() -> dict[str, tuple[int, str]]:
    """Each figure, and where it comes from."""
    ours = of(".py", under="src/")
    others = [*of(".py", under="tests/"), *of(".py", under="benchmarks/"), *of(".py", under="scripts/")]
    others.remove("tests/test_ratchets.py")  # it has to write these words
    return {
        "lines of the longest function in src": max(each for file in ours for each in functions(file)),
        "lines of the longest module in src": max((text(file).count("\n"), file) for file in ours),
        "lines of Python wider than 120 columns": count(r"(?m)^.{121,}$", [*ours, *others]),
        "lines of C wider than 100 columns": count(r"(?m)^.{101,}$", of(".c", ".h")),
        "columns of the widest line of Markdown": max(
            (max(map(len, text(file).splitlines())), file) for file in of(".md")
        ),
        "noqa in src": count(r"# noqa", ours),
        "type: ignore in src": count(r"# (?:type|pyright): ignore", ours),
        "cast( in src": count(r"\bcast\(", ours),
        "noqa in tests, benchmarks and scripts": count(r"# noqa", others),
        "type: ignore in tests, benchmarks and scripts": count(r"# (?:type|pyright): ignore", others),
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
