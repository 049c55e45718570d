"""Go's regular expressions: no look-around and no back-references, so that matching is linear."""

import re
from typing import Final

_PERL_ONLY: Final = re.compile(r"(?<!\\)(?:\\\\)*(\(\?(?:=|!|<=|<!|>|#|\())")
_BACK_REFERENCE: Final = re.compile(r"(?<!\\)(?:\\\\)*(\\[1-9])")


def problem(pattern: str) -> str | None:
    """Return Go's error for a pattern; None for a valid one."""
    if (found := _PERL_ONLY.search(pattern)) is not None:
        return f"error parsing regexp: invalid or unsupported Perl syntax: `{found[1]}`"
    if (found := _BACK_REFERENCE.search(pattern)) is not None:
        return f"error parsing regexp: invalid escape sequence: `{found[1]}`"
    try:
        re.compile(pattern)
    except re.error as error:
        if "unterminated subpattern" in error.msg:
            return f"error parsing regexp: missing closing ): `{pattern}`"
        if "unbalanced parenthesis" in error.msg:
            return f"error parsing regexp: unexpected ): `{pattern}`"
        if "unterminated character set" in error.msg:
            return f"error parsing regexp: missing closing ]: `{pattern[error.pos or 0 :]}`"
        if "nothing to repeat" in error.msg:
            return f"error parsing regexp: missing argument to repetition operator: `{pattern[error.pos or 0 :][:1]}`"
        return f"error parsing regexp: {error.msg}: `{pattern}`"
    return None
