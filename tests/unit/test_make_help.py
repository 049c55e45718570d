"""`make help` lists every target that people may call, in groups."""

import re
import subprocess

from support.repository import ROOT, listed, text


def targets() -> list[str]:
    """Return the names in .PHONY."""
    return re.findall(r"^\.PHONY: (.*)$", text("Makefile").replace("\\\n", ""), re.MULTILINE)[0].split()


def test_each_target_has_a_line_in_help() -> None:
    asked = ["make", "--silent", "--no-print-directory", "help"]
    printed = subprocess.run(asked, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    described = dict(re.findall(r"^  make ([\w-]+) +(\S.*)$", printed, re.MULTILINE))
    missing = [target for target in targets() if target not in described]
    assert not missing, listed("no `## ...` behind the target's line in the Makefile", missing)
    assert set(described) == set(targets()), "a target with a line in help is in .PHONY"
    groups = re.findall(r"^(\w.*)$", printed, re.MULTILINE)
    assert groups[0] == "Start"
    assert len(groups) > 3


def test_lines_fit_a_terminal() -> None:
    wide = [line for line in re.findall(r"^[a-z].*  ## (.*)$", text("Makefile"), re.MULTILINE) if len(line) > 98]
    assert not wide, listed("longer than 98 columns", wide)
