"""Text of others: what may be taken in, and how it is shown.

A name, a reason or a path that somebody else chose may hold what moves a terminal's cursor, hides a line or reverses
its letters. At the input such text is refused; at the output, where it may come from an API server or a file, each such
character is written as an escape.
"""

from egpu.errors import Refused


def check_plain(what: str, text: str, *, at_most: int, empty: bool = False) -> None:
    """Raises Refused for text that is too long, empty, or has characters that are not to be seen."""
    if len(text) > at_most or not (text or empty):
        raise Refused(f"{what}: {len(text)} characters; {0 if empty else 1} to {at_most} are taken")
    if not text.isprintable():
        raise Refused(f"{what}: {escaped(text)} has characters that are not to be seen")


def escaped(text: str, *, keep: str = "") -> str:
    """The text with everything that a terminal does not just show as an escape: control characters, what changes the
    direction of writing, separators of lines. Characters in `keep` stay."""
    if text.isprintable():
        return text
    return "".join(each if each.isprintable() or each in keep else _escape(each) for each in text)


def _escape(character: str) -> str:
    return character.encode("unicode_escape").decode("ascii")
