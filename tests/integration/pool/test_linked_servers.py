"""Networks of one caller's executors on several servers: linked, by the broker's word alone, and reset when a link is
lost."""

import asyncio
import os
import signal
from collections.abc import Iterator

import pytest

from egpu.adapters.executors.networks import TUN
from egpu.adapters.pool import messages
from egpu.adapters.pool.client import dial, parse_address
from egpu.adapters.pool.security import Credentials
from egpu_base.errors import Refused
from support.linked_networks import CALLS, LISTENS, REFUSED, InNetwork, executors, holding, link_processes
from support.local_pool import LocalPool, built, local_pool
from support.waiting import wait_until

pytestmark = [
    pytest.mark.skipif(os.geteuid() != 0, reason="needs root: networks of executors are shared and get a device"),
    pytest.mark.skipif(not TUN.exists(), reason="needs /dev/net/tun"),
    pytest.mark.skipif(not built(), reason="needs the native programs"),
]


@pytest.fixture(scope="module")
def pool() -> Iterator[LocalPool]:
    with local_pool(tls=True) as made:
        made.broker()
        made.serve("one", 1, "--collectives")
        made.serve("two", 1, "--collectives")
        yield made


@pytest.fixture
def pair(pool: LocalPool) -> Iterator[tuple[int, int]]:
    """Ann's executors on both servers."""
    with holding(pool, "ann"), holding(pool, "ann"):
        yield executors(pool, "one")["client/ann"], executors(pool, "two")["client/ann"]


def test_networks_of_one_caller_reach_each_other_by_tcp(pool: LocalPool, pair: tuple[int, int]) -> None:
    one, two = pair
    with InNetwork(one, LISTENS) as listens, InNetwork(two, LISTENS) as other:
        ours, theirs = listens.hear(), other.hear()
        assert ours != theirs
        with InNetwork(two, CALLS, ours) as calls, InNetwork(one, CALLS, theirs) as back:
            assert [calls.hear(), back.hear()] == ["HELLO"] * 2
    with InNetwork(one, REFUSED, "10.1.2.3") as nowhere:
        assert nowhere.hear() == "ConnectionRefusedError"


@pytest.mark.parametrize("who", ["link", "far link", "daemon", "executor"])
def test_who_loses_the_other_side_hears_of_it(pool: LocalPool, pair: tuple[int, int], who: str) -> None:
    one, two = pair
    with InNetwork(one, LISTENS) as listens, InNetwork(two, CALLS, listens.hear()) as calls:
        assert calls.hear() == "HELLO"
        if who == "daemon":
            pool.kill("one")
        elif who == "executor":
            os.killpg(one, signal.SIGKILL)
        else:
            os.kill(link_processes(pool, "two" if who == "far link" else "one")[0], signal.SIGKILL)
        assert calls.hear() == "ConnectionResetError"
        if who == "daemon":
            pool.again("one")
        if who != "executor":
            assert listens.hear() == "ConnectionResetError"
            with InNetwork(two, CALLS, _address(one)) as again:  # the link is back
                assert again.hear() == "HELLO"


def test_a_link_outlives_the_broker(pool: LocalPool, pair: tuple[int, int]) -> None:
    one, two = pair
    with InNetwork(one, LISTENS) as listens, InNetwork(two, CALLS, listens.hear()) as calls:
        assert calls.hear() == "HELLO"
        pool.kill("broker")
        pool.again("broker")
        wait_until(lambda: len(pool.leases()) == 2 and all(one["connected"] for one in pool.servers()))
        calls.process.terminate()
        assert listens.hear() == "closed"  # by its program, not by us
        with InNetwork(two, CALLS, _address(one)) as again:
            assert again.hear() == "HELLO"


def test_the_end_of_a_lease_takes_its_link_away(pool: LocalPool) -> None:
    with holding(pool, "ann"):
        with holding(pool, "ann"):
            one, two = (executors(pool, name)["client/ann"] for name in ("one", "two"))
            listens = InNetwork(one, LISTENS)
            calls = InNetwork(two, CALLS, listens.hear())
            assert calls.hear() == "HELLO"
        with listens, calls:
            kept = calls if executors(pool, "two") else listens
            assert kept.hear() == "ConnectionResetError"
    wait_until(lambda: not link_processes(pool, "one") and not link_processes(pool, "two"))


def test_networks_of_two_callers_are_not_linked(pool: LocalPool) -> None:
    with holding(pool, "ann"), holding(pool, "bob"):
        wait_until(lambda: bool(executors(pool, "one") and executors(pool, "two")))
        one, two = (next(iter(executors(pool, name).values())) for name in ("one", "two"))
        with InNetwork(one, LISTENS) as listens, InNetwork(two, REFUSED, listens.hear()) as calls:
            assert calls.hear() == "ConnectionRefusedError"


@pytest.mark.parametrize(
    ("role", "bearer", "name", "caller", "why"),
    [
        ("client", "ann", "one", "client/ann", "is not server one"),
        ("server", "one", "one", "client/bob", "has not ordered this link"),
        ("server", "zero", "zero", "client/ann", "has not ordered this link"),
        ("server", "zero", "one", "client/ann", "is not server one"),
    ],
)
def test_only_who_the_broker_named_opens_a_link(
    pool: LocalPool, pair: tuple[int, int], role: str, bearer: str, name: str, caller: str, why: str
) -> None:
    flags = pool.flags(role, bearer)
    credentials = Credentials(*(pool.directory / flag for flag in flags[1::2]))
    address = next(one["address"] for one in pool.servers() if one["server"] == "two")

    async def call() -> None:
        hello = messages.Hello(role="link", name=name, caller=caller)
        await dial(parse_address(address), credentials, hello, expect="server/two")

    with pytest.raises(Refused, match=why):
        asyncio.run(call())


def _address(pid: int) -> str:
    with InNetwork(pid, "say(address())") as asked:
        return asked.hear()
