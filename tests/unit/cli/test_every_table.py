"""All tables with long names on a terminal of 80 columns: no line is longer, and no name is broken."""

import asyncio
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from msgspec.structs import replace
from typer.testing import CliRunner

from egpu.adapters.pool import messages
from egpu.adapters.slices.pages import DevicePolicy, DeviceUsage, Mode, Policy, ProcessUsage, Usage, Window
from egpu.api import names
from egpu.api.allocation import CardShare, encode
from egpu.cli import inspection, views
from egpu.cli.app import app
from egpu.cli.selecting import KEYS, What
from egpu.cli.snapshot import Snapshot, snapshot_of
from egpu.cli.top_rows import rows
from egpu.cli.top_screen import State, frame, plain_lines
from egpu.cli.watching import Changes, show_changes
from egpu.core.view import cluster_view
from egpu_base.api.kubernetes import Node, Pod
from egpu_base.api.objects import ObjectMeta
from egpu_sim.machines.shared_memory import StateFile
from support.mig import mig_card
from support.objects import BINPACK, CORE, MEMORY, card, claim, container, gpu_class, placed, pod

COLUMNS = 80
NAMESPACE = "recommendation-research"
PODS = "training-of-the-large-model-7f9c4d5b6-x2x4z", "evaluation-of-the-large-model-5b6d7f9c4-q8kz2"
WAITS = "training-of-the-larger-model-6c8b9d4f7-w5hjn"
CLAIM = "shared-by-all-notebooks-of-the-recommenders"
SERVERS = "ip-10-31-207-114.eu-central-1.compute.internal", "ip-10-31-198-23.eu-central-1.compute.internal"
MODEL = "NVIDIA A100-SXM4-80GB"
LEASE = "lease-0f1e2d3c4b5a69788796a5b4c3d2e1f0"
SHARE = CardShare(
    uuid="GPU-0c5b2f4e-9f3d-4a51-8d0e-6b7f1c2a3d4e", index=0, minor=0, core=30, memory_mib=16384, model=MODEL
)


def cluster() -> Snapshot:
    """A cluster of two nodes with one used card each, a pod that waits for a whole card, and a claim."""
    nodes = [Node(metadata=ObjectMeta(name=name)) for name in SERVERS]
    gpus = [card(name, 0, model=MODEL, memory_mib=81920) for name in SERVERS]
    bare = snapshot_of(nodes, gpus, (), (), ()).cache
    running = list[Pod]()
    for name, node in zip(PODS, SERVERS, strict=True):
        one = pod(name, container("main", {CORE: 30, MEMORY: 16}), namespace=NAMESPACE)
        running.append(placed(one, bare.ranking.choose(bare.request(one), node, BINPACK)))
    asks = {names.GPU_CORE: 100, names.GPU_MEMORY: 80000, names.SLOT: 1}
    late = pod(WAITS, container("main", asks), namespace=NAMESPACE)
    since = (datetime.now(UTC) - timedelta(hours=1)).isoformat()
    asked = {names.DEMAND: encode(bare.request(late).demand)}
    late = replace(late, metadata=replace(late.metadata, annotations=asked, creation_timestamp=since))
    pods, held = [*running, late], claim(CLAIM, namespace=NAMESPACE)
    return snapshot_of(nodes, gpus, [gpu_class("shared", wait=True)], [held], pods)


LEASED = messages.LeaseView(
    lease=LEASE, holder=f"{NAMESPACE} notebook", peer="recommenders", state="active", over_limit=True, parts=(),
    cards=tuple(messages.CardView(server=server, share=SHARE, used_mib=20480) for server in SERVERS),
)  # fmt: skip


class PoolOfOneLease:
    """A broker's answers."""

    async def leases(self) -> tuple[messages.LeaseView, ...]:
        return (LEASED,)

    async def servers(self) -> tuple[messages.ServerView, ...]:
        return tuple(
            messages.ServerView(
                server=server, address="10.31.207.114:7434", host=server, link_mbps=100_000, connected=True, cards=8,
                leases=120, core=800, core_free=770, memory_mib=655360, memory_free_mib=638976,
            )
            for server in SERVERS
        )  # fmt: skip

    async def resize(self, *_: object, **__: object) -> messages.Granted:
        return messages.Granted(number=1, lease=LEASED)


def a_slice() -> inspection.Inspection:
    """A slice with a value in every column."""
    window = Window(epoch_ns=0, period_us=20_000, start_us=5_000, length_us=10_000)
    limits = DevicePolicy(
        uuid=SHARE.uuid, minor=0, mode=Mode.CAP, core_ppm=333_333, memory_limit_bytes=16 << 30, grant_ppm=666_667,
        spill_limit_bytes=8 << 30, overhead_bytes=512 << 20, window=window,
    )  # fmt: skip
    used = DeviceUsage(17179869184, 17179869184, 1234, 0, 4096, 0, -5_000_000, 1, 3600 * 10**9, 1800 * 10**9, 12345678)
    process = ProcessUsage(
        0, 1234567, 1, 1, 1, 1 << 30, 1 << 30, 1 << 30, 5, 7, 0, 4096, 0, 3600 * 10**9, 1800 * 10**9, 12345678
    )
    directory = Path("/var/lib/elastic-gpu/slots/3b0c8e52-4d1f-4c55-9a5e-5f7a2d9c1b60")
    return inspection.Inspection(
        directory=directory, kind=inspection.Kind.SLOT, owner=f"{NAMESPACE}/{PODS[0]} main", record={},
        policy_file=directory / "policy", policy=Policy(7, (limits,)), usage_file=directory / "usage",
        usage=Usage((used,), (process,)), processes=(inspection.SliceProcess(process, None),), executor=None,
        files={"policy": "the limits"}, problems={},
    )  # fmt: skip


