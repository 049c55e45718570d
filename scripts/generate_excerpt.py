"""Write the README's excerpt of `make demo` from a real run: its figures, times and bars are that run's.

The README selects, by words, the text to show; `…` stands for omitted text. If the demo no longer prints a word, this
names it and writes nothing: select again then. The demo's tests check that the excerpt is still true.

Usage: python scripts/generate_excerpt.py      # or: make excerpt
"""

import re
import subprocess
import sys
from typing import Final

from walk_docs import ANY, ROOT, Step, blocks, difference, pieces

README: Final = ROOT / "README.md"
COMMAND: Final = "make demo"
CHOSEN: Final = ("…", " ")
"""The kinds of parts that stay as written: omissions, and gaps, which follow from omitted columns."""


def filled(step: Step, printed: str) -> str:
    """Return the excerpt with printed text in place of parts that differ between runs. Raises ValueError: some of its
    words were not printed."""
    if lacking := difference(step, printed, excerpt=True):
        raise ValueError(f"`{step.command}` does not print\n{lacking}")
    paragraphs: list[str] = []
    at = 0
    for written in re.split(r"\n\s*\n", step.printed.strip()):
        parts = pieces(written.strip())
        groups = (re.escape(text) if kind == "" else ANY[kind] for text, kind in parts)
        match = re.compile("".join(f"({group})" for group in groups)).search(printed, at)
        assert match is not None
        at = match.end()
        pairs = zip(parts, match.groups(), strict=True)
        kept = (text if kind in CHOSEN else found for (text, kind), found in pairs)
        paragraphs.append("".join(kept))
    return "\n\n".join(paragraphs) + "\n"


def main() -> int:
    text = README.read_text()
    block = next(block for block in blocks(README.name, text) if block.text.startswith(f"$ {COMMAND}\n"))
    (step,) = block.steps()
    done = subprocess.run(COMMAND.split(), cwd=ROOT, stdout=subprocess.PIPE, text=True, check=True)
    try:
        README.write_text(text.replace(block.text, f"$ {COMMAND}\n{filled(step, done.stdout)}"))
    except ValueError as error:
        print(error, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
