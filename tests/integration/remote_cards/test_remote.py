"""The executor and the remote client: cuts, deaths, hostile clients, quotas, several servers."""
# ruff: noqa: E501  statements of the programs inside read better on one line

import contextlib
import hashlib
import json
import os
import random
import shutil
import signal
import socket
import struct
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

import pytest

from egpu.adapters.native import path
from egpu.adapters.pool.bridge import GONE
from egpu.adapters.slices.pages import MEMORY_UNLIMITED, PPM, DevicePolicy, Mode, create_usage, write_policy
from egpu_sim.machines.machine import Machine, SimulatedCard
from support.mixed_load import COUNT
from support.raw_session import OPS, Raw
from support.remote_gpu import Bridge, Executor, client_dir, remote
from support.simulated_gpu import Program, environment, machine, run
from support.waiting import DEADLINE_SECONDS, wait_until

CARDS = ("T4", 2)

ROOT: Final = Path(__file__).resolve().parents[3]
TRANSPORTS: Final = ("shm", "tcp", "bridge")
MIB: Final = 1 << 20


def sample(driver_dir: Path, name: str, *flags: str) -> subprocess.CompletedProcess[str]:
    command = [str(path(f"samples/egpu-sample-{name}")), *flags]
    return subprocess.run(
        command, env=environment(driver_dir), capture_output=True, text=True, timeout=DEADLINE_SECONDS, check=False
    )


# ---- the same answers -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_samples_say_the_same_byte_for_byte(sim: Machine, tmp_path: Path, transport: Any) -> None:
    with remote(sim, tmp_path, transport) as (client, _, _):
        for name, *flags in (
            ("vectoradd", "--n=70001"),
            ("saxpy",),
            ("reduce", "--n=30003"),
            ("matmul", "--n=48"),
            ("memory",),
        ):
            local, far = sample(sim.driver_dir, name, *flags), sample(client, name, *flags)
            assert (far.returncode, far.stdout, far.stderr) == (local.returncode, local.stdout, local.stderr)


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_long_copies_keep_every_byte(sim: Machine, tmp_path: Path, transport: Any) -> None:
    with remote(sim, tmp_path, transport) as (client, _, _):
        assert run(
            client,
            """
            context()
            right = True
            for n in (1, 7, 32768, 32769, 65536, (1 << 20) - 1, (1 << 20) + 3, 9_000_017):
                data = np.random.default_rng(n).integers(0, 255, n, dtype=np.uint8)
                p = upload(data)
                right = right and bool((download(p, data) == data).all())
                s = ok(d.cuStreamCreate(1))
                other = data[::-1].copy()
                ok(d.cuMemcpyHtoDAsync(p, other.ctypes.data, n, s))
                ok(d.cuStreamSynchronize(s))
                right = right and bool((download(p, data) == other).all())
                ok(d.cuMemFree(p))
            host = ok(d.cuMemAllocHost(5_000_000))
            pinned = np.ctypeslib.as_array((ctypes.c_uint8 * 5_000_000).from_address(int(host)))
            pinned[:] = np.arange(5_000_000) % 251
            p = ok(d.cuMemAlloc(5_000_000))
            ok(d.cuMemcpyHtoDAsync(p, int(host), 5_000_000, 0))
            ok(d.cuCtxSynchronize())
            right = right and bool((download(p, pinned) == pinned).all())
            pinned[:] = 0
            ok(d.cuMemcpyDtoHAsync(int(host), p, 5_000_000, 0))
            ok(d.cuCtxSynchronize())
            right = right and bool((pinned == np.arange(5_000_000) % 251).all())
            ok(d.cuMemFreeHost(int(host)))
            say(right)
            """,
        )


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_functions_of_the_program_run_in_the_program_and_in_order(sim: Machine, tmp_path: Path, transport: Any) -> None:
    with remote(sim, tmp_path, transport) as (client, _, _):
        assert run(
            client,
            """
            context()
            f = function(STORE.replace("DURATION", "2000"), "store")
            p, s, heard = upload(np.zeros(1, np.uint32)), ok(d.cuStreamCreate(1)), []
            kind = ctypes.CFUNCTYPE(None, ctypes.c_void_p)
            keep = [kind(lambda _, i=i: heard.append((i, time.monotonic()))) for i in range(20)]
            before = time.monotonic()
            for k in keep:
                ok(launch(f, 1, 1, p, (1, ctypes.c_uint32), stream=s))
                ok(d.cuLaunchHostFunc(s, d.CUhostFn(ctypes.cast(k, ctypes.c_void_p).value), 0))
            ok(d.cuStreamSynchronize(s))
            say([[i for i, _ in heard] == list(range(20)), heard[0][1] - before > 0.001])
            """,
        ) == [True, True]  # fmt: skip


def test_a_forked_child_has_no_gpu(sim: Machine, tmp_path: Path) -> None:
    with remote(sim, tmp_path, "shm") as (client, _, _):
        assert run(
            client,
            """
            context()
            p = ok(d.cuMemAlloc(4096))
            r, w = os.pipe()
            pid = os.fork()
            if pid == 0:
                os.write(w, name(d.cuMemAlloc(4096)).encode())
                os._exit(0)
            os.waitpid(pid, 0)
            say([os.read(r, 64).decode(), name(d.cuMemFree(p))])
            """,
        ) == ["NOT_INITIALIZED", "SUCCESS"]


def test_a_context_that_has_no_place_among_the_current_ones_is_not_made(tmp_path: Path) -> None:
    """Nobody would destroy it, and it has memory of the card."""
    with machine(tmp_path, "T4", context_mib=64) as made, remote(made, tmp_path, "shm") as (client, _, _):
        assert run(
            client,
            """
            one = context()
            for _ in range(31):
                ok(d.cuCtxPushCurrent(one))
            before = ok(d.cuMemGetInfo())
            refused = [name(d.cuCtxCreate(None, 0, 0)) for _ in range(3)]
            after = ok(d.cuMemGetInfo())
            ok(d.cuCtxPopCurrent())
            ok(d.cuCtxDestroy(ok(d.cuCtxCreate(None, 0, 0))))
            say([refused, before == after])
            """,
        ) == [["INVALID_VALUE"] * 3, True]