def ask(_address: str | None, _found: object, question: Callable[[PoolOfOneLease], Awaitable[object]]) -> object:
    async def answered() -> object:
        return await question(PoolOfOneLease())

    return asyncio.run(answered())


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """A terminal of 80 columns, a cluster, a pool, a slice and a simulated machine."""
    for name, value in {"TTY_COMPATIBLE": "1", "COLUMNS": str(COLUMNS), "NO_COLOR": "1"}.items():
        monkeypatch.setenv(name, value)
    snapshot = cluster()
    for module in ("defrag", "bill", "top"):
        monkeypatch.setattr(f"egpu.cli.{module}.load_from", lambda *_, **__: snapshot)
    for module in ("get", "explain"):
        monkeypatch.setattr(f"egpu.cli.{module}.load_allowed_from", lambda *_, **__: snapshot)
    delay = f"container main: launches of 40 ms, by its own account, delay pod {PODS[0]}, which waits"
    monkeypatch.setattr("egpu.cli.explain.delays_from", lambda *_: [delay])
    instances = pod(WAITS, container("main", {names.MIG_PREFIX + "1g.10gb": 7}), namespace=NAMESPACE)
    cut = snapshot_of([], [mig_card(name, model="A100-80G") for name in SERVERS], (), (), [instances])
    monkeypatch.setattr("egpu.cli.mig.load_from", lambda *_, **__: cut)
    monkeypatch.setattr("egpu.cli.pool.ask", ask)
    monkeypatch.setattr(inspection, "inspect_all", lambda _: [a_slice()])
    monkeypatch.setattr(inspection, "find", lambda *_: a_slice().directory)
    monkeypatch.setattr(inspection, "inspect_slice", lambda _: a_slice())
    machine = StateFile(Path(f"/dev/shm/egpu-sim-{SERVERS[0]}-0123456789ab"), SERVERS[0], 16, 0, 1 << 40, "in use")
    monkeypatch.setattr("egpu.laptop.machines.list_machines", lambda: (machine,))


def fits(text: str, *whole: str) -> None:
    """Check that all lines fit and that these names are whole."""
    lines = text.splitlines()
    assert max(map(len, lines)) <= COLUMNS, text
    for name in whole:
        assert any(name in line for line in lines), f"{name} is not whole in:\n{text}"


@pytest.mark.usefixtures("small")
@pytest.mark.parametrize(
    ("command", "whole"),
    [
        ("get nodes", SERVERS),
        ("get gpus", (*SERVERS, *PODS)),
        ("get claims", (CLAIM,)),
        ("get pods", (*PODS, WAITS)),
        ("get leases", (LEASE, *SERVERS)),
        ("get servers", SERVERS),
        (f"resize {LEASE} --core 30", SERVERS),
        ("inspect", (a_slice().directory.name,)),
        (f"inspect {a_slice().directory.name}", (a_slice().directory.name,)),
        (f"explain pod {NAMESPACE}/{WAITS}", (*SERVERS, WAITS)),
        (f"explain pod {NAMESPACE}/{PODS[0]}", (*SERVERS, PODS[0])),
        (f"defrag {NAMESPACE}/{WAITS}", (*SERVERS, PODS[0])),
        ("mig plan", SERVERS),
        ("bill", (WAITS,)),
        ("bill --by namespace", (NAMESPACE,)),
        ("sim list", (SERVERS[0],)),
    ],
)
def test_on_a_small_terminal_no_table_breaks(command: str, whole: tuple[str, ...]) -> None:
    done = CliRunner().invoke(app, command.split(), catch_exceptions=False)
    assert done.exit_code == 0, done.stderr
    fits(done.stdout, *whole)


@pytest.mark.usefixtures("small")
def test_later_rows_of_a_watch_do_not_break(capsys: pytest.CaptureFixture[str]) -> None:
    """Check that a row with long names, and all later rows, become blocks. No row is shown twice."""
    late, changes = cluster(), Changes(KEYS[What.PODS])
    short = pod("a", container("b", {CORE: 30, MEMORY: 16, names.SLOT: 1}))
    first = replace(short, metadata=replace(short.metadata, annotations=late.pods[-1].annotations))
    above = show_changes(changes.see(views.pods(seen(late, first), None)).narrow(), None)
    heading, row = capsys.readouterr().out.splitlines()[1:]
    assert (heading.split()[:2], row.split()[:2]) == (["NAMESPACE", "POD"], ["default", "a"])
    above = show_changes(changes.see(views.pods(seen(late, first, *late.pods), None)), above)
    text = capsys.readouterr().out
    fits(text, *SERVERS, *PODS, WAITS)
    assert "default" not in text
    gone = show_changes(changes.see(views.pods(seen(late, *late.pods), None)), above)
    assert gone.too_wide(COLUMNS)
    assert "POD         a\n" in capsys.readouterr().out


def seen(snapshot: Snapshot, *pods: Pod) -> Snapshot:
    return snapshot_of(snapshot.nodes, snapshot.gpus, (), (), pods)


def test_top_stays_within_its_screen_and_names_are_whole_in_a_pipe() -> None:
    found = cluster()
    view = cluster_view(found.cache, nodes=found.nodes, pods=found.pods, claims=(), gpus=found.gpus, usage={},
                        now=datetime.now(UTC))  # fmt: skip
    listed = rows(view)
    lines = [line.plain for line in frame(listed, State(), summary="s" * 200, columns=COLUMNS, lines=24)]
    assert len(lines) == 24
    fits("\n".join(lines))
    piped = "\n".join(plain_lines(listed, 40))
    for name in (*SERVERS, *(f"{NAMESPACE}/{name} main" for name in PODS)):
        assert name in piped
