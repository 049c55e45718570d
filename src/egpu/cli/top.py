"""`egpu top`: nodes, cards and slices, live on a terminal, or once as plain lines into a pipe."""

import asyncio
import contextlib
import os
import signal
import sys
import termios
import time
import tty
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated

import typer
from rich.text import Text

from egpu.adapters.kubernetes.announced_usage import UsageSources, given_or_announced
from egpu.adapters.slices.published import read_usage
from egpu.api.text import escaped
from egpu.apps.dashboard import DashboardConfig
from egpu.apps.dashboard.usage_sources import read_token
from egpu.cli.components import Kubeconfig
from egpu.cli.layout import wrapped
from egpu.cli.output import console, note
from egpu.cli.snapshot import load_from, reading
from egpu.cli.top_rows import own_rows, rows
from egpu.cli.top_screen import FOOT_LINES, HEAD_LINES, State, frame, keys, plain_lines, pressed, scrolled
from egpu.cli.top_sources import OneNamespace, Source, WholeCluster, not_listed
from egpu.cli.usage_options import TokenFile, Usage
from egpu.core.view import ClusterView, SliceKey, SliceUsage, cluster_view
from egpu_base.api.kubernetes import Pod
from egpu_base.errors import CorruptData, Unavailable
from egpu_base.kubernetes import Client
from egpu_base.runtime import logs

REFRESH_SECONDS = 1.0
STALE_SECONDS = 5.0
"""The oldest data that is shown while keys are pressed."""
PIPED_COLUMNS = 120
ALTERNATE, ORDINARY = "\x1b[?1049h\x1b[?25l", "\x1b[?25h\x1b[?1049l"
"""Escape sequences: to the terminal's alternate screen without a cursor, and back."""


def top(
    kubeconfig: Kubeconfig = None,
    search: Annotated[
        str, typer.Option("--filter", help="Only lines with this text, and the lines of their card and node.")
    ] = "",
    namespace: Annotated[
        str | None,
        typer.Option(
            "-n",
            "--namespace",
            help="Only pods of this namespace. Default: the whole cluster if allowed, else the kubeconfig's namespace.",
        ),
    ] = None,
    usage: Usage = None,
    token_file: TokenFile = None,
) -> None:
    """Show nodes, cards, slices and waiting pods live, with allocated and used GPU. Press h for the keys."""
    live = console.is_terminal and sys.stdin.isatty()
    sources = given_or_announced(usage or (), token_file, kubeconfig)
    with reading():  # report errors before the screen changes
        unseen = asyncio.run(_unseen(kubeconfig, live=live, namespace=namespace))
    if not live:
        _once(kubeconfig, search, unseen, sources)
        return
    asyncio.run(_live(kubeconfig, State(search=search), unseen, sources))


@dataclass(frozen=True)
class _Unseen:
    """The namespace that is shown instead of the whole cluster, and the reason."""

    namespace: str
    why: str


async def _unseen(kubeconfig: Path | None, *, live: bool, namespace: str | None) -> _Unseen | None:
    """Return None to show the whole cluster. Raises Refused for a user who may not list the namespace either."""
    async with Client.from_kubeconfig(kubeconfig) as client:
        if namespace is not None:
            found = _Unseen(namespace, "other namespaces are not selected")
        elif missing := await not_listed(client, "list", *(["watch"] if live else [])):
            found = _Unseen(client.namespace, f"you may not list {', '.join(missing)} of the whole cluster")
        else:
            return None
        await client.list(Pod, namespace=found.namespace)
        return found


def _once(kubeconfig: Path | None, search: str, unseen: _Unseen | None, sources: UsageSources) -> None:
    if unseen is not None:
        found, problems = own_rows(asyncio.run(_pods_of(kubeconfig, unseen.namespace)), search=search), [unseen.why]
    else:
        view, silent = _whole_view(kubeconfig, sources)
        found, problems = rows(view, search=search), [*view.problems, *silent]
    sys.stdout.write("".join(f"{line}\n" for line in plain_lines(found, PIPED_COLUMNS)))
    for problem in problems:
        note(problem, label="problem:" if unseen is None else "not shown:")


async def _pods_of(kubeconfig: Path | None, namespace: str) -> Sequence[Pod]:
    async with Client.from_kubeconfig(kubeconfig) as client:
        return await client.list(Pod, namespace=namespace)


