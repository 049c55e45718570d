"""Moves of leases of which a part dies: the program's counter goes on, and counts once, unless its own executor
died."""

import asyncio
from pathlib import Path

import pytest

from egpu_base.errors import DoesNotFit, Refused, Unavailable
from egpu_sim.machines.machine import Machine
from support import in_process_pool
from support.moving_pool import begun, not_moved, world
from support.waiting import until

pytestmark = pytest.mark.usefixtures("executor_that_moves")


@pytest.mark.parametrize("there", [True, False], ids=["another server", "another card"])
async def test_a_target_that_dies_ends_the_move_and_the_program_goes_on(
    tmp_path: Path, machine: Machine, state_dir: Path, there: bool
) -> None:
    async with world(tmp_path, machine, state_dir) as made:
        source = made.where
        moving = await begun(made, made.elsewhere if there else source)
        made.daemons.kill(f"*/leases/{made.lease}-*")
        await not_moved(made, moving, source)


async def test_a_target_that_hears_late_of_its_move_and_dies_ends_the_move(
    tmp_path: Path, machine: Machine, state_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with world(tmp_path, machine, state_dir) as made:
        source, target = made.where, made.elsewhere
        made.daemons.hears_late(target, monkeypatch)
        moving = await begun(made, target)
        made.daemons.kill(f"*/leases/{made.lease}-*")
        await not_moved(made, moving, source)


async def test_a_target_that_dies_before_the_source_comes_ends_the_move(
    tmp_path: Path, machine: Machine, state_dir: Path
) -> None:
    async with world(tmp_path, machine, state_dir) as made:
        source, target = made.where, made.elsewhere
        server = made.daemons.servers[target]
        moving = asyncio.create_task(made.asker.move(made.lease, server=target))
        await until(lambda: bool(server.arrivals._waiting))
        executor = f"*/leases/{made.lease}-*"
        await until(lambda: bool(made.daemons.processes(executor)))
        made.daemons.kill(executor)
        await not_moved(made, moving, source)


async def test_a_target_server_that_dies_ends_the_move_and_the_program_goes_on(
    tmp_path: Path, machine: Machine, state_dir: Path
) -> None:
    async with world(tmp_path, machine, state_dir) as made:
        source, target = made.where, made.elsewhere
        moving = await begun(made, target)
        await made.daemons.stop(target)
        with pytest.raises((Refused, Unavailable)):
            await moving
        await made.program.goes_on()
        await made.daemons.start(target)
        await not_moved(made, moving, source)


async def test_a_source_server_that_dies_ends_the_move_and_the_program_goes_on(
    tmp_path: Path, machine: Machine, state_dir: Path
) -> None:
    async with world(tmp_path, machine, state_dir) as made:
        source = made.where
        moving = await begun(made, made.elsewhere)
        await made.daemons.stop(source)
        made.daemons.fast()
        await made.daemons.start(source)
        await not_moved(made, moving, source)


async def test_a_broker_that_dies_during_a_move_cancels_it(tmp_path: Path, machine: Machine, state_dir: Path) -> None:
    async with world(tmp_path, machine, state_dir) as made:
        source = made.where
        moving = await begun(made, made.elsewhere)
        await made.restart_broker(in_process_pool.secret(tmp_path))
        # A target that answers before the cancellation reaches it has moved; this one waits for `fast`.
        await until(lambda: made.daemons.places(made.lease) == [f"{source}/{made.lease}"])
        await not_moved(made, moving, source)


async def test_a_broker_that_dies_before_it_hears_that_a_lease_has_left_learns_it(
    tmp_path: Path, machine: Machine, state_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with world(tmp_path, machine, state_dir) as made:
        source, target = made.where, made.elsewhere
        server = made.daemons.servers[source]
        moving = await begun(made, target)
        said = server.report()
        with monkeypatch.context() as quiet:
            quiet.setattr(server, "report", lambda: said)  # the broker hears nothing new
            made.daemons.fast()
            await until(lambda: any(one.moved for one in server.leases.running.values()))
            await made.restart_broker(in_process_pool.secret(tmp_path))
        with pytest.raises(Unavailable):
            await moving
        await made.program.goes_on()
        assert made.where == target
        await until(lambda: made.daemons.places(made.lease) == [f"{target}/{made.lease}-1"])
        await made.settled()
        await made.asker.move(made.lease, server=source)
        await made.program.goes_on()


async def test_a_source_that_dies_after_it_has_left_has_moved(
    tmp_path: Path, machine: Machine, state_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its server finds the last words of its executor when it starts again."""
    async with world(tmp_path, machine, state_dir) as made:
        source, target = made.where, made.elsewhere
        server = made.daemons.servers[source]
        moving = await begun(made, target)
        said = server.report()
        monkeypatch.setattr(server, "report", lambda: said)  # the broker hears nothing new
        made.daemons.fast()
        await until(lambda: any(one.moved for one in server.leases.running.values()))
        await made.daemons.stop(source)
        assert made.broker.service.pool.leases[made.lease].places == ((source, 0),)
        await made.daemons.start(source)
        assert [part.server for part in (await moving).lease.parts] == [target]
        await made.program.goes_on()
        await until(lambda: made.daemons.places(made.lease) == [f"{target}/{made.lease}-1"])


async def test_an_executor_that_dies_during_its_move_ends_its_lease_and_leaves_nothing(
    tmp_path: Path, machine: Machine, state_dir: Path
) -> None:
    async with world(tmp_path, machine, state_dir) as made:
        moving = await begun(made, made.elsewhere)
        made.daemons.kill(f"*/leases/{made.lease}")
        with pytest.raises((DoesNotFit, Refused), match="ended"):
            await moving
        await until(lambda: not made.daemons.places(made.lease))
        await until(lambda: not made.broker.service.pool.ledger.holders())


async def test_a_lease_that_is_released_during_its_move_leaves_nothing(
    tmp_path: Path, machine: Machine, state_dir: Path
) -> None:
    async with world(tmp_path, machine, state_dir) as made:
        moving = await begun(made, made.elsewhere)
        await made.asker.release(made.lease)
        with pytest.raises(DoesNotFit, match="ended"):
            await moving
        await until(lambda: not made.daemons.places(made.lease))
        await until(lambda: not made.broker.service.pool.ledger.holders())
        assert made.daemons.processes() == []
