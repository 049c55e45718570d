"""What compilers below `egpu run --pool` are told of the pool's cards: its broker says it before the program starts."""

import asyncio
import socket
import sys
from pathlib import Path

import pytest

from egpu.adapters import native
from egpu.adapters.pool.programs import Outcome, run_in_pool
from egpu.core.leasing.records import LeaseRequest
from egpu.laptop.machines import making_ptx
from egpu_base import compilers
from egpu_base.http.listening import Listen
from support import in_process_pool
from support.waiting import DEADLINE_SECONDS, until

REQUEST = LeaseRequest(cards=1, core=50, memory_mib=1000)
SAY = [
    sys.executable,
    "-c",
    "import os, sys; print(os.environ.get('EGPU_GIVE_PTX'), os.environ['PYTHONPATH'], file=open(sys.argv[1], 'w'))",
]
"""Says what compilers below it are told."""


@pytest.mark.parametrize(
    ("kinds", "asked", "told", "noted"),
    [
        ([True], None, True, ""),
        ([False], None, False, ""),
        ([True, True], None, True, ""),
        ([True, False], None, False, "real and simulated cards"),
        ([True, False], True, True, ""),
        ([False], True, True, ""),
        ([True], False, False, ""),
        ([], None, False, ""),
    ],
)
async def test_compilers_of_a_program_are_told_what_cards_the_pool_has(
    tmp_path: Path, kinds: list[bool], asked: bool | None, told: bool, noted: str
) -> None:
    credentials = in_process_pool.secret(tmp_path)
    async with in_process_pool.broker(credentials) as broker:
        servers = [
            in_process_pool.FakeServer(f"s{number}", broker.address, credentials, simulated=simulated)
            for number, simulated in enumerate(kinds)
        ]
        for server in servers:
            await server.start()
        await until(lambda: len(broker.service.pool.servers) == len(servers))
        said: list[str] = []
        outcome = await run_in_pool(
            [*SAY, str(tmp_path / "told")], broker.address, credentials, REQUEST,
            holder="pod:a", note=said.append, wait_seconds=0, ptx=asked, making_ptx=making_ptx,
        )  # fmt: skip
        assert outcome == Outcome(0, None), "and no lease is taken for that"
        for server in servers:
            await server.stop()
    ptx, path = (tmp_path / "told").read_text().split()
    assert ptx == ("1" if told else "None")
    assert path.startswith(str(compilers.PLUGINS))
    assert [noted in line for line in said] == ([True] if noted else [])


async def test_a_program_is_not_started_before_a_new_broker_knows_its_servers(tmp_path: Path) -> None:
    credentials = in_process_pool.secret(tmp_path)
    async with in_process_pool.broker(credentials, gather_seconds=DEADLINE_SECONDS) as broker:
        said: list[str] = []
        running = asyncio.create_task(
            run_in_pool(
                [*SAY, str(tmp_path / "told")], broker.address, credentials, REQUEST,
                holder="pod:a", note=said.append, wait_seconds=DEADLINE_SECONDS, making_ptx=making_ptx,
            )
        )  # fmt: skip
        await until(lambda: bool(said))
        assert "started a moment ago" in said[0]
        server = in_process_pool.FakeServer("one", broker.address, credentials, simulated=True)
        await server.start()
        assert (await running).status == 0
        await server.stop()
    assert (tmp_path / "told").read_text().startswith("1 ")
    assert len(said) == 1


async def test_a_command_without_a_gpu_needs_no_broker(tmp_path: Path) -> None:
    with socket.socket() as nobody:
        nobody.bind(("127.0.0.1", 0))
        said: list[str] = []
        outcome = await run_in_pool(
            [*SAY, str(tmp_path / "told")],
            Listen("127.0.0.1", nobody.getsockname()[1]),
            in_process_pool.secret(tmp_path),
            REQUEST, holder="pod:a", note=said.append, wait_seconds=0, making_ptx=making_ptx,
        )  # fmt: skip
    assert outcome.status == 0
    assert (tmp_path / "told").read_text().startswith("None ")
    assert said == []


async def test_a_lease_of_a_broker_that_was_silent_at_first_says_that_compilers_were_not_configured(
    tmp_path: Path,
) -> None:
    credentials = in_process_pool.secret(tmp_path)
    with socket.socket() as reserved:
        reserved.bind(("127.0.0.1", 0))
        address = Listen("127.0.0.1", reserved.getsockname()[1])
    said: list[str] = []
    sample = native.path("samples/egpu-sample-vectoradd")
    script = f"touch {tmp_path}/started; until [ -e {tmp_path}/go ]; do sleep 0.02; done; exec {sample}"
    running = asyncio.create_task(
        run_in_pool(
            ["sh", "-c", script], address, credentials, REQUEST,
            holder="pod:a", note=said.append, wait_seconds=0, making_ptx=making_ptx,
        )
    )  # fmt: skip
    await until((tmp_path / "started").exists)
    async with in_process_pool.broker(credentials, listen=str(address)):
        server = in_process_pool.FakeServer("one", address, credentials, simulated=True)
        await server.start()
        (tmp_path / "go").touch()
        await until(lambda: bool(said))
        assert said[0].startswith("lease lease-")
        assert said[0].endswith(
            "; its kind was unknown before the command started: --ptx or --no-ptx configures compilers"
        )
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
        await server.stop()
