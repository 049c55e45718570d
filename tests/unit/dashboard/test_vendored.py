"""What others made is as it was released, and said to be whose: a changed byte is found."""

import hashlib
import re

from support.repository import ROOT, files, text

VENDORED = "src/egpu/apps/dashboard/static/vendor/"
ROW = re.compile(r"^\| `(?P<file>[^`]+)` .* `(?P<licence>LICENSE\.\w+)` \| `(?P<sum>[0-9a-f]{64})` \|$", re.MULTILINE)


def test_every_file_of_others_is_listed_with_licence_and_sum() -> None:
    rows = {row["file"]: row for row in ROW.finditer(text(VENDORED + "README.md"))}
    there = {each.removeprefix(VENDORED) for each in files() if each.startswith(VENDORED)}
    licences = {row["licence"] for row in rows.values()}
    assert there == {*rows, *licences, "README.md"}
    for name, row in rows.items():
        found = hashlib.sha256((ROOT / VENDORED / name).read_bytes()).hexdigest()
        assert found == row["sum"], f"{name} is not the released file"
