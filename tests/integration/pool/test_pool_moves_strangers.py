"""Moves that a stranger, another tenant or another server asks for."""

import asyncio
import os
from pathlib import Path
from typing import Final, cast

import pytest
from msgspec.structs import replace

from egpu.adapters.pool import authority, messages
from egpu.adapters.pool.client import dial
from egpu.adapters.pool.security import Credentials, Role
from egpu.core.leasing.records import MoveRecord
from egpu_base.errors import NotFound, Refused, Unavailable
from egpu_sim.machines.machine import Machine
from support import in_process_pool
from support.moving_pool import World, begun, not_moved, world
from support.waiting import until

pytestmark = pytest.mark.usefixtures("executor_that_moves")

OUTCOMES: Final = ("moves", "target dies", "source's server dies")


def hello_of(move: MoveRecord) -> messages.Hello:
    """Return the hello with which the source of a move comes."""
    return messages.Hello(role="move", name=move.source, lease=move.lease, token=move.token, place=move.place)


def ordered(made: World, target: str) -> MoveRecord:
    (move,) = made.daemons.servers[target].arrivals._moves.values()
    return move


async def test_an_order_opens_nothing_after_its_move(tmp_path: Path, machine: Machine, state_dir: Path) -> None:
    async with world(tmp_path, machine, state_dir) as made:
        source, target, credentials = made.where, made.elsewhere, in_process_pool.secret(tmp_path)
        moving = await begun(made, target)
        old = hello_of(ordered(made, target))
        made.daemons.fast()
        await moving
        await made.settled()
        for server in (source, target):
            with pytest.raises((Refused, Unavailable), match="has not ordered"):
                await dial(made.daemons.servers[server].listener.address, credentials, old, expect="server")
        moving = await begun(made, source)
        new = ordered(made, source)
        assert new.token != old.token
        for replayed in (replace(old, name=target, place=new.place), replace(old, place=new.place)):
            with pytest.raises(Refused, match="has not ordered that"):
                await dial(made.daemons.servers[source].listener.address, credentials, replayed, expect="server")
        made.daemons.fast()
        await moving
        await made.program.goes_on()


async def test_a_stolen_order_is_of_no_use_to_others(tmp_path: Path, machine: Machine, state_dir: Path) -> None:
    async with world(tmp_path, machine, state_dir, tls=True) as made:
        target = made.elsewhere
        moving = await begun(made, target)
        stolen = hello_of(ordered(made, target))
        for thief in ("client/eve", "server/three", "admin/mallory"):
            with pytest.raises(Refused, match="has not ordered that"):
                await dial(
                    made.daemons.servers[target].listener.address,
                    _credentials(tmp_path, thief),
                    stolen,
                    expect="server",
                )
        made.daemons.fast()
        await moving
        await made.program.goes_on()


async def test_a_tenant_moves_no_lease_of_another(tmp_path: Path, machine: Machine, state_dir: Path) -> None:
    async with world(tmp_path, machine, state_dir, tls=True) as made:
        eve = await in_process_pool.client(made.broker, _credentials(tmp_path, "client/eve"))
        for asked in (eve.move(made.lease, server=made.elsewhere), eve.movable(made.lease)):
            with pytest.raises(NotFound, match="there is no lease"):
                await asked
        assert made.broker.service.pool.leases[made.lease].second is None
        assert all(made.daemons.servers[name].arrivals._moves == {} for name in ("one", "two"))
        await eve.close()
        await made.program.goes_on()


@pytest.mark.parametrize("outcome", OUTCOMES)
async def test_only_its_server_reaches_what_a_move_needs_and_it_goes_with_it(
    tmp_path: Path, machine: Machine, state_dir: Path, outcome: str
) -> None:
    async with world(tmp_path, machine, state_dir) as made:
        source, target = made.where, made.elsewhere
        moving = await begun(made, target)
        token = ordered(made, target).token
        _check_private(state_dir)
        assert len(made.daemons.places(made.lease)) == 2
        await _end(made, moving, outcome, source)
        await until(lambda: len(made.daemons.places(made.lease)) == 1)
        _check_private(state_dir)
        assert made.daemons.files_with(token) == []
        await made.asker.release(made.lease)
        await until(lambda: not made.daemons.places(made.lease))


async def _end(made: World, moving: "asyncio.Task[messages.Arrived]", outcome: str, source: str) -> None:
    if outcome == "target dies":
        made.daemons.kill(f"*/leases/{made.lease}-*")
    if outcome == "source's server dies":
        await made.daemons.stop(source)
        await made.daemons.start(source)
    if outcome == "moves":
        made.daemons.fast()
        await moving
    else:
        await not_moved(made, moving, source)


def _check_private(state_dir: Path) -> None:
    """Check the sockets through which servers move their executors' sessions."""
    found = [path.stat() for path in state_dir.glob("*/leases/lease-*/move.sock")]
    assert {(status.st_mode & 0o777, status.st_uid) for status in found} == {(0o600, os.getuid())}


def _credentials(directory: Path, name: str) -> Credentials:
    role, _, who = name.partition("/")
    return authority.issue(directory / "pki", cast(Role, role), who)
