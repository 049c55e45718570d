"""Stands in for egpu-executor where a test is about who starts, joins and ends it: it answers the first byte with a
greeting and echoes what follows."""

import argparse
import json
import os
import signal
import socket
import sys
import threading
from pathlib import Path

arguments = argparse.ArgumentParser()
for flag in ("--slice", "--driver", "--listen", "--grace", "--sessions", "--lease", "--user"):
    arguments.add_argument(flag)
given, _confinement = arguments.parse_known_args()
open_now: set[int] = set()
if Path(given.slice, "policy").stat().st_size == 0:
    sys.exit(3)


def say(**event: object) -> None:
    print(json.dumps(event), flush=True)


def serve(connection: socket.socket) -> None:
    open_now.add(connection.fileno())
    sessions = len(open_now)
    say(event="session", state="opened", session="0" * 32, pid=os.getpid(), sessions=sessions)
    with connection:
        if not connection.recv(1):
            return
        connection.sendall(f"{given.lease} {os.environ['CUDA_VISIBLE_DEVICES']}\n".encode())
        while data := connection.recv(65536):
            if data[:2] == b"\5\0" and len(data) == 16:
                say(event="goodbye")
                break
            connection.sendall(data)
    open_now.clear()
    sessions = 0
    say(event="session", state="closed", session="0" * 32, pid=os.getpid(), reason="goodbye", sessions=sessions)


listening = socket.socket(socket.AF_UNIX)
listening.bind(given.listen)
listening.listen()
signal.signal(signal.SIGTERM, signal.SIG_DFL)
say(event="ready", lease=given.lease, listen=given.listen)
while True:
    program, _ = listening.accept()
    threading.Thread(target=serve, args=(program,), daemon=True).start()
