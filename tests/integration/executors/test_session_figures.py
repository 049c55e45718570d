"""What an executor logs about a session when it ends."""

import re
from pathlib import Path
from typing import Final

import pytest

from egpu_sim.machines.machine import Machine
from support.remote_gpu import Transport, remote
from support.simulated_gpu import run
from support.waiting import wait_until

CARDS = ("T4", 1)
ENDED: Final = re.compile(
    r"a session ends after (\d+) calls: (\d+) bytes in, (\d+) bytes out, (\d+) images, (\d+) kernels"
)
COPIED: Final = 100_000
PROGRAM: Final = f"""
context()
pointer = upload(np.zeros({COPIED}, np.uint8))
before = download(pointer, np.ones({COPIED}, np.uint8))
module = ok(d.cuModuleLoadData(b".version 7.0\\n.target sm_70\\n.address_size 64\\n.visible .entry k() {{ ret; }}\\0"))
ok(d.cuModuleGetFunction(module, b"k"))
say(int(before.sum()))
"""
NOTHING: Final = "context(); say(0)"


@pytest.mark.parametrize("transport", ["shm", "tcp"])
def test_a_session_ends_with_its_figures(sim: Machine, tmp_path: Path, transport: Transport) -> None:
    env = {"EGPU_REMOTE_VERBOSE": "1"}
    found: list[list[int]] = []
    for program in (NOTHING, PROGRAM):
        with remote(sim, tmp_path / str(len(found)), transport, "--grace", "1", env=env) as (client, executor, _):
            assert run(client, program) == 0
            wait_until(lambda executor=executor: len(ENDED.findall(executor.stderr())) == 1)
            found.append([int(each) for each in ENDED.findall(executor.stderr())[0]])
    (calls, come, gone, *_), (more_calls, more_come, more_gone, images, kernels) = found
    assert calls + 5 <= more_calls < calls + 20, found
    if transport == "tcp":
        assert COPIED <= more_come - come < COPIED + 5_000, found
        assert COPIED <= more_gone - gone < COPIED + 5_000, found
    assert images == 1
    assert kernels <= 1  # the image's answer may describe them already


def test_it_is_silent_unless_asked(sim: Machine, tmp_path: Path) -> None:
    with remote(sim, tmp_path, "shm", "--grace", "1") as (client, executor, _):
        assert run(client, PROGRAM) == 0
        wait_until(lambda: not executor.children())
    assert "a session ends" not in executor.stderr()
