"""A server that answers every call twice: the first answer counts, and the second one costs the program nothing."""

import contextlib
import socket
import struct
import threading
from pathlib import Path
from typing import Final

from egpu_sim.machines.machine import Machine
from support.remote_gpu import client_dir, remote
from support.simulated_gpu import run

CARDS = ("T4", 1)
HEADER: Final = struct.Struct("<HHIQ")
REPLY: Final = 3

# One thread waits for the card, and reads all answers meanwhile: those for the other one wait in memory of their own.
# That is where a second one would be left. What is copied back in rows comes in such an answer.
PROGRAM: Final = """
import threading
PITCH, ROWS, COPIES = 65536, 2, 400
cuda = ctypes.CDLL("libcuda.so.1")
ctx = context()
pointer = ok(d.cuMemAlloc(PITCH * ROWS))
stream = ok(d.cuStreamCreate(int(d.CUstream_flags.CU_STREAM_NON_BLOCKING)))
other = ok(d.cuStreamCreate(int(d.CUstream_flags.CU_STREAM_NON_BLOCKING)))
begun, done = threading.Event(), threading.Event()
@ctypes.CFUNCTYPE(None, ctypes.c_void_p)
def hold(_):
    begun.set()
    done.wait()
assert cuda.cuLaunchHostFunc(ctypes.c_void_p(int(stream)), hold, None) == 0
def wait():
    ok(d.cuCtxSetCurrent(ctx))
    assert cuda.cuStreamSynchronize(ctypes.c_void_p(int(stream))) == 0
waiter = threading.Thread(target=wait)
waiter.start()
begun.wait()
out = np.zeros((ROWS, PITCH), np.uint8)
def copies(count):
    plane = d.CUDA_MEMCPY2D()
    plane.srcMemoryType, plane.srcDevice, plane.srcPitch = d.CUmemorytype.CU_MEMORYTYPE_DEVICE, pointer, PITCH
    plane.dstMemoryType, plane.dstHost, plane.dstPitch = d.CUmemorytype.CU_MEMORYTYPE_HOST, out.ctypes.data, PITCH
    plane.WidthInBytes, plane.Height = PITCH - 64, ROWS
    for _ in range(count):
        ok(d.cuMemcpy2DAsync(plane, other))
def resident_mib():
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGESIZE") >> 20
copies(20)
before = resident_mib()
copies(COPIES)
grown = resident_mib() - before
done.set()
waiter.join()
say([grown, COPIES * PITCH * ROWS >> 20])
"""


def whole(connection: socket.socket, size: int) -> bytes:
    """So many bytes, or what there was of them at the end."""
    data = bytearray()
    while len(data) < size and (part := connection.recv(size - len(data))):
        data += part
    return bytes(data)


def answer_twice(server: socket.socket, client: socket.socket) -> None:
    with contextlib.suppress(OSError):
        while len(header := whole(server, HEADER.size)) == HEADER.size:
            op, _, length, _ = HEADER.unpack(header)
            frame = header + whole(server, length)
            client.sendall(frame * (2 if op == REPLY else 1))
    with contextlib.suppress(OSError):
        client.shutdown(socket.SHUT_RDWR)


def ask_once(client: socket.socket, server: socket.socket) -> None:
    with contextlib.suppress(OSError):
        while data := client.recv(1 << 16):
            server.sendall(data)
    with contextlib.suppress(OSError):
        server.shutdown(socket.SHUT_RDWR)


def stand_between(listener: socket.socket, port: int) -> None:
    """Until the listener is closed: one connection after another, each to the server at that port."""
    with contextlib.suppress(OSError):
        while True:
            client, server = listener.accept()[0], socket.create_connection(("127.0.0.1", port))
            for side, ends in ((answer_twice, (server, client)), (ask_once, (client, server))):
                threading.Thread(target=side, args=ends, daemon=True).start()


def test_second_answers_leave_nothing_in_the_program(sim: Machine, tmp_path: Path) -> None:
    with remote(sim, tmp_path, "tcp") as (_, executor, _), socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=stand_between, args=(listener, executor.ready["port"]), daemon=True)
        thread.start()
        client = client_dir(tmp_path / "between")
        (client / "lease.addr").write_text(f"127.0.0.1:{listener.getsockname()[1]}\n")
        grown, answered = run(client, PROGRAM)
        listener.shutdown(socket.SHUT_RDWR)
        thread.join()
    assert answered == 50
    assert grown < answered // 4
