"""Forks Python processes that have imported their modules already: `python -m egpu_sim.cluster.fork_server MODULE …`.

Imports take most of the time that a component needs to start. This process imports the modules of all components once,
and forks itself for each start. It starts no thread and no event loop, so a fork has nothing of another's.

It reads and writes lines of JSON:

    {"name": …, "module": …, "arguments": […], "env": {…}, "log_file": …}   fork, and run the module as `python -m` does
    {"pid": …}                                                              the answer, in the order of the requests
    {"pid": …, "code": …}                                                   that process has ended

It ends when its standard input does. `egpu_sim.cluster.forked` has the other side.
"""

import ctypes
import gc
import importlib
import json
import os
import runpy
import selectors
import signal
import sys
from types import FrameType
from typing import Any

Request = dict[str, Any]

_SET_NAME = 15  # of prctl(2)


def main() -> None:
    gc.disable()  # Modules stay.
    for module in sys.argv[1:]:
        importlib.import_module(module)
    gc.freeze()  # A collection in a fork would copy the memory of all modules.
    gc.enable()
    asked = _serve()
    if asked is not None:
        _become(asked)


def _serve() -> Request | None:
    """Serve until standard input ends. In each fork, return its request."""
    wake, woken = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
    signal.set_wakeup_fd(woken, warn_on_full_buffer=False)
    signal.signal(signal.SIGCHLD, _wake)
    with selectors.DefaultSelector() as selector:
        selector.register(0, selectors.EVENT_READ)
        selector.register(wake, selectors.EVENT_READ)
        unread = b""
        while True:
            ready = {key.fd for key, _ in selector.select()}
            if wake in ready:
                os.read(wake, 4096)
                _tell_ended()
            if 0 not in ready:
                continue
            data = os.read(0, 65536)
            if not data:
                return None
            *lines, unread = (unread + data).split(b"\n")
            for line in lines:
                pid = os.fork()
                if pid == 0:
                    _forget(wake, woken)
                    return json.loads(line)
                _tell(pid=pid)


def _wake(_number: int, _frame: FrameType | None) -> None:
    """Do nothing: without a handler the signal would not be written to the wakeup descriptor."""


def _tell(**fields: int) -> None:
    os.write(1, json.dumps(fields).encode() + b"\n")


def _tell_ended() -> None:
    while True:
        try:
            pid, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return
        if pid == 0:
            return
        _tell(pid=pid, code=os.waitstatus_to_exitcode(status))


def _forget(*descriptors: int) -> None:
    """Leave nothing of the server in a fork."""
    signal.set_wakeup_fd(-1)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    for descriptor in descriptors:
        os.close(descriptor)


def _become(asked: Request) -> None:
    """Run the module, in a session of its own with its own environment and output."""
    os.setsid()
    ctypes.CDLL(None).prctl(_SET_NAME, asked["name"].encode())  # for ps and top; its command line stays the server's
    nothing = os.open(os.devnull, os.O_RDONLY)
    output = os.open(asked["log_file"], os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o666)
    for descriptor, standard in ((nothing, 0), (output, 1), (output, 2)):
        os.dup2(descriptor, standard)
    os.close(nothing)
    os.close(output)
    os.environ.clear()
    os.environ.update(asked["env"])
    sys.argv = [asked["module"], *asked["arguments"]]
    runpy.run_module(asked["module"], run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()
