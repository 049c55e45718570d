"""Leases that move between the real broker and real daemons, with a stand-in for the executor: who may move what, and
where to."""

from pathlib import Path

import pytest
from msgspec.structs import replace

from egpu.adapters.pool import messages
from egpu.adapters.pool.client import dial
from egpu.adapters.pool.lease import HeldLease
from egpu.core.leasing.records import LeaseRequest
from egpu_base.errors import DoesNotFit, NotFound, NotSupported, Refused, Unavailable
from egpu_sim.machines.machine import Machine
from support import in_process_pool
from support.moving_pool import begun, world
from support.waiting import until

pytestmark = pytest.mark.usefixtures("executor_that_moves")


async def test_a_program_goes_on_on_another_server(tmp_path: Path, machine: Machine, state_dir: Path) -> None:
    async with world(tmp_path, machine, state_dir) as made:
        for _ in range(3):
            source, target = made.where, made.elsewhere
            arrived = await made.asker.move(made.lease, server=target)
            assert [part.server for part in arrived.lease.parts] == [target]
            assert arrived.bytes == 8
            assert arrived.paused_ns > 0
            await until(lambda target=target: made.where == target)
            await made.program.goes_on()
            await until(lambda source=source: not any(
                place.startswith(f"{source}/") for place in made.daemons.places(made.lease)
            ))  # fmt: skip
            ledger = made.broker.service.pool.ledger
            await until(
                lambda ledger=ledger, target=target: (
                    [allocation.node for allocation in ledger.holders().values()] == [target]
                )
            )
            await made.settled()


async def test_a_program_goes_on_on_another_card_of_its_server(
    tmp_path: Path, machine: Machine, state_dir: Path
) -> None:
    async with world(tmp_path, machine, state_dir) as made:
        server = made.where
        before = made.broker.service.views()[0].cards[0].share.uuid
        arrived = await made.asker.move(made.lease, server=server)
        assert [card.server for card in arrived.lease.cards] == [server]
        assert arrived.lease.cards[0].share.uuid != before
        await made.program.goes_on()
        await until(lambda: made.daemons.places(made.lease) == [f"{server}/{made.lease}-1"])
        assert made.broker.service.pool.ledger.overcommits() == []
        await made.settled()
        arrived = await made.asker.move(made.lease, server=server, card="0")
        assert arrived.lease.cards[0].share.uuid == before
        await made.program.goes_on()


async def test_the_broker_finds_the_place_and_says_when_there_is_none(
    tmp_path: Path, machine: Machine, state_dir: Path
) -> None:
    async with world(tmp_path, machine, state_dir) as made:
        await made.asker.move(made.lease)
        await made.program.goes_on()
        await made.settled()
        with pytest.raises(NotFound, match="no server nowhere"):
            await made.asker.move(made.lease, server="nowhere")
        with pytest.raises(Unavailable, match="is not known yet"):
            await made.asker.move("lease-of-nobody")
        with pytest.raises(NotFound, match="has no card 7"):
            await made.asker.move(made.lease, server=made.elsewhere, card="7")
        full = HeldLease(
            made.broker.address, in_process_pool.secret(tmp_path), LeaseRequest(cards=2, core=60, memory_mib=10),
            holder="full",
        )  # fmt: skip
        try:
            await full.take()
            assert full.lease is not None
            with pytest.raises(DoesNotFit, match="no other place"):
                await made.asker.move(full.lease.lease)
        finally:
            await full.close()


async def test_what_prevents_a_move_is_named_before_anything_stops(
    tmp_path: Path, machine: Machine, state_dir: Path
) -> None:
    async with world(tmp_path, machine, state_dir) as made:
        looked = (await made.asker.movable(made.lease)).look
        assert (looked.prevents, looked.bytes) == ((), 8)
        here = f"{made.where}/leases/{made.lease}"
        made.daemons.hinder(here, hindered=True)
        assert (await made.asker.movable(made.lease)).look.prevents == ("a hindrance: remove it",)
        with pytest.raises(Refused, match="a hindrance: remove it"):
            await made.asker.move(made.lease)
        await made.program.goes_on()
        await until(lambda: len(made.broker.service.pool.ledger.holders()) == 1)
        made.daemons.hinder(here, hindered=False)
        await made.settled()
        await made.asker.move(made.lease)
        await made.program.goes_on()