def _whole_view(kubeconfig: Path | None, sources: UsageSources) -> tuple[ClusterView, list[str]]:
    """Return the view, and the reasons of sources that did not answer."""
    snapshot = load_from(kubeconfig)
    usage, silent = dict[SliceKey, SliceUsage](), list[str]()
    token = read_token(sources.token_file)
    for url in sources.urls:
        try:
            usage |= read_usage([url], token=token)
        except (Unavailable, CorruptData) as error:
            silent.append(f"use of some slices is unknown: {error}")
    view = cluster_view(
        snapshot.cache,
        nodes=snapshot.nodes,
        pods=snapshot.pods,
        claims=snapshot.claims,
        gpus=snapshot.gpus,
        usage=usage,
        now=datetime.now(UTC),
        device_claims=snapshot.resource_claims,
    )
    return view, silent


async def _live(kubeconfig: Path | None, state: State, unseen: _Unseen | None, sources: UsageSources) -> None:
    logs.configure("top", level="error")
    config = DashboardConfig(kubeconfig=kubeconfig, usage=sources.urls, token_file=sources.token_file)
    async with Client.from_kubeconfig(kubeconfig) as client:
        source: Source = (
            WholeCluster(client, config)
            if unseen is None
            else OneNamespace(client, unseen.namespace, unseen=unseen.why)
        )
        following = asyncio.create_task(source.run())
        shown = asyncio.create_task(_show(source, state))
        try:
            await asyncio.wait([following, shown], return_when=asyncio.FIRST_COMPLETED)
            if following.done():
                following.result()
            if shown.done():
                shown.result()
        finally:
            following.cancel()
            shown.cancel()
            await asyncio.gather(following, shown, return_exceptions=True)


async def _show(source: Source, state: State) -> None:
    await source.synced()
    woken = asyncio.Event()
    read = bytearray()
    refreshed = time.monotonic()

    def readable() -> None:
        read.extend(os.read(sys.stdin.fileno(), 1024))
        woken.set()

    with _screen(), _listening(readable, woken.set, leave=asyncio.current_task()):
        while not state.done:
            woken.clear()
            columns, lines = os.get_terminal_size()
            pressed_keys = keys(bytes(read))
            read.clear()
            # Scrolling must not wait for another pass over a large cluster.
            if time.monotonic() - refreshed >= (STALE_SECONDS if pressed_keys else REFRESH_SECONDS):
                source.refresh()
                refreshed = time.monotonic()
            for key in pressed_keys:
                state = pressed(state, key, source.listed(state), lines)
                if state.explain is not None:
                    text = tuple(wrapped(map(escaped, source.explained(*state.explain)), columns))
                    state = replace(state, text=text, explain=None, top=0)
            listed = source.listed(state)
            if state.text is None:
                state = scrolled(state, len(listed), max(1, lines - HEAD_LINES - FOOT_LINES))
            _draw(frame(listed, state, summary=source.summary, columns=columns, lines=lines))
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(woken.wait(), REFRESH_SECONDS)


@contextlib.contextmanager
def _screen() -> Generator[None]:
    """Take the whole terminal and read single keys. Restore the terminal at the end, also after an error."""
    terminal = sys.stdin.fileno()
    before = termios.tcgetattr(terminal)
    try:
        tty.setcbreak(terminal)  # Ctrl-C is still a signal
        sys.stdout.write(ALTERNATE)
        yield
    finally:
        termios.tcsetattr(terminal, termios.TCSADRAIN, before)
        sys.stdout.write(ORDINARY)
        sys.stdout.flush()


@contextlib.contextmanager
def _listening(
    readable: Callable[[], None], resized: Callable[[], None], *, leave: asyncio.Task[None] | None
) -> Generator[None]:
    """Call back for keys and a new size. SIGTERM cancels `leave`, so that the terminal is restored."""
    assert leave is not None, "called from a task"
    loop = asyncio.get_running_loop()
    loop.add_reader(sys.stdin.fileno(), readable)
    loop.add_signal_handler(signal.SIGWINCH, resized)
    loop.add_signal_handler(signal.SIGTERM, leave.cancel)
    try:
        yield
    finally:
        loop.remove_reader(sys.stdin.fileno())
        loop.remove_signal_handler(signal.SIGWINCH)
        loop.remove_signal_handler(signal.SIGTERM)


def _draw(lines: Sequence[Text]) -> None:
    """Overwrite the screen from the upper left corner. It is not cleared first, so it does not flicker."""
    with console.capture() as made:
        for line in lines:
            console.print(line, end="\n", no_wrap=True, crop=True, highlight=False)
    painted = made.get().rstrip("\n").replace("\n", "\x1b[K\r\n")
    sys.stdout.write(f"\x1b[H{painted}\x1b[K")
    sys.stdout.flush()