def test_cards_of_two_servers_are_ordinals_of_one_program(tmp_path: Path) -> None:
    with machine(tmp_path / "a", "T4", 1, node="a") as one, machine(tmp_path / "b", "A100-80G", 2, node="b") as two:
        client = client_dir(tmp_path / "client")
        executors = [
            Executor(made, tmp_path / f"executor{i}", "--listen", str(client / f"lease{i}.sock"))
            for i, made in enumerate((one, two))
        ]
        try:
            assert run(
                client,
                """
                ok(d.cuInit(0))
                names, sums, contexts = [], [], []
                for i in range(ok(d.cuDeviceGetCount())):
                    names.append(ok(d.cuDeviceGetName(64, i)).split(b"\\0")[0].decode())
                    contexts.append(ok(d.cuDevicePrimaryCtxRetain(i)))
                    ok(d.cuCtxSetCurrent(contexts[-1]))
                    f = function(VECTOR_ADD, "add")
                    a = upload(np.full(100, i + 1, np.float32)); c = ok(d.cuMemAlloc(400))
                    ok(launch(f, 1, 128, a, a, c, (100, ctypes.c_uint32)))
                    sums.append(float(download(c, np.zeros(100, np.float32)).sum()))
                    last = c
                ok(d.cuCtxSetCurrent(contexts[0]))
                first = ok(d.cuMemAlloc(400))
                ok(d.cuMemcpyPeer(first, contexts[0], last, contexts[2], 400))
                sums.append(float(download(first, np.zeros(100, np.float32)).sum()))
                say([names, sums, name(d.cuDeviceGet(3)), ok(d.cuDeviceCanAccessPeer(0, 1))])
                """,
            ) == [["Tesla T4", *["NVIDIA A100-SXM4-80GB"] * 2], [200.0, 400.0, 600.0, 600.0], "INVALID_DEVICE", 0]
        finally:
            for executor in executors:
                executor.stop()


def test_a_small_program_starts_in_four_round_trips(sim: Machine, tmp_path: Path) -> None:
    code = f"""
        context()
        f = function({COUNT!r}, "count")
        p = ok(d.cuMemAlloc(4))
        ok(launch(f, 1, 1, p, (1, ctypes.c_uint32)))
        say("started")
        import select
        select.select([sys.stdin], [], [])
        say(int(download(p, np.zeros(1, np.uint32))[0]))
    """
    with remote(sim, tmp_path, "bridge") as (client, _, bridge), Program(client, code) as program:
        assert bridge
        assert program.hear() == "started"
        trips = bridge.answers  # welcome, context, module, memory; the launch is not waited for
        program.go()
        assert isinstance(program.hear(), int)
        assert 1 <= trips <= 4, trips
        assert bridge.answers > trips


# ---- cuts and deaths --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("cuts", [int(os.environ.get("EGPU_TEST_CUTS", "40"))])
def test_cuts_lose_no_call_and_double_none(sim: Machine, tmp_path: Path, cuts: int) -> None:
    chance = random.Random(int(os.environ.get("EGPU_TEST_SEED", "5")))
    code = f"""
        context()
        f = function({COUNT!r}, "count")
        p, data, right, i = upload(np.zeros(1, np.uint32)), np.arange(200_000, dtype=np.uint32), True, 0
        q = upload(data)
        say("begun")
        import select
        while not select.select([sys.stdin], [], [], 0)[0]:
            for _ in range(20):
                ok(launch(f, 1, 1, p, (1, ctypes.c_uint32)))
            i += 20
            if i % 100 == 0:
                ok(d.cuMemcpyHtoD(q, data.ctypes.data, data.nbytes))
                right = right and bool((download(q, data) == data).all())
                e = ok(d.cuEventCreate(0)); ok(d.cuEventRecord(e, 0)); ok(d.cuEventSynchronize(e)); ok(d.cuEventDestroy(e))
            right = right and int(download(p, np.zeros(1, np.uint32))[0]) == i
        say([right, i, int(download(p, np.zeros(1, np.uint32))[0])])
    """
    with remote(sim, tmp_path, "bridge") as (client, executor, bridge), Program(client, code) as program:
        assert bridge
        assert program.hear() == "begun"
        for done in range(cuts):
            bridge.cut_after = chance.choice(
                [chance.randrange(1, 400), chance.randrange(1, 5000), chance.randrange(1, 2_000_000)]
            )
            wait_until(lambda wanted=done: bridge.cuts > wanted)
        program.go()
        right, launched, counted = program.hear()
        assert right
        assert launched == counted > 0
        assert [e for e in executor.events if e.get("state") == "closed"] == []


@pytest.mark.parametrize("bytes_carried", [1, 50, 130, 300])
def test_a_first_connection_that_breaks_is_made_anew(sim: Machine, tmp_path: Path, bytes_carried: int) -> None:
    with remote(sim, tmp_path, "bridge") as (client, _, bridge):
        assert bridge
        bridge.cut_after = bytes_carried  # within the greeting, of either side
        assert sample(client, "vectoradd").returncode == 0
        assert bridge.cuts == 1


def abandoned(sock: Path) -> None:
    """A socket on which nobody listens any more, as a killed process leaves it."""
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(sock))


def test_a_first_call_waits_for_the_agent_to_come_back(sim: Machine, tmp_path: Path) -> None:
    with remote(sim, tmp_path, "shm") as (client, executor, _):
        (client / "lease.sock").unlink()
        abandoned(client / "lease.sock")
        command = [str(path("samples/egpu-sample-vectoradd"))]
        with subprocess.Popen(command, env=environment(client), stderr=subprocess.PIPE, text=True) as program:
            assert program.stderr
            assert "nothing listens yet; waits 30 s for its agent" in program.stderr.readline()
            bridge = Bridge(client / "again.sock", executor.folder.parent / "executor.sock")
            (client / "again.sock").rename(client / "lease.sock")
            assert program.wait(DEADLINE_SECONDS) == 0
            assert program.stderr.read() == ""  # it is said once
            bridge.close()


def test_a_first_call_waits_no_longer_than_it_is_told(tmp_path: Path) -> None:
    client = client_dir(tmp_path / "client")
    abandoned(client / "lease.sock")
    (client / "grace").write_text("1\n")
    done = sample(client, "vectoradd")
    assert done.returncode != 0
    assert "nothing listens yet; waits 1 s for its agent" in done.stderr


