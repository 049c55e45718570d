"""The pool as its users run it: `egpu broker`, `egpu serve` and `egpu run --pool` as processes, the real executor."""

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Generator, Iterator

import pytest

from egpu.adapters.executors.leftovers import processes_of
from egpu.cli.pool import leases_table, servers_table
from egpu.core.leasing.pool import TTL_SECONDS
from support.local_pool import FAR, LocalPool, built, local_pool, sample
from support.simulated_gpu import variables
from support.waiting import DEADLINE_SECONDS, wait_until

pytestmark = pytest.mark.skipif(not built(), reason="the executor and the remote client are not built")


def _with_two_servers(tls: bool) -> Iterator[LocalPool]:
    with local_pool(tls=tls) as pool:
        pool.broker()
        pool.serve("one")
        pool.serve("two")
        yield pool


@pytest.fixture(scope="module")
def pool() -> Iterator[LocalPool]:
    yield from _with_two_servers(tls=False)


@pytest.fixture(scope="module")
def secure() -> Iterator[LocalPool]:
    yield from _with_two_servers(tls=True)


@pytest.mark.parametrize("name", ["vectoradd", "saxpy", "reduce", "matmul"])
def test_samples_give_the_right_answers_on_the_pool(pool: LocalPool, name: str) -> None:
    done = pool.run([sample(name)])
    assert done.returncode == 0, done.stderr
    assert done.stdout.rstrip().endswith(": ok")
    wait_until(lambda: pool.leases() == [])


