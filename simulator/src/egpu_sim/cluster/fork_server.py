"""Forks Python processes that have imported their modules already: `python -m egpu_sim.cluster.fork_server MODULE …`.

Imports take most of the time that a component needs to start. This process imports the modules of all components once,
and forks itself for each start. It starts no thread and no event loop, so a fork has nothing of another's.

Its standard input is a Unix socket, on which it reads and writes lines of JSON:

    {"name": …, "module": …, "arguments": […], "env": {…}, "log_file": …}   fork, and run the module as `python -m` does
    {"pid": …}                                                              the answer, in the order of the requests
    {"pid": …, "code": …}                                                   that process has ended

Without a log file, the request's message carries three descriptors: standard input, output and error. A request may
have a "directory" to run in.

It ends when the other side closes the socket. `egpu_sim.cluster.forked` is the other side.
"""

import atexit
import ctypes
import gc
import importlib
import io
import json
import os
import runpy
import selectors
import signal
import socket
import sys
import tempfile
import threading
from collections import deque
from collections.abc import Iterable
from types import FrameType
from typing import Any, Final, NoReturn, TextIO

Request = dict[str, Any]

STANDARD: Final = 3
"""Descriptors of one request: standard input, output and error. One read gets those of one message."""
STANDARD_ERROR: Final = 2
_SET_NAME: Final = 15  # of prctl(2)


def main() -> None:
    gc.disable()  # Modules stay.
    for module in sys.argv[1:]:
        importlib.import_module(module)
    gc.freeze()  # A collection in a fork would copy the memory of all modules.
    gc.enable()
    asked = _serve()
    _end(0 if asked is None else _become(asked))


def _serve() -> Request | None:
    """Serve until the client ends. In each fork, return its request, with its standard descriptors in place."""
    wake, woken = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
    signal.set_wakeup_fd(woken, warn_on_full_buffer=False)
    signal.signal(signal.SIGCHLD, _wake)
    client = socket.socket(fileno=os.dup(0))
    given: deque[int] = deque()
    with selectors.DefaultSelector() as selector:
        selector.register(client, selectors.EVENT_READ)
        selector.register(wake, selectors.EVENT_READ)
        unread = b""
        while True:
            ready = {key.fd for key, _ in selector.select()}
            if wake in ready:
                os.read(wake, 4096)
                _tell_ended(client)
            if client.fileno() not in ready:
                continue
            data, descriptors, _, _ = socket.recv_fds(client, 65536, STANDARD)
            given.extend(descriptors)
            if not data:
                return None
            *lines, unread = (unread + data).split(b"\n")
            for line in lines:
                asked: Request = json.loads(line)
                its = [] if "log_file" in asked else [given.popleft() for _ in range(STANDARD)]
                pid = os.fork()
                if pid == 0:
                    _forget(wake, woken, client.detach(), *given)
                    _stand(its or _logging(asked["log_file"]))
                    return asked
                _close(its)
                _tell(client, pid=pid)


def _wake(_number: int, _frame: FrameType | None) -> None:
    """Do nothing: without a handler the signal would not be written to the wakeup descriptor."""


def _tell(client: socket.socket, **fields: int) -> None:
    client.sendall(json.dumps(fields).encode() + b"\n")


def _tell_ended(client: socket.socket) -> None:
    while True:
        try:
            pid, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return
        if pid == 0:
            return
        _tell(client, pid=pid, code=os.waitstatus_to_exitcode(status))


def _forget(*descriptors: int) -> None:
    """Leave nothing of the server in a fork."""
    signal.set_wakeup_fd(-1)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    _close(descriptors)
    tempfile.tempdir = None  # An import may have looked it up, for another TMPDIR.


def _logging(log_file: str) -> list[int]:
    """Return no input, and the log file twice."""
    output = os.open(log_file, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o666)
    return [os.open(os.devnull, os.O_RDONLY), output, os.dup(output)]


def _stand(descriptors: Iterable[int]) -> None:
    """Make them standard input, output and error. Python has looked at the server's: those may be files, which can
    seek."""
    for standard, descriptor in enumerate(descriptors):
        os.dup2(descriptor, standard)
        os.close(descriptor)
    sys.stdout, sys.stderr = _writer(1, sys.stdout), _writer(2, sys.stderr)


def _writer(descriptor: int, before: TextIO) -> TextIO:
    """Return the descriptor's text stream. It writes as the one before."""
    buffer = io.BufferedWriter(io.FileIO(descriptor, "w", closefd=False))
    lines = descriptor == STANDARD_ERROR or os.isatty(descriptor)
    return io.TextIOWrapper(buffer, encoding=before.encoding, errors=before.errors, line_buffering=lines)


def _close(descriptors: Iterable[int]) -> None:
    for descriptor in descriptors:
        os.close(descriptor)


def _become(asked: Request) -> int:
    """Run the module, in a session of its own with its own environment. Return its exit code."""
    os.setsid()
    ctypes.CDLL(None).prctl(_SET_NAME, asked["name"].encode())  # for ps and top; its command line stays the server's
    os.chdir(asked.get("directory", "."))
    os.environ.clear()
    os.environ.update(asked["env"])
    sys.argv = [asked["module"], *asked["arguments"]]
    try:
        runpy.run_module(asked["module"], run_name="__main__", alter_sys=True)
    except SystemExit as ended:
        if not isinstance(ended.code, int | None):
            raise
        return ended.code or 0
    return 0


def _end(code: int) -> NoReturn:
    """End as processes of `multiprocessing` do. Taking all modules apart took 0.2 s of processor time."""
    vars(threading)["_shutdown"]()
    vars(atexit)["_run_exitfuncs"]()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


if __name__ == "__main__":
    main()