def test_a_lost_connection_is_tried_again_no_longer_than_it_is_told(sim: Machine, tmp_path: Path) -> None:
    with remote(sim, tmp_path, "bridge") as (client, _, bridge):
        assert bridge
        (client / "grace").write_text("1\n")
        with Program(client, "context(); say(1); wait(); say(d.cuMemAlloc(1)[0].name)") as program:
            program.hear()
            bridge.close()
            (client / "lease.sock").unlink(missing_ok=True)
            abandoned(client / "lease.sock")
            program.go()
            assert program.hear() == "CUDA_ERROR_DEVICE_UNAVAILABLE"


def test_a_first_call_does_not_wait_for_an_executor_beside_it(tmp_path: Path) -> None:
    client = client_dir(tmp_path / "client")
    abandoned(client / "lease.sock")
    (client / "executor-policy").touch()
    failed = sample(client, "vectoradd").stderr
    assert "Connection refused" in failed
    assert "waits" not in failed
    assert "CUDA_ERROR_DEVICE_UNAVAILABLE" in failed


def test_a_bridge_that_has_no_lease_to_give_says_so_and_is_not_asked_again(sim: Machine, tmp_path: Path) -> None:
    client, asked = client_dir(tmp_path / "client"), 0
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(client / "lease.sock"))
        listener.listen()

        def answer() -> None:
            nonlocal asked
            with contextlib.suppress(OSError):
                while True:
                    connection, _ = listener.accept()
                    asked += 1
                    connection.recv(4096)
                    connection.sendall(GONE)
                    connection.close()

        thread = threading.Thread(target=answer, daemon=True)
        thread.start()
        assert "CUDA_ERROR_DEVICE_UNAVAILABLE" in sample(client, "vectoradd").stderr
        assert asked == 1
        listener.shutdown(socket.SHUT_RDWR)
        thread.join(DEADLINE_SECONDS)


KERNEL_SECONDS = 60


@pytest.mark.parametrize("transport", TRANSPORTS)
@pytest.mark.parametrize("victim", ["session", "parent"])
def test_a_dead_executor_is_an_error_at_once(sim: Machine, tmp_path: Path, transport: Any, victim: str) -> None:
    code = f"""
        context()
        f = function(STORE.replace("DURATION", "{KERNEL_SECONDS}000000"), "store")
        p = upload(np.zeros(1, np.uint32))
        ok(launch(f, 1, 1, p, (1, ctypes.c_uint32)))
        say("begun")
        ended = name(d.cuCtxSynchronize())
        say([ended, name(d.cuMemAlloc(4)), name(launch(f, 1, 1, p, (1, ctypes.c_uint32)))])
    """
    with remote(sim, tmp_path, transport) as (client, executor, _), Program(client, code) as program:
        assert program.hear() == "begun"
        other = sample(client, "vectoradd")
        wait_until(lambda: len(executor.children()) == 1)  # the other's is through
        (pid,) = executor.children()
        os.kill(pid if victim == "session" else executor.process.pid, signal.SIGKILL)
        since = time.monotonic()
        assert program.hear() == ["DEVICE_UNAVAILABLE"] * 3
        assert time.monotonic() - since < KERNEL_SECONDS / 2  # it did not wait for the kernel
        assert other.returncode == 0
        if victim == "session":
            assert sample(client, "vectoradd").returncode == 0  # a new session of the same lease


def test_a_killed_client_frees_its_memory_at_once(sim: Machine, tmp_path: Path) -> None:
    code = """
        context()
        p = ok(d.cuMemAlloc(1 << 30))
        say("begun")
        wait()
    """
    with remote(sim, tmp_path, "shm") as (client, executor, _), Program(client, code) as program:
        assert program.hear() == "begun"
        program.kill()
        assert executor.wait_for("session", "closed")["reason"] == "client gone"
        free = "context(); say(ok(d.cuMemGetInfo()))"
        left, total = run(sim, free)
        assert left == total


def test_the_grace_period_ends_a_session(sim: Machine, tmp_path: Path) -> None:
    with (
        remote(sim, tmp_path, "bridge", "--grace", "1") as (client, executor, bridge),
        Program(client, "context(); say(1); wait()") as program,
    ):
        assert bridge
        program.hear()
        program.kill()
        assert executor.wait_for("session", "closed")["reason"] == "grace"


# ---- hostile clients --------------------------------------------------------------------------------------------------


def handle(kind: int, index: int, generation: int = 1, executors: int = 0) -> bytes:
    return struct.pack("<Q", kind << 45 | executors << 44 | generation << 20 | index)


KINDS: Final = {
    parts[2]: int(parts[1])
    for parts in (line.split() for line in (ROOT / "native/wire/ops.txt").read_text().splitlines())
    if parts[0] == "kind"
}


@pytest.fixture
def victim(sim: Machine, tmp_path: Path) -> Iterator[tuple[Path, Executor]]:
    with remote(sim, tmp_path, "shm") as (client, executor, _):
        yield client, executor


def test_forged_stale_and_foreign_handles_are_errors_of_the_call(victim: tuple[Path, Executor]) -> None:
    client, executor = victim
    raw = Raw(client / "lease.sock")
    context = handle(KINDS["context"], 1)
    assert raw.call("cuDevicePrimaryCtxRetain", struct.pack("<Q", 1) + context + struct.pack("<Q", 0))[0] == 0
    raw.post(10, context, flags=0)
    stream = handle(KINDS["stream"], 2)
    assert raw.call("cuStreamCreate", struct.pack("<Q", 1) + stream + struct.pack("<Q", 0))[0] == 0
    assert raw.call("cuStreamSynchronize", stream)[0] == 0
    for wrong in (handle(KINDS["stream"], 2, 2), handle(KINDS["stream"], 3), handle(KINDS["event"], 2), handle(KINDS["stream"], 2, 1, 1),
                  b"\xff" * 8, struct.pack("<Q", 1 << 19)):  # fmt: skip
        assert raw.call("cuStreamSynchronize", wrong)[0] == 400
    assert raw.call("cuStreamDestroy_v2", stream)[0] == 0
    assert raw.call("cuStreamSynchronize", stream)[0] == 400
    # Foreign pointers: host addresses of the executor, and other sessions' memory.
    for pointer in (0, 1, 0x400000, 0x7FFFFFFFE000, (1 << 64) - 1):
        assert raw.call("COPY_OUT", struct.pack("<QQII", pointer, 0, 64, 1))[0] != 0
        assert raw.call("cuMemFree_v2", struct.pack("<Q", pointer))[0] in (0, 1)
    assert raw.call("COPY_HOST_IN", struct.pack("<QQQQII", 4096, 0x600000000000, 1 << 40, 0, 0, 0))[0] == 1
    assert len(executor.children()) == 1