@pytest.mark.parametrize("name", ["vectoradd", "matmul"])
def test_samples_give_the_right_answers_from_elsewhere_through_mutual_tls(secure: LocalPool, name: str) -> None:
    command = secure.run_command([sample(name)])
    command[1:3] = ["-c", FAR]
    done = subprocess.run(command, capture_output=True, text=True, timeout=DEADLINE_SECONDS, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.rstrip().endswith(": ok")
    wait_until(lambda: secure.leases() == [])


def test_memory_stops_exactly_at_the_limit(pool: LocalPool) -> None:
    done = pool.run([sample("memory")])
    assert f"allocated {2 << 30} bytes" in done.stdout
    assert "CUDA_ERROR_OUT_OF_MEMORY" in done.stdout
    assert done.returncode == 0, done.stderr


LOADING = f"""
from cuda.bindings import driver as d
d.cuInit(0)
d.cuCtxSetCurrent(d.cuDevicePrimaryCtxRetain(0)[1])
image = {variables(5 << 30)!r}.encode() + bytes(1)
print(d.cuModuleLoadData(image)[0].name, d.cuLibraryLoadData(image, None, None, 0, None, None, 0)[0].name)
_, free, total = d.cuMemGetInfo()
print(total - free, d.cuMemAlloc(total)[0].name)
"""


def test_variables_of_a_module_are_held_to_the_limit_too(pool: LocalPool) -> None:
    done = pool.run([sys.executable, "-c", LOADING])
    assert done.stdout.split() == ["CUDA_ERROR_OUT_OF_MEMORY", "CUDA_ERROR_OUT_OF_MEMORY", "0", "CUDA_SUCCESS"]


def test_cards_of_two_servers_are_ordinals_of_one_program(pool: LocalPool) -> None:
    done = pool.run([sample("info")], "--gpus", "2", "-o", "json")
    assert "2 devices" in done.stdout
    summary = json.loads(done.stderr.splitlines()[-1])
    assert sorted(card["server"] for card in summary["cards"]) == ["one", "two"]
    assert done.stdout.index(summary["cards"][0]["uuid"]) < done.stdout.index(summary["cards"][1]["uuid"])


def test_a_command_that_uses_no_gpu_takes_no_lease_and_its_status_is_passed_on(pool: LocalPool) -> None:
    done = pool.run(["sh", "-c", "exit 7"], "-o", "json")
    assert done.returncode == 7
    assert json.loads(done.stderr.splitlines()[-1])["lease"] is None


def test_what_does_not_fit_is_said_and_the_program_gets_an_error_not_a_hang(pool: LocalPool) -> None:
    done = pool.run([sample("info")], "--gpus", "3")
    assert done.returncode != 0
    (line,) = (each for each in done.stderr.splitlines() if "info: " not in each)  # that is the program's own
    assert line.startswith("no lease: no room for 3")
    assert pool.leases() == []


HOLDING = """
import sys
from cuda.bindings import driver as d
def ok(result):
    assert int(result[0]) == 0, result[0]
    return result[1] if len(result) > 1 else None
ok(d.cuInit(0))
ok(d.cuCtxSetCurrent(ok(d.cuDevicePrimaryCtxRetain(ok(d.cuDeviceGet(0))))))
held = []
print("ready", flush=True)
for line in sys.stdin:
    if line.strip() == "take":
        code, pointer = d.cuMemAlloc(1 << 30)
        if code.name == "CUDA_SUCCESS":
            held.append(pointer)
        print(code.name, flush=True)
    elif line.strip() == "free":
        ok(d.cuMemFree(held.pop()))
        print("freed", flush=True)
    elif line.strip() == "sync":
        print(d.cuCtxSynchronize()[0].name, flush=True)
"""


@contextlib.contextmanager
def holding(
    pool: LocalPool, *options: str, far: bool = False
) -> Generator[tuple[subprocess.Popen[str], Callable[[str], str]]]:
    """A program that holds a lease and does what it is told."""
    command = pool.run_command([sys.executable, "-c", HOLDING], *options)
    if far:
        command[1:3] = ["-c", FAR]
    process = subprocess.Popen(
        command,
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert process.stdin is not None
    assert process.stdout is not None

    def tell(word: str) -> str:
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(word + "\n")
        process.stdin.flush()
        return process.stdout.readline().strip()

    try:
        line = process.stdout.readline().strip()
        assert line == "ready", process.stderr.read() if process.stderr else ""
        yield process, tell
    finally:
        process.kill()
        process.wait()
        for pipe in (process.stdin, process.stdout, process.stderr):
            with contextlib.suppress(OSError):
                pipe.close()  # type: ignore[union-attr]
        wait_until(lambda: pool.leases() == [])


@pytest.mark.parametrize("far", [False, True], ids=["shared memory", "mutual TLS"])
def test_a_live_lease_grows_and_shrinks_and_ends_where_it_was_not_given_back(
    pool: LocalPool, secure: LocalPool, far: bool
) -> None:
    here = secure if far else pool
    with holding(here, far=far) as (process, tell):
        (lease,) = here.leases()
        assert [tell("take") for _ in range(3)] == ["CUDA_SUCCESS", "CUDA_SUCCESS", "CUDA_ERROR_OUT_OF_MEMORY"]
        address = ("--pool", f"127.0.0.1:{here.port}")
        here.egpu("resize", lease["lease"], "--memory", "3GiB", "--core", "70", *address)
        assert [tell("take"), tell("take")] == ["CUDA_SUCCESS", "CUDA_ERROR_OUT_OF_MEMORY"]
        done = here.egpu("resize", lease["lease"], "--memory", "1GiB", *address)
        assert "uses more memory than its new limit" in done.stderr
        (shrunk,) = here.leases()
        assert (shrunk["memoryMiB"], shrunk["overLimit"], shrunk["corePercent"]) == (1024, True, 70)
        assert tell("take") == "CUDA_ERROR_OUT_OF_MEMORY"
        assert [tell("free"), tell("free")] == ["freed", "freed"]
        wait_until(lambda: not here.leases()[0]["overLimit"])
        assert tell("take") == "CUDA_ERROR_OUT_OF_MEMORY", "exactly its new limit is in use"

        here.egpu("resize", lease["lease"], "--memory", "512MiB", "--within", "1", *address)
        wait_until(lambda: here.leases() == [])
        assert tell("sync") in ("CUDA_ERROR_DEVICE_UNAVAILABLE", "CUDA_ERROR_UNKNOWN")
        process.stdin.close()  # type: ignore[union-attr]
        process.wait(DEADLINE_SECONDS)
        assert "the broker ended the lease: over_limit" in process.stderr.read()  # type: ignore[union-attr]


def test_a_killed_client_s_slice_is_back_in_the_pool(pool: LocalPool) -> None:
    with holding(pool) as (process, tell):
        assert tell("take") == "CUDA_SUCCESS"
        process.kill()
        wait_until(lambda: pool.held_lease_directories() == [], seconds=TTL_SECONDS / 2)  # noticed, not timed out


def test_a_killed_executor_is_an_error_and_not_a_hang_and_others_go_on(pool: LocalPool) -> None:
    with holding(pool) as (_, tell):
        (directory,) = pool.held_lease_directories()
        with holding_other(pool) as other:
            for pid in processes_of(directory):
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            said = "CUDA_SUCCESS"
            while said == "CUDA_SUCCESS":  # the executor's session dies when the kernel has buried its parent
                said = tell("sync")
            assert said in ("CUDA_ERROR_DEVICE_UNAVAILABLE", "CUDA_ERROR_UNKNOWN")
            assert other("take") == "CUDA_SUCCESS"


@contextlib.contextmanager
def holding_other(pool: LocalPool) -> Generator[Callable[[str], str]]:
    process = subprocess.Popen(
        pool.run_command([sys.executable, "-c", HOLDING]),
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True,
    )  # fmt: skip
    assert process.stdin is not None
    assert process.stdout is not None
    stdin, stdout = process.stdin, process.stdout

    def tell(word: str) -> str:
        stdin.write(word + "\n")
        stdin.flush()
        return stdout.readline().strip()

    try:
        assert stdout.readline().strip() == "ready"
        yield tell
    finally:
        process.kill()
        process.wait()
        stdin.close()
        stdout.close()


def test_leases_and_servers_are_listed_for_scripts(pool: LocalPool) -> None:
    with holding(pool):
        for name, table, key in (("leases", leases_table, "lease"), ("servers", servers_table, "server")):
            done = pool.egpu("get", name, "--pool", f"127.0.0.1:{pool.port}", "-o", "json")
            listed = [one[key] for one in json.loads(done.stdout)]
            assert listed == [one[key] for one in pool.get(table) or ()]
            assert listed


def test_a_lease_survives_broker_and_daemon_killed_and_started_again(pool: LocalPool) -> None:
    with holding(pool) as (_, tell):
        (before,) = pool.leases()
        assert tell("take") == "CUDA_SUCCESS"
        for name in ("broker", "one", "two"):
            pool.kill(name)
        assert tell("sync") == "CUDA_SUCCESS"
        for name in ("broker", "one", "two"):
            pool.again(name)
        wait_until(lambda: sum(one["connected"] for one in pool.servers()) == 2)
        wait_until(lambda: [one["lease"] for one in pool.leases()] == [before["lease"]])
        time.sleep(2)  # longer than a holder has to come back
        assert [one["lease"] for one in pool.leases()] == [before["lease"]]
        assert tell("take") == "CUDA_SUCCESS"
        assert tell("sync") == "CUDA_SUCCESS"


def test_a_deadline_of_a_shrunk_lease_is_kept_though_broker_and_daemons_are_killed(pool: LocalPool) -> None:
    with holding(pool) as (process, tell):
        (lease,) = pool.leases()
        assert [tell("take"), tell("take")] == ["CUDA_SUCCESS"] * 2
        address = ("--pool", f"127.0.0.1:{pool.port}")
        done = pool.egpu("resize", lease["lease"], "--memory", "1GiB", "--within", "3", *address)
        assert "within 3 s, the lease ends" in done.stderr
        for name in ("broker", "one", "two"):
            pool.kill(name)
        for name in ("broker", "one", "two"):
            pool.again(name)
        wait_until(lambda: sum(one["connected"] for one in pool.servers()) == 2)
        wait_until(lambda: pool.get(leases_table) == [])
        assert tell("sync") in ("CUDA_ERROR_DEVICE_UNAVAILABLE", "CUDA_ERROR_UNKNOWN")
        process.stdin.close()  # type: ignore[union-attr]
        process.wait(DEADLINE_SECONDS)
        # Told when it ended, or when its holder, back after that, asked for it.
        assert re.search("the broker ended the lease: .*over_limit: ", process.stderr.read())  # type: ignore[union-attr]
