"""Ctrl-C ends a command at any moment without a traceback, and with status 130 as shells count it.

While nothing has been begun that must be put away it ends the process as it does any program: during imports, and when
all is done. In between it is Python's `KeyboardInterrupt`, for which commands have their `finally`.
"""

import signal
import sys
import threading
from typing import Any, Final

STATUS: Final = 130
AGAIN_SECONDS: Final = 0.01


def ends_at_once() -> None:
    """From here on nothing has to be put away. Who is started with SIGINT ignored goes on ignoring it."""
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, signal.SIG_DFL)


def is_raised() -> None:
    """From here on there may be something to be put away."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_DFL:
        sys.excepthook, sys.unraisablehook = _uncaught, _unraisable
        signal.signal(signal.SIGINT, signal.default_int_handler)


def _uncaught(kind: type[BaseException], error: BaseException, traceback: Any) -> None:
    """Between two handlers there is always a moment: Python ends the process by SIGINT then, and has nothing to say."""
    if not issubclass(kind, KeyboardInterrupt):
        sys.__excepthook__(kind, error, traceback)


def _unraisable(fell: "sys.UnraisableHookArgs") -> None:
    """In a destructor nothing can be raised, and Python would only print it: it comes again afterwards."""
    if not isinstance(fell.exc_value, KeyboardInterrupt):
        sys.__unraisablehook__(fell)
        return
    main = threading.main_thread().ident
    assert main is not None
    again = threading.Timer(AGAIN_SECONDS, signal.pthread_kill, (main, signal.SIGINT))  # which wakes it, too
    again.daemon = True
    again.start()
