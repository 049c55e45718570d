"""Slices without an agent: one process of the machine shares out their time, and another when that one is gone."""

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from egpu.adapters.local.election import DIRECTORY, Rank, SharingElection
from egpu.adapters.local.sharing import MachineSharing
from egpu.adapters.slices.pages import DevicePolicy, Mode, create_usage, write_policy
from egpu.adapters.slices.sharing import BUSY_SECONDS
from support import pace
from support.slices import uuid

SETTLE_MS, END_MS = 500, 2000
KERNELS_US = ((20, 20), (20, 5000), (500, 100), (5000, 20), (5000, 5000))


def a_slice(directory: Path, name: str, core: int, mode: Mode = Mode.CAP) -> Path:
    """What a run or a lease has in its directory."""
    place = directory / name
    place.mkdir(parents=True)
    line = DevicePolicy(uuid=uuid("1"), minor=0, mode=mode, core_ppm=core * 10_000, memory_limit_bytes=1 << 30)
    write_policy(place / "policy", [line])
    create_usage(place / "usage")
    return place


def percents(
    program: Path, root: Path, works: list[pace.Work], arbitration: str = "fifo", end_ms: int = END_MS
) -> list[list[float]]:
    """The shares of slices below `root`/book, while the one process that leads shares out their time."""
    now = 0.0
    election = SharingElection(root / DIRECTORY, Rank.RUN)
    election.enter(root / "book")
    sharing = MachineSharing(election, clock=lambda: now)

    def look(seconds: float) -> None:
        nonlocal now
        now = seconds
        sharing.step()

    tick_ms = int(BUSY_SECONDS * 1000) + pace.LATE_MS
    return pace.drive(program, works, arbitration=arbitration, end_ms=end_ms, tick_ms=tick_ms, look=look)


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return pace.build(tmp_path_factory.mktemp("pace"))


@pytest.mark.parametrize("arbitration", ["fifo", "timeslice"])
@pytest.mark.parametrize("kernels_us", KERNELS_US)
def test_two_runs_have_their_shares(
    program: Path, tmp_path: Path, arbitration: str, kernels_us: tuple[int, int]
) -> None:
    works = [
        pace.Work(directory=a_slice(tmp_path / "book", f"{core}.slice", core), kernel_us=kernel_us)
        for core, kernel_us in zip((30, 70), kernels_us, strict=True)
    ]
    got = [pace.mean(each, SETTLE_MS, END_MS) for each in percents(program, tmp_path, works, arbitration)]
    assert got == pytest.approx([30, 70], abs=3)


def test_a_tenant_has_its_share_beside_kernels_of_5_ms(program: Path, tmp_path: Path) -> None:
    kernels_us = (5000, 5000, 100, 20, 500)
    works = [
        pace.Work(directory=a_slice(tmp_path / "book", f"lease-{index}", 20), kernel_us=kernel_us)
        for index, kernel_us in enumerate(kernels_us)
    ]
    got = [pace.mean(each, SETTLE_MS, END_MS) for each in percents(program, tmp_path, works)]
    assert got == pytest.approx([20] * 5, abs=3)


@pytest.mark.parametrize("arbitration", ["fifo", "timeslice"])
@pytest.mark.parametrize("kernel_us", [100, 500, 5000])
def test_several_processes_of_one_slice_share_its_time(
    program: Path, tmp_path: Path, arbitration: str, kernel_us: int
) -> None:
    """They take nothing of the others; they may get less than one process would (docs/internals/isolation.md)."""
    works = [
        pace.Work(directory=a_slice(tmp_path / "book", f"{index}", 20), kernel_us=us, processes=processes)
        for index, (us, processes) in enumerate(((kernel_us, 4), (100, 1), (500, 1), (500, 1), (100, 1)))
    ]
    crowd, *others = (pace.mean(each, SETTLE_MS, END_MS) for each in percents(program, tmp_path, works, arbitration))
    assert others == pytest.approx([20] * 4, abs=3)
    assert 10 <= crowd <= 23


def test_share_mode_uses_what_another_run_leaves(program: Path, tmp_path: Path) -> None:
    stop_ms = 1000
    works = [
        pace.Work(directory=a_slice(tmp_path / "book", "a.slice", 30, Mode.SHARE), kernel_us=500),
        pace.Work(directory=a_slice(tmp_path / "book", "b.slice", 70), kernel_us=500, pause_ms=(stop_ms, END_MS)),
    ]
    borrower, lender = percents(program, tmp_path, works)
    assert pace.mean(borrower, SETTLE_MS, stop_ms) == pytest.approx(30, abs=3)
    assert pace.mean(lender, SETTLE_MS, stop_ms) == pytest.approx(70, abs=3)
    assert pace.mean(borrower, stop_ms + 100, END_MS) >= 95


LEADER = """
import sys
from pathlib import Path
from egpu.adapters.local.election import Rank, SharingElection
election = SharingElection(Path(sys.argv[1]), Rank.RUN)
print(election.leads(), flush=True)
sys.stdin.read()
"""


@pytest.fixture
def leader(tmp_path: Path) -> Iterator[subprocess.Popen[str]]:
    """Another process that leads."""
    command = [sys.executable, "-c", LEADER, str(tmp_path / DIRECTORY)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as child:
        assert child.stdout is not None
        assert child.stdout.readline() == "True\n"
        yield child
        child.kill()


def test_one_leads_and_its_death_frees_the_lead(tmp_path: Path, leader: subprocess.Popen[str]) -> None:
    other = SharingElection(tmp_path / DIRECTORY, Rank.RUN)
    assert not other.leads()
    leader.kill()
    leader.wait()
    assert other.leads()
    assert not SharingElection(tmp_path / DIRECTORY, Rank.RUN).leads()
    other.leave()
    assert SharingElection(tmp_path / DIRECTORY, Rank.RUN).leads()


def test_a_daemon_leads_before_a_run_and_an_agent_before_all(tmp_path: Path) -> None:
    run, serve, agent = (SharingElection(tmp_path / DIRECTORY, rank) for rank in (Rank.RUN, Rank.SERVE, Rank.AGENT))
    assert run.leads()
    assert serve.leads()
    assert not run.leads()
    assert agent.leads()
    assert (run.leads(), serve.leads()) == (False, False)
    agent.leave()
    assert (run.leads(), serve.leads()) == (False, True)
    serve.leave()
    assert run.leads()


def test_who_leads_sees_all_that_entered_and_forgets_what_is_gone(tmp_path: Path) -> None:
    policies = [a_slice(tmp_path / place, "one", 50) / "policy" for place in ("book", "leases")]
    election = SharingElection(tmp_path / DIRECTORY, Rank.RUN)
    for policy in policies:
        election.enter(policy.parents[1])
        election.enter(policy.parents[1])
    a_slice(tmp_path / "leases", ".gone-two", 50)
    assert {one.policy.resolve() for one in election.slices()} == set(policies)
    (tmp_path / "book").rename(tmp_path / "elsewhere")
    assert [one.policy.resolve() for one in election.slices()] == [policies[1]]
    assert len(list((tmp_path / DIRECTORY).glob("*.slices"))) == 1
