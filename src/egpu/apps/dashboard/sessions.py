"""Sessions of the login form: the browser keeps a number, the token stays here.

A cookie goes to every port of a host, and so to other services on the same machine: its content must give nothing but
access to this dashboard."""

import secrets
import time
from collections import OrderedDict
from typing import Final

MAX_SESSIONS: Final = 1024
"""The most sessions at a time; one more ends the session that was unused for longest."""
SESSION_SECONDS: Final = 12 * 3600.0
"""A session ends after this time without use."""


class Sessions:
    """Tokens by the session's number."""

    def __init__(self) -> None:
        self._tokens: OrderedDict[str, tuple[float, str]] = OrderedDict()

    def begin(self, token: str) -> str:
        """Begin a session, and return its number, which cannot be guessed."""
        number = secrets.token_urlsafe(32)
        self._tokens[number] = time.monotonic(), token
        if len(self._tokens) > MAX_SESSIONS:
            self._tokens.popitem(last=False)
        return number

    def token(self, number: str) -> str | None:
        """Return the token, or None if the session does not exist (any more)."""
        since, token = self._tokens.pop(number, (0.0, ""))
        if not token or time.monotonic() - since > SESSION_SECONDS:
            return None
        self._tokens[number] = time.monotonic(), token
        return token

    def end(self, number: str) -> None:
        """Forget a session."""
        self._tokens.pop(number, None)
