"""Text from others: which characters are accepted, and how text is shown.

A name, a reason or a path may contain characters that move a terminal's cursor, hide a line or reverse letters. Input
with such characters is refused. Output, which may come from an API server or a file, shows each of them as an escape.
"""

from egpu_base.errors import Refused


def check_plain(what: str, text: str, *, at_most: int, empty: bool = False) -> None:
    """Check a text. Raises Refused if it is too long, empty, or has characters that cannot be displayed."""
    if len(text) > at_most or not (text or empty):
        raise Refused(f"{what}: {len(text)} characters; {0 if empty else 1} to {at_most} are allowed")
    if not text.isprintable():
        raise Refused(f"{what}: {escaped(text)} has characters that cannot be displayed")


def escaped(text: str, *, keep: str = "") -> str:
    """Return the text with escapes for control characters, direction marks and line separators, except `keep`."""
    if text.isprintable():
        return text
    return "".join(each if each.isprintable() or each in keep else _escape(each) for each in text)


def _escape(character: str) -> str:
    return character.encode("unicode_escape").decode("ascii")