DEVICE, HOST, NUMA, MANAGED = struct.pack("<ii", 1, 0), struct.pack("<ii", 2, 0), struct.pack("<ii", 3, 0), 2


@pytest.mark.parametrize(("place", "kind"), [(HOST, 1), (NUMA, 1), (DEVICE, MANAGED)], ids=["host", "NUMA", "managed"])
def test_memory_of_the_executor_s_machine_is_refused(victim: tuple[Path, Executor], place: bytes, kind: int) -> None:
    """The client refuses it by itself; one that does not gets none of it."""
    client, executor = victim
    raw = Raw(client / "lease.sock")
    with_memory(raw)
    graph, pool = handle(KINDS["graph"], 7), handle(KINDS["pool"], 8)

    def asked(place: bytes, kind: int) -> list[int]:
        props = struct.pack("<ii", kind, 0) + place
        whole = props.ljust(88, b"\0")
        alloc = struct.pack(
            "<IIQQQ", 10, 0, struct.unpack("<Q", graph)[0], struct.unpack("<Q", handle(KINDS["graph_node"], 9))[0], 0
        )
        return [
            raw.call("cuMemPoolCreate", struct.pack("<Q", 3) + pool + whole)[0],
            raw.call("cuMemGetMemPool", struct.pack("<Q", 3) + place + struct.pack("<Q", kind))[0],
            raw.call("cuMemGetDefaultMemPool", struct.pack("<Q", 3) + place + struct.pack("<Q", kind))[0],
            raw.call("GRAPH_NODE", alloc + struct.pack("<QII", 1 << 20, 0, 0) + whole + struct.pack("<Q", 0))[0],
        ]

    assert raw.call("cuGraphCreate", struct.pack("<Q", 1) + graph + struct.pack("<Q", 0))[0] == 0
    assert asked(place, kind) == [801] * 4
    assert asked(DEVICE, 1) == [0] * 4
    assert len(executor.children()) == 1


def word(*values: int) -> bytes:
    return struct.pack(f"<{len(values)}Q", *(value % (1 << 64) for value in values))


def resource(kind: int, value: bytes) -> bytes:
    """A CUDA_RESOURCE_DESC of an array, or of whatever `value` is."""
    return struct.pack("<II", kind, 0) + value + bytes(128)


def test_a_graph_that_was_not_written_to_its_end_is_gone(victim: tuple[Path, Executor]) -> None:
    """What the driver destroys with a capture that fails, or with its stream, has no handle any more."""
    client, executor = victim
    raw = Raw(client / "lease.sock")
    memory = with_memory(raw)
    streams = [handle(KINDS["stream"], index) for index in (2, 3)]
    for stream in streams:
        assert raw.call("cuStreamCreate", word(1) + stream + word(1))[0] == 0
    event = handle(KINDS["event"], 4)
    assert raw.call("cuEventCreate", word(1) + event + word(0))[0] == 0

    def begun(stream: bytes) -> bytes:
        assert raw.call("cuStreamBeginCapture_v2", stream + word(2))[0] == 0
        result, body = raw.call("CAPTURE_INFO", stream)
        assert (result, body[:4]) == (0, b"\1\0\0\0")
        return body[16:24]

    def asked(graph: bytes) -> int:
        return raw.call("cuGraphGetId", word(2) + graph)[0]

    graph = begun(streams[0])
    assert asked(graph) == 0
    assert raw.call("cuGraphDestroy", graph)[0] == 1, "it is being written"
    assert raw.call("cuEventRecord", event + streams[0])[0] == 0
    assert raw.call("cuStreamWaitEvent", streams[1] + event + word(0))[0] == 0
    assert raw.call("cuMemsetD32Async", word(memory, 1, 1) + streams[1])[0] == 0
    assert raw.call("cuStreamEndCapture", word(2) + streams[1])[0] == 903, "it began elsewhere"
    assert asked(graph) == 0
    assert raw.call("cuStreamEndCapture", word(2) + streams[0])[0] == 904, "a stream was not joined"
    assert asked(graph) == 400
    graph = begun(streams[0])
    assert raw.call("cuStreamDestroy_v2", streams[0])[0] == 0
    assert asked(graph) == 400
    graph = begun(streams[1])
    result, body = raw.call("cuStreamEndCapture", word(2) + streams[1])
    assert (result, body[:8]) == (0, graph)
    assert raw.call("cuStreamDestroy_v2", streams[1])[0] == 0
    assert asked(graph) == 0, "it is the program's own by now"
    assert raw.call("cuGraphDestroy", graph)[0] == 0
    assert asked(graph) == 400
    assert len(executor.children()) == 1


def rows_of_array(array: bytes, x: int, y: int, z: int, width: int = 16, rows: int = 2) -> bytes:
    return array + word(0, x, y, z) + struct.pack("<IIII", width, rows, 1, 0)


PLANE: Final = word(8, 8, 0) + struct.pack("<IIII", 0x20, 1, 0, 0)  # of floats


