"""Ctrl-C ends a command at any moment without a traceback and with status 130, the shells' convention.

During imports and after the command, nothing needs a clean-up, so SIGINT ends the process directly. In between it
raises `KeyboardInterrupt`, for which commands have their `finally`.
"""

import signal
import sys
import threading
from typing import Any, Final

STATUS: Final = 130
AGAIN_SECONDS: Final = 0.01


def ends_at_once() -> None:
    """Let SIGINT end the process directly: nothing needs a clean-up. An ignored SIGINT stays ignored."""
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, signal.SIG_DFL)


def is_raised() -> None:
    """Let SIGINT raise KeyboardInterrupt: from here on a clean-up may be necessary."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_DFL:
        sys.excepthook, sys.unraisablehook = _uncaught, _unraisable
        signal.signal(signal.SIGINT, signal.default_int_handler)


def _uncaught(kind: type[BaseException], error: BaseException, traceback: Any) -> None:
    """Print no traceback for an interrupt between two handlers. Python then ends the process by SIGINT."""
    if not issubclass(kind, KeyboardInterrupt):
        sys.__excepthook__(kind, error, traceback)


def _unraisable(fell: "sys.UnraisableHookArgs") -> None:
    """Send the interrupt again if it came in a destructor, where Python cannot raise it but only print it."""
    if not isinstance(fell.exc_value, KeyboardInterrupt):
        sys.__unraisablehook__(fell)
        return
    main = threading.main_thread().ident
    assert main is not None
    again = threading.Timer(AGAIN_SECONDS, signal.pthread_kill, (main, signal.SIGINT))  # this also wakes the thread
    again.daemon = True
    again.start()