async def test_two_movers_and_a_resize_wait_for_each_other(tmp_path: Path, machine: Machine, state_dir: Path) -> None:
    async with world(tmp_path, machine, state_dir) as made:
        target = made.elsewhere
        moving = await begun(made, target)
        with pytest.raises(Unavailable, match="is moving"):
            await made.asker.move(made.lease)
        with pytest.raises(Unavailable, match="is moving"):
            await made.asker.resize(made.lease, core=10, memory_mib=None)
        made.daemons.fast()
        await moving
        await made.asker.resize(made.lease, core=10, memory_mib=None)
        await made.program.goes_on()


async def test_no_session_arrives_that_the_broker_did_not_order(
    tmp_path: Path, machine: Machine, state_dir: Path
) -> None:
    async with world(tmp_path, machine, state_dir) as made:
        target, credentials = made.elsewhere, in_process_pool.secret(tmp_path)
        server = made.daemons.servers[target]
        hello = messages.Hello(role="move", name=made.where, lease=made.lease, token="", place=1)
        with pytest.raises(Refused, match="has not ordered"):
            await dial(server.listener.address, credentials, hello, expect="server")
        moving = await begun(made, target)
        (move,) = server.arrivals._moves.values()
        known = messages.Hello(role="move", name=move.source, lease=move.lease, token=move.token, place=1)
        for forged in (
            replace(known, token=""),
            replace(known, token="0" * 64),
            replace(known, name=target),
        ):
            with pytest.raises(Refused, match="has not ordered that"):
                await dial(server.listener.address, credentials, forged, expect="server")
        for unknown in (replace(known, place=2), replace(known, lease="lease-other")):
            with pytest.raises(Unavailable, match="has not ordered yet"):  # it may hear of it later
                await dial(server.listener.address, credentials, unknown, expect="server")
        with pytest.raises(Unavailable, match="has its stream already"):
            await dial(server.listener.address, credentials, known, expect="server")
        made.daemons.fast()
        await moving
        assert made.daemons.files_with(move.token) == []


async def test_a_program_that_does_not_follow_moves_is_not_moved(
    tmp_path: Path, machine: Machine, state_dir: Path
) -> None:
    async with world(tmp_path, machine, state_dir) as made:
        granted = await made.asker.acquire(request="1", holder="old", cards=1, core=10, memory_mib=10)
        with pytest.raises(Refused, match="earlier version"):
            await made.asker.move(granted.lease.lease)


async def test_an_earlier_broker_or_server_refuses_by_name(tmp_path: Path, machine: Machine, state_dir: Path) -> None:
    async with world(tmp_path, machine, state_dir) as made:
        made.broker.service.pool.servers[made.elsewhere].movable = False
        made.daemons.servers[made.elsewhere].movable = False
        with pytest.raises(Refused, match="its version, or its executors', is too old"):
            await made.asker.move(made.lease, server=made.elsewhere)
        made.asker._moves = False
        with pytest.raises(NotSupported, match="upgrade the broker"):
            await made.asker.move(made.lease)


async def test_a_drained_server_takes_nothing_new_and_remembers_it(
    tmp_path: Path, machine: Machine, state_dir: Path
) -> None:
    async with world(tmp_path, machine, state_dir) as made:
        target = made.elsewhere
        await made.asker.cordon(target, cordoned=True)
        with pytest.raises(Refused, match="it is drained"):
            await made.asker.move(made.lease, server=target)
        pool = made.broker.service.pool
        await until(lambda: pool.servers[target].cordoned and pool.servers[target].to_cordon is None)
        await made.daemons.stop(target)
        await made.daemons.start(target)
        await until(lambda: pool.servers[target].away_since is None)
        assert pool.servers[target].cordoned
        with pytest.raises(DoesNotFit):
            await made.asker.acquire(request="1", holder="h", cards=4, core=10, memory_mib=10)
        await made.asker.cordon(target, cordoned=False)
        await made.asker.move(made.lease, server=target)
        await made.program.goes_on()