def test_arrays_and_textures_lead_nowhere_else(victim: tuple[Path, Executor]) -> None:
    client, executor = victim
    raw = Raw(client / "lease.sock")
    memory = with_memory(raw)
    neighbours = [handle(KINDS["array"], index) for index in (2, 4, 5)]
    assert [raw.call("cuArray3DCreate_v2", word(3) + each + PLANE)[0] for each in neighbours] == [0, 0, 0]
    array, mipmap = neighbours[1], handle(KINDS["mipmapped_array"], 3)
    assert raw.call("COPY_ARRAY_IN", rows_of_array(array, 4, 1, 0) + b"A" * 32)[0] == 0
    assert raw.call("COPY_ARRAY_OUT", rows_of_array(array, 4, 1, 0)) == (0, b"A" * 32)
    for x, y, z in ((24, 0, 0), (0, 8, 0), (0, 0, 1), (-8, 0, 0), (0, -1, 0), (0, 0, -1), (1 << 63, 0, 0)):
        assert raw.call("COPY_ARRAY_OUT", rows_of_array(array, x, y, z, rows=1))[0] == 1, (x, y, z)
    end, linear = array + word(0, 0, 0, 0, 0, 0), word(0, memory, 16, 2, 0, 0, 0)
    beyond = array + word(0, 0, 0, 0, -1, 0)
    for to, result in ((end, 0), (beyond, 1)):
        assert raw.call("COPY_ARRAY", to + linear + word(16, 2, 1, 0, 1))[0] == result

    result, body = raw.call("cuTexObjectCreate", word(7) + resource(0, array) + bytes(104))
    assert result == 0
    texture = struct.unpack("<Q", body)[0]
    for kind, value, result in (
        (0, word(texture), 400),
        (0, handle(KINDS["array"], 4, 2), 400),
        (1, array, 400),
        (9, array, 1),
        (2, word(memory), 1),
    ):
        assert raw.call("cuTexObjectCreate", word(7) + resource(kind, value) + bytes(104))[0] == result, (kind, value)
        assert raw.call("cuSurfObjectCreate", word(3) + resource(kind, value))[0] == result
    result, body = raw.call("cuTexObjectGetResourceDesc", word(1, texture))
    assert result == 0
    assert body[8:16] == array, "the program's own name for it"
    for wrong in (0, 16, texture + 16, memory, 0x7FFFFFFFE000, -1):
        assert raw.call("cuTexObjectGetTextureDesc", word(1, wrong))[0] == 400
        assert raw.call("cuTexObjectDestroy", word(wrong))[0] == 400
    assert raw.call("cuSurfObjectDestroy", word(texture))[0] == 400
    assert [raw.call("cuTexObjectDestroy", word(texture))[0] for _ in range(2)] == [0, 400]

    assert raw.call("cuMipmappedArrayCreate", word(3) + mipmap + PLANE + word(4))[0] == 0
    result, level = raw.call("cuMipmappedArrayGetLevel", word(1) + mipmap + word(1))
    assert result == 0
    assert raw.call("cuArray3DGetDescriptor_v2", word(1) + level)[0] == 0
    assert raw.call("cuMipmappedArrayDestroy", mipmap)[0] == 0
    assert raw.call("cuArray3DGetDescriptor_v2", word(1) + level)[0] == 400, "a level is gone with its mipmap"
    assert len(executor.children()) == 1


BAD: Final[dict[str, Callable[[Raw], object]]] = {
    "rows of an array that are not there": lambda raw: raw.post(
        "COPY_ARRAY_IN", rows_of_array(handle(KINDS["array"], 2), 0, 0, 0) + bytes(8)
    ),
    "more of an array than a frame holds": lambda raw: raw.post(
        "COPY_ARRAY_OUT", rows_of_array(handle(KINDS["array"], 2), 0, 0, 0, width=1 << 20, rows=1 << 20)
    ),
    "a frame that is too long": lambda raw: raw.post("cuCtxSynchronize", length=0x7FFFFFFF),
    "a payload that is too short": lambda raw: raw.post("cuStreamSynchronize", b"1234"),
    "a payload that is too long": lambda raw: raw.post("cuStreamSynchronize", bytes(64)),
    "an unknown operation": lambda raw: raw.post(65535),
    "an operation of nobody": lambda raw: raw.post(40),
    "a gap": lambda raw: raw.post("cuCtxSynchronize", seq=7),
    "a copy that claims more than it has": lambda raw: raw.post(
        "COPY_IN", struct.pack("<QQII", 4096, 0, 1 << 20, 0) + bytes(8)
    ),
    "a string without its end": lambda raw: raw.post("cuModuleGetFunction", struct.pack("<QQQ", 1, 0, 8) + b"A" * 16),
    "arguments that are not there": lambda raw: raw.post(
        "LAUNCH", bytes(16) + struct.pack("<10I", *[1] * 6, 0, 0, 0, 32768)
    ),
    "an image with another digest": lambda raw: raw.post(
        "IMAGE", bytes(32) + struct.pack("<QQII", 8, 0, 8, 0) + b"notthis\0"
    ),
    "a part beyond the image": lambda raw: raw.post(
        "IMAGE", bytes(32) + struct.pack("<QQII", 8, 1 << 63, 8, 0) + b"notthis\0"
    ),
    "the shared area of a stream": lambda raw: raw.post("COPY_IN_SHARED", struct.pack("<QQIIQ", 4096, 0, 64, 0, 0)),
    "a question that has something behind it": lambda raw: raw.post("PRINTED", bytes(8)),
    "a room of nothing": lambda raw: raw.post("ROOM", struct.pack("<Q", 0)),
    "a part behind any room": lambda raw: raw.post("ROOM_OUT", struct.pack("<QQQ", 1, 1 << 40, 64)),
    "a node of no kind": lambda raw: raw.post("GRAPH_NODE", struct.pack("<IIQQQ", 77, 0, 0, 0, 0)),
    "a node that is not whole": lambda raw: raw.post("GRAPH_NODE", struct.pack("<IIQQQ", 2, 0, 0, 0, 0)),
    "a mode that is none": lambda raw: raw.post("CAPTURE_MODE", struct.pack("<Q", 3)),
    "creating over a live handle": lambda raw: [
        raw.post("cuDevicePrimaryCtxRetain", struct.pack("<Q", 1) + handle(KINDS["context"], 1) + struct.pack("<Q", 0))
        for _ in range(2)
    ],
}


@pytest.mark.parametrize("what", BAD)
def test_a_malformed_call_costs_its_own_session_only(victim: tuple[Path, Executor], what: str) -> None:
    client, executor = victim
    neighbour = Raw(client / "lease.sock")
    raw = Raw(client / "lease.sock")
    BAD[what](raw)
    assert raw.gone(), what
    closed = executor.wait_for("session", "closed")
    assert closed["reason"] == "violation", (closed, executor.stderr())
    assert neighbour.call("cuModuleGetLoadingMode", struct.pack("<Q", 1))[0] in (0, 801)


def with_memory(raw: Raw) -> int:
    """A context, and 1 MiB of the card's memory in it."""
    context = handle(KINDS["context"], 1)
    assert raw.call("cuDevicePrimaryCtxRetain", struct.pack("<Q", 1) + context + struct.pack("<Q", 0))[0] == 0
    raw.post(10, context, flags=0)
    result, body = raw.call("cuMemAlloc_v2", struct.pack("<QQ", 1, 1 << 20))
    assert result == 0
    return struct.unpack("<Q", body)[0]


def resident_mib(pid: int) -> int:
    status = Path(f"/proc/{pid}/status").read_text()
    return int(status.split("VmHWM:")[1].split()[0]) // 1024


