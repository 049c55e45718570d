"""A program over the pool finds the functions that the server's driver has, and no newer ones."""

import contextlib
import socket
import struct
import threading
from pathlib import Path
from typing import Final

from egpu_sim.machines.machine import Machine
from support.remote_gpu import Executor, client_dir, remote
from support.simulated_gpu import machine, run

CARDS = ("T4", 1)
CUDA_VERSION_AT: Final = 56
"""Within the machine's file (simulator/native/gpu/sim_machine.h)."""

# cuLibraryLoadData came with 12.0.
FIND = """
cuda = ctypes.CDLL("libcuda.so.1")
def find(symbol, version):
    pointer, status = ctypes.c_void_p(), ctypes.c_int(-1)
    result = cuda.cuGetProcAddress_v2(symbol, ctypes.byref(pointer), version, ctypes.c_uint64(0), ctypes.byref(status))
    return [result, pointer.value is not None, status.value]
def version():
    value = ctypes.c_int()
    return cuda.cuDriverGetVersion(ctypes.byref(value)) or value.value
def found():
    wanted = (b"cuLibraryLoadData", 13000), (b"cuLibraryLoadData", 11080), (b"cuMemAlloc", 13000), (b"cuNothing", 13000)
    return [find(*each) for each in wanted]
"""
THERE, UNKNOWN, TOO_OLD = [0, True, 0], [500, False, 1], [500, False, 2]


def of_version(made: Machine, version: int) -> None:
    with made.state.open("r+b") as file:
        file.seek(CUDA_VERSION_AT)
        assert file.read(4) == struct.pack("<I", 13000)
        file.seek(CUDA_VERSION_AT)
        file.write(struct.pack("<I", version))


def test_an_older_server_has_no_newer_functions_before_cu_init_and_after(tmp_path: Path) -> None:
    with machine(tmp_path / "machine", "T4") as made:
        of_version(made, 11080)
        with remote(made, tmp_path, "tcp") as (client, _, _):
            said = run(
                client, FIND + "before = [version(), found()]\nok(d.cuInit(0))\nsay([before, [version(), found()]])\n"
            )
    old = [11080, [UNKNOWN, UNKNOWN, THERE, UNKNOWN]]
    assert said == [old, old]


def test_a_server_of_the_table_s_version_has_them(sim: Machine, tmp_path: Path) -> None:
    with remote(sim, tmp_path, "tcp") as (client, _, _):
        assert run(client, FIND + "say([version(), found()])") == [13000, [THERE, TOO_OLD, THERE, UNKNOWN]]


def test_of_two_servers_the_older_one_counts(tmp_path: Path) -> None:
    client = client_dir(tmp_path / "client")
    with machine(tmp_path / "0", "T4", node="a") as one, machine(tmp_path / "1", "T4", node="b") as two:
        of_version(two, 11080)
        executors = [
            Executor(made, tmp_path / f"executor{i}", "--listen", str(client / f"lease{i}.sock"))
            for i, made in enumerate((one, two))
        ]
        try:
            assert run(client, FIND + "say([version(), found()[0]])") == [11080, UNKNOWN]
        finally:
            for executor in executors:
                executor.stop()


def test_a_child_of_a_program_that_has_only_asked_may_have_the_card(sim: Machine, tmp_path: Path) -> None:
    with remote(sim, tmp_path, "tcp") as (client, _, _):
        assert run(
            client,
            FIND
            + """
asked, (r, w) = version(), os.pipe()
pid = os.fork()
if pid == 0:
    os.write(w, (name(d.cuInit(0)) + " " + str(version())).encode())
    os._exit(0)
os.waitpid(pid, 0)
say([asked, os.read(r, 64).decode(), name(d.cuInit(0))])
""",
        ) == [13000, "SUCCESS 13000", "SUCCESS"]


def hang_up(listener: socket.socket) -> None:
    """On everybody who calls, until nobody can."""
    with contextlib.suppress(OSError):
        while True:
            with listener.accept()[0] as caller:
                caller.recv(4096)
                caller.sendall(bytes(256))  # no greeting of ours


def test_who_reaches_one_of_two_servers_has_one_session_there_however_often_it_asks(tmp_path: Path) -> None:
    client = client_dir(tmp_path / "client")
    with machine(tmp_path / "0", "T4", node="a") as one, machine(tmp_path / "1", "T4", node="b") as two:
        first, second = client / "lease0.sock", client / "lease1.sock"
        executors = [Executor(one, tmp_path / "executor0", "--listen", str(first))]
        try:
            executors.append(Executor(two, tmp_path / "executor1", "--listen", str(tmp_path / "later.sock")))
            stranger = socket.socket(socket.AF_UNIX)
            stranger.bind(str(second))
            stranger.listen()
            threading.Thread(target=hang_up, args=[stranger], daemon=True).start()
            said = run(
                client,
                f"""
tries = [name(d.cuInit(0)) for _ in range(3)]
os.replace({str(tmp_path / "later.sock")!r}, {str(second)!r})
say([tries, name(d.cuInit(0)), ok(d.cuDeviceGetCount())])
""",
            )
            sessions = [event for event in executors[0].events if event["event"] == "session"]
        finally:
            for executor in executors:
                executor.stop()
    assert said[1:] == ["SUCCESS", 2]
    assert len(set(said[0])) == 1
    assert "SUCCESS" not in said[0]
    assert [event["state"] for event in sessions].count("opened") == 1, sessions
