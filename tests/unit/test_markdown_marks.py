"""Generated parts of documents: they stand between two marks, and a document without them is refused."""

from pathlib import Path

import pytest
from generate import ToolError
from markdown_table import put_between


@pytest.mark.parametrize("old", ["", "\n\n| old |\n"])
def test_what_stands_between_the_marks_is_replaced(tmp_path: Path, old: str) -> None:
    document = tmp_path / "page.md"
    document.write_text(f"before\n<!-- a -->{old}<!-- b -->\nafter\n")
    assert (
        put_between(document, "<!-- a -->", "<!-- b -->", "\nnew\n") == "before\n<!-- a -->\nnew\n<!-- b -->\nafter\n"
    )


@pytest.mark.parametrize("text", ["", "a", "b", "b a", "a a b", "a b b", "b a b", "a b a"])
def test_each_mark_must_be_there_once_and_in_order(tmp_path: Path, text: str) -> None:
    document = tmp_path / "page.md"
    document.write_text(text)
    with pytest.raises(ToolError, match=r"page.md: one a and one b are needed"):
        put_between(document, "a", "b", "new")
