"""One server of a name: who comes second is refused while the first is there, and has the name once it is not."""

import asyncio
import os
from dataclasses import replace
from pathlib import Path
from typing import cast

import pytest
import typer
from structlog.testing import capture_logs

from egpu.adapters.cards.nvml import NvmlInventory
from egpu.adapters.pool import messages
from egpu.adapters.pool.security import Credentials
from egpu.apps.broker import Broker
from egpu.apps.serve import ServeConfig, app
from egpu.apps.serve.app import Server
from egpu.cli.pool import serve
from egpu_base.errors import AlreadyExists
from egpu_base.runtime.supervisor import Supervisor
from egpu_base.system import private
from egpu_sim.machines.machine import create_machine, destroy, open_machine
from support import in_process_pool
from support.local_node import Cards
from support.waiting import DEADLINE_SECONDS, until


def server_of(broker: Broker, credentials: Credentials, instance: str) -> in_process_pool.FakeServer:
    return in_process_pool.FakeServer("one", broker.address, credentials, host=instance, instance=instance)


async def test_the_second_of_a_name_is_refused_and_the_first_goes_on(tmp_path: Path) -> None:
    credentials = in_process_pool.secret(tmp_path)
    async with in_process_pool.broker(credentials) as broker:
        first, second = (server_of(broker, credentials, instance) for instance in ("first", "second"))
        await first.start()
        await until(lambda: "one" in broker.service.pool.servers)
        for _ in range(3):
            with pytest.raises(AlreadyExists, match=r"as one, and serves at 127\.0\.0\.1:1: use another --name"):
                await second.start()
        client = await in_process_pool.client(broker, credentials)
        granted = await client.acquire(request="1", holder="pod:a", cards=1, core=50, memory_mib=1000)
        assert granted.lease.lease in first.runs
        assert broker.service.pool.servers["one"].host == "first"
        await client.close()
        await first.stop()
        await until(lambda: broker.service.pool.servers["one"].away_since is not None)
        await second.start()
        await until(lambda: broker.service.pool.servers["one"].host == "second")
        await second.stop()


async def test_one_that_comes_again_takes_the_place_of_its_own_connection(tmp_path: Path) -> None:
    """Its network may have dropped the one before, and nobody been told."""
    credentials = in_process_pool.secret(tmp_path)
    async with in_process_pool.broker(credentials) as broker:
        lost, again = (server_of(broker, credentials, "first") for _ in range(2))
        await lost.start()
        await again.start()
        await until(lambda: again.read[0] != "")
        await again.stop()
        await lost.stop()


async def test_the_name_of_one_that_says_nothing_is_free(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its network hangs: its connection is not closed."""
    monkeypatch.setattr(messages, "SERVER_SILENCE_SECONDS", 1.0)
    credentials = in_process_pool.secret(tmp_path)
    async with in_process_pool.broker(credentials) as broker:
        silent, follower = (server_of(broker, credentials, instance) for instance in ("silent", "follower"))
        await silent.start()
        await until(lambda: "one" in broker.service.pool.servers)
        assert silent.task is not None
        silent.task.cancel()
        with pytest.raises(AlreadyExists):
            await follower.start()
        await until(lambda: broker.service.pool.servers["one"].away_since is not None)
        await follower.start()
        await until(lambda: broker.service.pool.servers["one"].host == "follower")
        await follower.stop()
        await silent.stop()


@pytest.fixture
def config(tmp_path: Path) -> ServeConfig:
    return ServeConfig(
        name="one", broker="", credentials=in_process_pool.secret(tmp_path), state_dir=tmp_path / "state"
    )


def daemon_of(broker: Broker, config: ServeConfig) -> Server:
    """With a card that nobody reads."""
    made = Server(replace(config, broker=str(broker.address)))
    made._inventory = cast(NvmlInventory, Cards(1))
    return made


async def test_a_daemon_whose_name_another_has_ends_and_says_why(
    config: ServeConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(app, "TAKEN_SECONDS", 0.5)
    async with in_process_pool.broker(config.credentials) as broker:
        first = server_of(broker, config.credentials, "first")
        await first.start()
        await until(lambda: "one" in broker.service.pool.servers)
        second = daemon_of(broker, config)
        with pytest.raises(AlreadyExists, match="another server is connected as one"):
            await asyncio.wait_for(second.run(Supervisor(signals=())), DEADLINE_SECONDS)
        assert broker.service.pool.servers["one"].host == "first"
        await first.stop()


async def test_a_daemon_that_starts_while_the_one_before_is_still_believed_alive_waits_for_the_name(
    config: ServeConfig,
) -> None:
    async with in_process_pool.broker(config.credentials) as broker:
        first = server_of(broker, config.credentials, "first")
        await first.start()
        await until(lambda: "one" in broker.service.pool.servers)
        second, supervisor = daemon_of(broker, config), Supervisor(signals=())
        running = asyncio.create_task(second.run(supervisor))
        await asyncio.sleep(0.5)
        assert not second.connected
        await first.stop()
        await until(lambda: second.connected or running.done())
        assert not running.done()
        supervisor.stop()
        await running


async def test_a_daemon_that_had_the_name_stays_though_another_has_it_meanwhile(
    config: ServeConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its executors are there: it goes on with them when the other is gone."""
    monkeypatch.setattr(app, "TAKEN_SECONDS", 0.0)
    async with in_process_pool.broker(config.credentials) as broker:
        other = server_of(broker, config.credentials, "other")
        await other.start()
        await until(lambda: "one" in broker.service.pool.servers)
        daemon, supervisor = daemon_of(broker, config), Supervisor(signals=())
        daemon._was_connected = True
        with capture_logs() as said:
            running = asyncio.create_task(daemon.run(supervisor))
            await until(lambda: any(line["event"] == "another server has the same name" for line in said))
        await other.stop()
        await until(lambda: daemon.connected)
        supervisor.stop()
        await running


def test_a_second_daemon_of_a_machine_leaves_the_simulated_cards_of_the_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """It has the same state directory, unless it is given a name."""
    held = private.occupy(tmp_path)
    monkeypatch.setattr(private, "OCCUPIED_SECONDS", 0.0)
    made = create_machine(tmp_path / "machine", "A100-80G", 1, "one")
    try:
        with pytest.raises(typer.Exit):
            serve(name="one", state_dir=tmp_path, simulate="T4")
        assert f"another process uses {tmp_path}" in capsys.readouterr().err
        assert open_machine(made.directory).cards == made.cards
    finally:
        destroy(made)
        os.close(held)
