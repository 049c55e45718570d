"""A command whose GPUs are the pool's: `egpu run --pool`."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from egpu.adapters.executors import libraries
from egpu.adapters.pool import messages, scratch
from egpu.adapters.pool.bridge import TOLD, Bridge, Target, fill
from egpu.adapters.pool.lease import HeldLease
from egpu.adapters.pool.security import Credentials
from egpu.adapters.programs.enter import enter
from egpu.core.leasing.records import LeaseRequest
from egpu_base import compilers
from egpu_base.errors import ElasticGPUError, NotFound, Unavailable
from egpu_base.http.listening import Listen

_FORWARDED: Final = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT, signal.SIGUSR1, signal.SIGUSR2)
_UNSURE: Final = "; its kind was unknown before the command started: --ptx or --no-ptx configures compilers"
_OF_TERMINAL: Final = (signal.SIGINT, signal.SIGQUIT, signal.SIGHUP)


@dataclass(frozen=True)
class Outcome:
    """The result. `status` is the shell's (128 + N for signal N); `lease` is None if the command never used a GPU."""

    status: int
    lease: messages.LeaseView | None


async def run_in_pool(
    command: Sequence[str],
    broker: Listen,
    credentials: Credentials,
    request: LeaseRequest,
    *,
    holder: str,
    note: Callable[[str], None],
    wait_seconds: float,
    ptx: bool | None = None,
    making_ptx: Callable[[Mapping[str, str]], dict[str, str]],
) -> Outcome:
    """Run a command to its end. The lease is taken at its first CUDA call, with retries for `wait_seconds` while the
    broker is silent, and released at the end. `ptx`: whether its compilers are configured for PTX; None: as the pool's
    cards need it, which the broker is asked likewise, before the command starts.

    Raises NativeMissing when the remote libraries are not built, InvalidInput for an address beyond this machine
    without TLS.
    """
    credentials.check_address(broker)
    unsure: str = ""
    held = HeldLease(
        broker,
        credentials,
        request,
        holder=holder,
        on_taken=lambda lease: _tell_of(lease, command[0], note, unsure),
        on_ended=lambda reason: note(f"the broker ended the lease: {reason}"),
        on_silence=lambda reason: note(f"no lease yet: {reason}; retrying for {wait_seconds:g} s (--wait)"),
        wait_seconds=wait_seconds,
    )

    async def take() -> Target:
        try:
            return await held.take()
        except Unavailable as error:  # a program with a living lease would retry
            note(f"no lease: {error}")
            raise NotFound(str(error)) from error
        except ElasticGPUError as error:
            note(f"no lease: {error}")
            raise

    with scratch.directory("egpu-run-", scratch.short_directory()) as directory:
        bridge = Bridge(directory, credentials, take, refusal=TOLD, follow=held.follow)
        try:
            preloaded = fill(directory)
            await bridge.open()
            if ptx is None:
                cards = await _cards(held, note)
                ptx, unsure = cards == "simulated", "" if cards else _UNSURE
            told = making_ptx(os.environ) if ptx else compilers.plugged(os.environ)
            entry = enter(command, libraries=preloaded, environment=told, library_dir=directory)
            if entry.refused:
                note(f"limited: {entry.refused}; a command that clears its environment does not find the pool's GPUs")
            status = await _execute(entry.arguments)
        finally:
            await held.close()
            await bridge.close()
    return Outcome(status, held.lease)


async def _cards(held: HeldLease, note: Callable[[str], None]) -> messages.Cards | None:
    """Return the kind of the possible cards of the lease, None if the broker is silent. Raises as `HeldLease.take`,
    except for silence."""
    try:
        cards = await held.cards()
    except Unavailable:  # the user was told at the first try, and is told the end of it if the command needs a card
        return None
    if cards == "mixed":
        note(
            "the pool has real and simulated cards, and compilers in the command work for real ones; use --ptx to "
            "make them emit PTX, which both run"
        )
    return cards


def _tell_of(lease: messages.LeaseView, command: str, note: Callable[[str], None], unsure: str) -> None:
    """Tell the user where the lease is (`unsure`: and what is not known of its cards), and which libraries there differ
    from those of the command's packages."""
    note(f"lease {lease.lease}: {_places(lease)}{unsure}")
    own = libraries.of_command(command)
    for part in lease.parts:
        if differing := libraries.differences(own, part.libraries):
            note(
                f"libraries of {part.server} differ from the command's packages: {', '.join(differing)}; "
                "the last bits of results may differ"
            )


def _places(lease: messages.LeaseView) -> str:
    return ", ".join(
        f"{card.share.core} % and {card.share.memory_mib} MiB of {card.share.model or card.share.uuid} on {card.server}"
        for card in lease.cards
    )


async def _execute(arguments: Sequence[str]) -> int:
    """Run to the end; forward signals to the command, except those that a terminal sent to it, too."""
    loop = asyncio.get_running_loop()
    child = await asyncio.create_subprocess_exec(*arguments)
    shared = sys.stdin is not None and sys.stdin.isatty()

    def forward(number: signal.Signals) -> None:
        if not (shared and number in _OF_TERMINAL):
            with contextlib.suppress(ProcessLookupError):
                child.send_signal(number)

    for number in _FORWARDED:
        loop.add_signal_handler(number, forward, number)
    try:
        code = await child.wait()
    finally:
        for number in _FORWARDED:
            loop.remove_signal_handler(number)
    return code if code >= 0 else 128 - code