def test_a_fat_binary_that_says_it_is_longer_than_what_came_is_refused(victim: tuple[Path, Executor]) -> None:
    """The driver would read on, in what else its session holds."""
    client, _ = victim
    raw = Raw(client / "lease.sock")
    with_memory(raw)

    def load(claimed: int) -> int:
        ptx = b".version 7.0\n.target sm_70\n.address_size 64\n".ljust(64)
        image = struct.pack("<IIQ", 0xBA55ED50, 1, claimed) + ptx
        module = handle(KINDS["module"], 5)
        asked = hashlib.sha256(image).digest() + struct.pack("<Q", len(image)) + module
        return raw.call("MODULE_LOAD", asked + struct.pack("<II", len(image), 0) + image)[0]

    assert load(64) == 0
    assert load(65) == load(1 << 62) == 200  # CUDA_ERROR_INVALID_IMAGE


@pytest.mark.parametrize("reads", [True, False])
def test_replies_that_nobody_acknowledges_are_bounded(victim: tuple[Path, Executor], reads: bool) -> None:
    """1 MiB each, and never RECEIVED; read, or left lying so that the executor waits for whoever does not read."""
    client, executor = victim
    raw = Raw(client / "lease.sock")
    memory = with_memory(raw)
    (session,) = executor.children()
    before = resident_mib(session)
    raw.socket.settimeout(1)
    with contextlib.suppress(OSError, EOFError):
        for _ in range(100):
            raw.post("COPY_OUT", struct.pack("<QQII", memory, 0, 1 << 20, 1))
            for _ in range(((1 << 20) + 24) * reads // 65536):
                raw.take(65536)
    with contextlib.suppress(FileNotFoundError, ProcessLookupError, IndexError):  # it may have ended, and be ending
        assert resident_mib(session) - before < 24
    if reads:
        assert executor.wait_for("session", "closed")["reason"] == "violation", executor.stderr()
        assert "more is asked for than is taken" in executor.stderr()


def test_calls_that_wait_beside_are_bounded(victim: tuple[Path, Executor]) -> None:
    """What came with them is kept while they wait for the card, and that for a function that the client never ends."""
    client, executor = victim
    raw = Raw(client / "lease.sock")
    memory = with_memory(raw)
    (session,) = executor.children()
    before = resident_mib(session)
    assert raw.call("HOST_CALLBACK", struct.pack("<QQII", 1, 0, 0, 0))[0] == 0
    raw.socket.settimeout(1)
    with contextlib.suppress(OSError, EOFError):
        for _ in range(100):
            raw.post("COPY_IN", struct.pack("<QQII", memory, 0, 1 << 20, 1) + bytes(1 << 20), flags=5)
    assert resident_mib(session) - before < 24


def test_many_threads_copy_while_one_waits_for_the_card(sim: Machine, tmp_path: Path) -> None:
    """Their replies come while an earlier call has none: the executor may forget them, and keeps no more than that."""
    with remote(sim, tmp_path, "bridge") as (client, executor, bridge):
        assert bridge
        run(
            client,
            """
            import threading
            ctx = context()
            f = function(STORE.replace("DURATION", "1500000"), "store")
            slow = ok(d.cuStreamCreate(1))
            size = 3 << 20
            data = np.arange(size, dtype=np.uint8)
            p, at = upload(data), ok(d.cuMemAlloc(64))
            ok(launch(f, 1, 1, at, (1, ctypes.c_uint32), stream=slow))
            wrong = []
            def wait():
                ok(d.cuCtxSetCurrent(ctx)); ok(d.cuStreamSynchronize(slow))
            def copy():
                ok(d.cuCtxSetCurrent(ctx))
                s = ok(d.cuStreamCreate(1))
                out = np.zeros_like(data)
                for _ in range(4):
                    ok(d.cuMemcpyDtoHAsync(out.ctypes.data, p, size, s)); ok(d.cuStreamSynchronize(s))
                    wrong.append(bool((out != data).any()))
                for _ in range(200):
                    ok(d.cuMemGetInfo())
            threads = [threading.Thread(target=wait)] + [threading.Thread(target=copy) for _ in range(8)]
            for t in threads: t.start()
            for t in threads: t.join()
            assert wrong == [False] * 32, wrong
            say(True)
            """,
        )
        assert "violation" not in str(executor.events), executor.stderr()


def test_random_bytes_crash_nothing_but_their_session(victim: tuple[Path, Executor]) -> None:
    client, executor = victim
    chance = random.Random(11)
    neighbour = Raw(client / "lease.sock")
    for _ in range(60):
        raw = Raw(client / "lease.sock")
        try:
            for _ in range(30):
                op = chance.choice(list(OPS.values()))
                raw.post(op, chance.randbytes(8 * chance.randrange(0, 12)), flags=chance.choice([0, 1, 5]))
        except OSError:
            pass
        raw.socket.close()
    assert executor.process.poll() is None
    assert neighbour.call("cuModuleGetLoadingMode", struct.pack("<Q", 1))[0] in (0, 801)
    reasons = {e["reason"] for e in executor.events if e.get("state") == "closed"}
    assert reasons <= {"violation", "grace", "goodbye"}, reasons


def test_who_may_not_come_in(sim: Machine, tmp_path: Path) -> None:
    token = tmp_path / "token"
    token.write_text("the right one\n")
    with remote(sim, tmp_path, "shm", "--token-file", str(token), "--sessions", "2") as (client, executor, _):
        sock = client / "lease.sock"
        assert Raw(sock, token=b"the wrong one").status == 1
        assert Raw(sock).status == 1
        assert Raw(sock, token=b"the right one", table=1).status == 2
        assert Raw(sock, token=b"the right one", flags=1).status == 3
        kept = [Raw(sock, token=b"the right one") for _ in range(2)]
        assert [raw.status for raw in kept] == [0, 0]
        assert Raw(sock, token=b"the right one").status == 4
        token.write_text("renewed")
        assert Raw(sock, token=b"the right one").status == 1
        for raw in kept:
            raw.socket.sendall(struct.pack("<HHIQ", 5, 0, 0, 0))
        wait_until(lambda: len([e for e in executor.events if e.get("state") == "closed"]) == 2)
        (client / "lease.token").write_text("renewed")
        assert sample(client, "vectoradd").returncode == 0


def test_who_says_nothing_is_hung_up_on_and_with_nobody_there_an_executor_sleeps(
    victim: tuple[Path, Executor],
) -> None:
    client, executor = victim

    def woke() -> str:
        status = Path(f"/proc/{executor.process.pid}/status").read_text()
        return status.split("voluntary_ctxt_switches:")[1].split()[0]

    def sleeps() -> bool:
        before = woke()
        time.sleep(1.1)
        return woke() == before

    with socket.socket(socket.AF_UNIX) as silent:
        silent.settimeout(DEADLINE_SECONDS)
        silent.connect(str(client / "lease.sock"))
        assert silent.recv(1) == b""
        wait_until(sleeps)


# ---- quotas -----------------------------------------------------------------------------------------------------------


def limits(card: SimulatedCard, *, memory_bytes: int = MEMORY_UNLIMITED, percent: int = 100) -> DevicePolicy:
    mode = Mode.UNLIMITED if percent == 100 else Mode.CAP
    return DevicePolicy(
        uuid=card.uuid, minor=card.minor, mode=mode, core_ppm=PPM * percent // 100, memory_limit_bytes=memory_bytes
    )


def slice_directory(directory: Path, policy: DevicePolicy) -> Path:
    directory.mkdir()
    write_policy(directory / "policy", [policy])
    create_usage(directory / "usage")
    shutil.copy(path("libegpu-interposer.so"), directory)
    return directory


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_memory_stays_within_the_slice_for_all_sessions_together(sim: Machine, tmp_path: Path, transport: Any) -> None:
    limit, card = 512 * MIB, sim.cards[0]
    directory = slice_directory(tmp_path / "slice", limits(card, memory_bytes=limit))
    holder = """
        context()
        p = ok(d.cuMemAlloc(300 << 20))
        say([ok(d.cuMemGetInfo())[1], ok(d.cuDeviceTotalMem(0)), name(d.cuMemAlloc(300 << 20))])
        wait()
        say(1)
    """
    with (
        remote(sim, tmp_path, transport, "--slice", str(directory), env={"CUDA_VISIBLE_DEVICES": "0"}) as (
            client,
            _,
            _,
        ),
        Program(client, holder) as program,
    ):
        assert program.hear() == [limit, limit, "OUT_OF_MEMORY"]
        fill = """
            context()
            held = 0
            while name(d.cuMemAlloc(1 << 20)) == "SUCCESS": held += 1
            say(held)
        """
        assert run(client, fill) == 212
        write_policy(directory / "policy", [limits(card, memory_bytes=2 * limit)])
        wait_until(lambda: run(client, fill) == 724)  # what the program before held is back a moment after its end
        program.go()
        assert program.hear() == 1


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_compute_stays_within_its_share(sim: Machine, tmp_path: Path, transport: Any) -> None:
    directory = slice_directory(tmp_path / "slice", limits(sim.cards[1], percent=30))
    with remote(sim, tmp_path, transport, "--slice", str(directory), env={"CUDA_VISIBLE_DEVICES": "1"}) as (
        client,
        _,
        _,
    ):
        said = json.loads(sample(client, "spin", "--json", "--us=1000", "--seconds=3").stdout)
        # By the duration that the kernels declare: what events measure here includes the way to the executor. A busy
        # machine can only take time away.
        share = said["kernels"] * 1000e-6 / said["seconds"]
        assert 0.05 <= share <= 0.33, said


# ---- what does not go over the wire -----------------------------------------------------------------------------------

REFUSED: Final = (
    "cuGraphAddBatchMemOpNode", "cuGraphDebugDotPrint", "cuMemMapArrayAsync",
    "cuIpcGetMemHandle", "cuIpcOpenMemHandle_v2", "cuIpcGetEventHandle", "cuMemExportToShareableHandle", "cuLinkCreate",
    "cuImportExternalMemory",
)  # fmt: skip


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_what_does_not_go_over_the_wire_is_refused_by_name(sim: Machine, tmp_path: Path, transport: Any) -> None:
    code = f"""
        context()
        cuda, p = ctypes.CDLL("libcuda.so.1"), ctypes.c_uint64()
        answers = [getattr(cuda, symbol)(*[ctypes.c_void_p(0)] * 8) for symbol in {REFUSED} * 2]
        answers.append(cuda.cuMemAllocManaged(ctypes.byref(p), ctypes.c_size_t(4096), 1))
        answers.append(cuda.cuEventCreate(ctypes.byref(p), 6))
        host, wanted, kind = d.CUmemLocation(), d.CUmemPoolProps(), d.CUmemAllocationType.CU_MEM_ALLOCATION_TYPE_PINNED
        host.type = d.CUmemLocationType.CU_MEM_LOCATION_TYPE_HOST
        wanted.location, wanted.allocType = host, kind
        for result in (d.cuMemGetMemPool(host, kind), d.cuMemGetDefaultMemPool(host, kind), d.cuMemPoolCreate(wanted)):
            answers.append(int(result[0]))
        say(answers)
        ok(d.cuCtxSynchronize())
        os._exit(3)
    """
    host_pools = ("cuMemGetMemPool", "cuMemGetDefaultMemPool", "cuMemPoolCreate")
    with remote(sim, tmp_path, transport) as (client, executor, _):
        done = run(client, code, fails=True)
        assert done.returncode == 3, done.stderr
        assert set(json.loads(done.stdout)) == {801}
        for symbol in (*REFUSED, "cuMemAllocManaged", "cuEventCreate with CU_EVENT_INTERPROCESS", *host_pools):
            assert done.stderr.count(f"egpu: {symbol} ") == 1, done.stderr
        assert "violation" not in str(executor.events)


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_a_captured_copy_reads_and_writes_memory_when_the_graph_runs(
    sim: Machine, tmp_path: Path, transport: Any
) -> None:
    """Memory that the executor maps, and the program's own."""
    code = """
        context()
        s, p = ok(d.cuStreamCreate(1)), ok(d.cuMemAlloc(1 << 20))
        pinned = np.ctypeslib.as_array((ctypes.c_uint8 * (1 << 20)).from_address(int(ok(d.cuMemAllocHost(1 << 20)))))
        own = np.full(1 << 20, 9, np.uint8)
        answers = []
        for memory in (own, pinned):
            for n in (16, 1 << 20):
                ok(d.cuStreamBeginCapture(s, d.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_RELAXED))
                in_ = name(d.cuMemcpyHtoDAsync(p, memory.ctypes.data, n, s))
                ok(d.cuMemsetD8Async(p, 77, 8, s))
                out = name(d.cuMemcpyDtoHAsync(memory.ctypes.data, p, n, s))
                graph = ok(d.cuStreamEndCapture(s))
                exec_ = ok(d.cuGraphInstantiate(graph, 0))
                answers.append([in_, out])
                for value in (5, 6):
                    memory[:] = value
                    ok(d.cuGraphLaunch(exec_, s))
                    ok(d.cuStreamSynchronize(s))
                    answers[-1].append([int(memory[0]), int(memory[8])])
        say(answers)
    """
    copied = ["SUCCESS", "SUCCESS", [77, 5], [77, 6]]
    with remote(sim, tmp_path, transport) as (client, _, _):
        assert run(client, code) == [copied] * 4


def test_one_input_links_to_itself_and_several_are_refused(sim: Machine, tmp_path: Path) -> None:
    code = """
        context()
        driver = ctypes.CDLL("libcuda.so.1")
        state, image, size = ctypes.c_void_p(), ctypes.c_void_p(), ctypes.c_size_t()
        ptx = STORE.replace("DURATION", "1").encode()
        complete = lambda: driver.cuLinkComplete(state, ctypes.byref(image), ctypes.byref(size))
        add = lambda type=1: driver.cuLinkAddData_v2(state, type, ptx, ctypes.c_size_t(len(ptx)), b"x", 0, None, None)
        results = [driver.cuLinkCreate_v2(0, None, None, ctypes.byref(state)), complete(), add(3), add(), complete(), add()]
        module = ok(d.cuModuleLoadData(ctypes.string_at(image, size.value)))
        results += [driver.cuLinkDestroy(state), driver.cuLinkDestroy(state), add()]
        a = upload(np.zeros(1, np.uint32))
        ok(launch(ok(d.cuModuleGetFunction(module, b"store")), 1, 1, a, (7, ctypes.c_uint32)))
        say([results, int(download(a, np.zeros(1, np.uint32))[0])])
    """
    with remote(sim, tmp_path, "tcp") as (client, _, _):
        assert run(client, code) == [[0, 200, 801, 0, 0, 801, 0, 400, 400], 7]


def test_streams_of_a_capture_say_which_one_it_is(sim: Machine, tmp_path: Path) -> None:
    """PyTorch keeps memory apart by it."""
    code = """
        context()
        driver = ctypes.CDLL("libcuda.so.1")
        relaxed = d.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_RELAXED
        def info(stream, graph=None):
            status, number = ctypes.c_int(), ctypes.c_uint64()
            pointers = ctypes.byref(status), ctypes.byref(number), graph, None, None, None
            result = driver.cuStreamGetCaptureInfo_v3(ctypes.c_void_p(int(stream)), *pointers)
            return [result, status.value, number.value]
        one, joined, two = (ok(d.cuStreamCreate(1)) for _ in range(3))
        event = ok(d.cuEventCreate(2))
        answers = [info(one)]
        ok(d.cuStreamBeginCapture(one, relaxed))
        ok(d.cuEventRecord(event, one))
        ok(d.cuStreamWaitEvent(joined, event, 0))
        answers += [info(one), info(joined), info(one, ctypes.byref(ctypes.c_void_p()))]
        ok(d.cuStreamBeginCapture(two, relaxed))
        answers += [info(one), info(two), info(joined)]
        ok(d.cuStreamEndCapture(two))
        ok(d.cuEventRecord(event, joined))
        ok(d.cuStreamWaitEvent(one, event, 0))
        ok(d.cuStreamEndCapture(one))
        ok(d.cuStreamBeginCapture(one, relaxed))
        say([*answers, info(one), info(two)])
    """
    with remote(sim, tmp_path, "shm") as (client, _, _):
        several = [[0, 1, 1], [0, 1, 2], [0, 1, 1]]
        assert run(client, code) == [[0, 0, 0], *[[0, 1, 1]] * 3, *several, [0, 1, 3], [0, 0, 0]]


# ---- NVML -------------------------------------------------------------------------------------------------------------

LOOK = """
    import pynvml as n
    n.nvmlInit()
    h = n.nvmlDeviceGetHandleByIndex(0)
    seen = n.nvmlDeviceGetMemoryInfo(h)
"""


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_nvml_shows_the_slice_and_nothing_else(sim: Machine, tmp_path: Path, transport: Any) -> None:
    limit, card = 512 * MIB, sim.cards[0]
    directory = slice_directory(tmp_path / "slice", limits(card, memory_bytes=limit))
    with remote(sim, tmp_path, transport, "--slice", str(directory), env={"CUDA_VISIBLE_DEVICES": "0"}) as (
        client,
        _,
        _,
    ):
        holder = Program(client, "context(); p = ok(d.cuMemAlloc(100 << 20)); say(os.getpid()); wait()")
        stranger = Program(sim.driver_dir, "context(); p = ok(d.cuMemAlloc(100 << 20)); say(os.getpid()); wait()")
        with holder, stranger:
            pid, _ = holder.hear(), stranger.hear()
            count, name, uuid, total, used, processes, percent, refused, version = run(
                client,
                LOOK
                + """
    try:
        refused = n.nvmlDeviceGetTemperature(h, 0)
    except n.NVMLError_NotSupported as error:
        refused = str(error)
    say([n.nvmlDeviceGetCount(), n.nvmlDeviceGetName(h), n.nvmlDeviceGetUUID(h), seen.total, seen.used,
         [[p.pid, p.usedGpuMemory] for p in n.nvmlDeviceGetComputeRunningProcesses(h)],
         n.nvmlDeviceGetUtilizationRates(h).gpu, refused, n.nvmlSystemGetDriverVersion()])
    """,
            )
        assert (count, name, uuid, total) == (1, "Tesla T4", card.uuid, limit)
        assert used >= 100 * MIB
        assert [p for p in processes if p[1] >= 100 * MIB] == [[pid, processes[0][1]]]
        assert 0 <= percent <= 100
        assert refused == "Not Supported"
        assert version


def test_nvml_and_cuda_of_a_program_are_one_session(sim: Machine, tmp_path: Path) -> None:
    with remote(sim, tmp_path, "shm") as (client, executor, _):
        assert run(client, LOOK + "    context(); say(n.nvmlDeviceGetIndex(h))") == 0
        assert len([event for event in executor.events if event.get("state") == "opened"]) == 1
