"""Parts of Markdown for generated documents."""

from collections.abc import Iterable, Sequence
from pathlib import Path

from generate import ToolError


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a table, and the empty line below it."""
    return "".join(f"| {' | '.join(row)} |\n" for row in (head, ["---"] * len(head), *rows)) + "\n"


def put_between(document: Path, begin: str, end: str, text: str) -> str:
    """Return a document with `text` between two marks. Raises ToolError unless each mark is there once."""
    before, begins, rest = document.read_text().partition(begin)
    _, ends, after = rest.partition(end)
    if not begins or not ends or begin in rest or end in before + after:
        raise ToolError(f"{document.name}: one {begin.strip()} and one {end.strip()} are needed")
    return f"{before}{begin}{text}{end}{after}"
