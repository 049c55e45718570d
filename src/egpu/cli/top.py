"""`egpu top`: nodes, cards and slices, live on a terminal; once, as plain lines, into a pipe."""

import asyncio
import contextlib
import os
import signal
import sys
import termios
import tty
from collections.abc import Callable, Generator, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated

import typer
from rich.text import Text

from egpu.adapters.kubernetes import Client
from egpu.adapters.usage import read_usage
from egpu.apps.dashboard import DashboardConfig
from egpu.apps.dashboard.knowledge import Knowledge, read_token
from egpu.cli.components import Kubeconfig
from egpu.cli.output import console, note
from egpu.cli.snapshot import load_from
from egpu.cli.top_rows import Row, rows
from egpu.cli.top_screen import FOOT_LINES, HEAD_LINES, State, broken, frame, keys, plain_line, pressed, scrolled
from egpu.core.preemption.explaining import explain_with_preemption
from egpu.core.view import cluster_view
from egpu.runtime import logs

REFRESH_SECONDS = 1.0
PIPED_COLUMNS = 120
ALTERNATE, ORDINARY = "\x1b[?1049h\x1b[?25l", "\x1b[?25h\x1b[?1049l"
"""The terminal's other screen without a cursor, and back."""


def top(
    kubeconfig: Kubeconfig = None,
    search: Annotated[str, typer.Option("--filter", help="Only lines with this text, with what they belong to.")] = "",
    usage: Annotated[
        list[str] | None, typer.Option(metavar="URL|FILE", help="Where use is published, as for `egpu bill`.")
    ] = None,
    token_file: Annotated[Path | None, typer.Option(help="A bearer token, for agents that ask for one.")] = None,
) -> None:
    """Nodes, cards and slices, live: what is given, what is used, who waits. Press h for its keys."""
    if not console.is_terminal or not sys.stdin.isatty():
        _once(kubeconfig, search, usage or [], token_file)
        return
    load_from(kubeconfig)  # what is wrong is said before the screen is taken
    asyncio.run(_live(kubeconfig, State(search=search), usage or [], token_file))


def _once(kubeconfig: Path | None, search: str, usage: Sequence[str], token_file: Path | None) -> None:
    snapshot = load_from(kubeconfig)
    view = cluster_view(
        snapshot.cache,
        nodes=snapshot.nodes,
        pods=snapshot.pods,
        claims=snapshot.claims,
        gpus=snapshot.gpus,
        usage=read_usage(usage, token=read_token(token_file)),
        now=datetime.now(UTC),
    )
    for row in rows(view, search=search):
        sys.stdout.write(f"{plain_line(row, PIPED_COLUMNS)}\n")
    for problem in view.problems:
        note(problem, label="problem:")


async def _live(kubeconfig: Path | None, state: State, usage: Sequence[str], token_file: Path | None) -> None:
    logs.configure("top", level="error")
    config = DashboardConfig(kubeconfig=kubeconfig, usage=tuple(usage), token_file=token_file)
    async with Client.from_kubeconfig(kubeconfig) as client:
        knowledge = Knowledge(client, config)
        following = asyncio.create_task(knowledge.run())
        shown = asyncio.create_task(_show(knowledge, state))
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


async def _show(knowledge: Knowledge, state: State) -> None:
    await knowledge.caches.synced()
    woken = asyncio.Event()
    read = bytearray()

    def readable() -> None:
        read.extend(os.read(sys.stdin.fileno(), 1024))
        woken.set()

    with _screen(), _listening(readable, woken.set, leave=asyncio.current_task()):
        while not state.done:
            woken.clear()
            columns, lines = os.get_terminal_size()
            pressed_keys = keys(bytes(read))
            read.clear()
            for key in pressed_keys:
                state = pressed(state, key, _listed(knowledge, state), lines)
                if state.explain is not None:
                    text = broken(_explained(knowledge, *state.explain), columns)
                    state = replace(state, text=text, explain=None, top=0)
            listed = _listed(knowledge, state)
            if state.text is None:
                state = scrolled(state, len(listed), max(1, lines - HEAD_LINES - FOOT_LINES))
            _draw(frame(listed, state, totals=knowledge.view.totals, columns=columns, lines=lines))
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(woken.wait(), REFRESH_SECONDS)


def _listed(knowledge: Knowledge, state: State) -> list[Row]:
    return rows(knowledge.view, order=state.order, search=state.search, tree=state.tree)


def _explained(knowledge: Knowledge, namespace: str, name: str) -> list[str]:
    pod = knowledge.pods.get(name, namespace)
    if pod is None:
        return [f"there is no pod {namespace}/{name} any more"]
    return explain_with_preemption(pod, knowledge.scene()).lines()


@contextlib.contextmanager
def _screen() -> Generator[None]:
    """The whole terminal, each key as it is pressed; on leaving, however that is, as it was before."""
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
    """Told of keys and of another size; SIGTERM cancels `leave`, so that the terminal is put in order."""
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
    """From the upper left corner, each line to its end: nothing is cleared first, so nothing flickers."""
    with console.capture() as made:
        for line in lines:
            console.print(line, end="\n", no_wrap=True, crop=True, highlight=False)
    painted = made.get().rstrip("\n").replace("\n", "\x1b[K\r\n")
    sys.stdout.write(f"\x1b[H{painted}\x1b[K")
    sys.stdout.flush()
