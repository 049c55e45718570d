"""Who has given his token to the login form: the browser keeps a number, the token stays here.

A cookie goes to every port of a host, so to whatever else somebody runs on the same machine: what is in it must be
worth nothing but a look at this dashboard.
"""

import secrets
import time
from collections import OrderedDict
from typing import Final

MAX_SESSIONS: Final = 1024
"""Beyond, the one that was not used for longest ends."""
SESSION_SECONDS: Final = 12 * 3600.0
"""Without being used."""


class Sessions:
    """Tokens by the session's number."""

    def __init__(self) -> None:
        self._tokens: OrderedDict[str, tuple[float, str]] = OrderedDict()

    def begin(self, token: str) -> str:
        """A new session's number, which nobody can guess."""
        number = secrets.token_urlsafe(32)
        self._tokens[number] = time.monotonic(), token
        if len(self._tokens) > MAX_SESSIONS:
            self._tokens.popitem(last=False)
        return number

    def token(self, number: str) -> str | None:
        """The token; None where there is no such session, or none any more."""
        since, token = self._tokens.pop(number, (0.0, ""))
        if not token or time.monotonic() - since > SESSION_SECONDS:
            return None
        self._tokens[number] = time.monotonic(), token
        return token

    def end(self, number: str) -> None:
        """Forget it."""
        self._tokens.pop(number, None)
