"""Known names that a mistyped one is like, for messages."""

from collections.abc import Collection
from difflib import get_close_matches
from typing import Final

MOST_CHARACTERS: Final = 128
"""A longer word is not compared: others choose it, and comparing takes longer than in proportion."""
_MOST_NAMES: Final = 2
_LIKE: Final = 0.75
"""One letter of four may differ, as in `card-selektor`; `claim` is not like `class`."""


def near(word: str, known: Collection[str]) -> list[str]:
    """Return the known names that are most like `word`, the best first; capitals and hyphens do not count."""
    if len(word) > MOST_CHARACTERS:
        return []
    by_letters = {_letters(name): name for name in known}
    found = get_close_matches(_letters(word), by_letters, n=_MOST_NAMES, cutoff=_LIKE)
    return [by_letters[letters] for letters in found]


def did_you_mean(word: str, known: Collection[str]) -> str:
    """Return "; did you mean …?" for a message; "" if no known name is like `word`. Domains do not count: all names of
    one domain are alike in it."""
    whole = {name.rpartition("/")[2]: name for name in known}
    found = [whole[name] for name in near(word.rpartition("/")[2], whole)]
    return f"; did you mean {' or '.join(found)}?" if found else ""


def _letters(name: str) -> str:
    return name.lower().replace("-", "").replace("_", "")
