"""A command whose GPUs are the pool's: `egpu run --pool`."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

from egpu.adapters import compilers
from egpu.adapters.enter import enter
from egpu.adapters.listening import Listen
from egpu.adapters.pool import messages, scratch
from egpu.adapters.pool.bridge import Bridge, Target, fill
from egpu.adapters.pool.lease import HeldLease
from egpu.adapters.pool.security import Credentials
from egpu.core.leasing.records import LeaseRequest
from egpu.errors import ElasticGPUError, NotFound, Unavailable

_FORWARDED: Final = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT, signal.SIGUSR1, signal.SIGUSR2)
_OF_TERMINAL: Final = (signal.SIGINT, signal.SIGQUIT, signal.SIGHUP)


@dataclass(frozen=True)
class Outcome:
    """`status` as a shell counts it (128 + N for signal N); `lease` None when the command never used a GPU."""

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
) -> Outcome:
    """Run a command to its end. The lease is taken at its first CUDA call, for which a broker that does not answer is
    asked again for `wait_seconds`, and given back when it has ended. `ptx`: whether its compilers are led to PTX; None:
    as the pool's cards need it, for which the broker is asked likewise, before the command starts.

    Raises NativeMissing when the remote libraries were not built, InvalidInput for an address beyond this machine
    without TLS.
    """
    credentials.check_address(broker)
    held = HeldLease(
        broker,
        credentials,
        request,
        holder=holder,
        on_taken=lambda lease: note(f"lease {lease.lease}: {_places(lease)}"),
        on_ended=lambda reason: note(f"the lease was taken away: {reason}"),
        on_silence=lambda reason: note(
            f"no lease yet: {reason}; asking again for {wait_seconds:g} s, or --wait (is `egpu broker` running there?)"
        ),
        wait_seconds=wait_seconds,
    )

    async def take() -> Target:
        try:
            return await held.take()
        except Unavailable as error:  # its program would ask again, as one whose lease goes on does
            note(f"no lease: {error}")
            raise NotFound(str(error)) from error
        except ElasticGPUError as error:
            note(f"no lease: {error}")
            raise

    with scratch.directory("egpu-run-", scratch.short_directory()) as directory:
        bridge = Bridge(directory, credentials, take)
        try:
            libraries = fill(directory)
            await bridge.open()
            if ptx is None:
                ptx = await _takes_ptx_alone(held, note)
            told = compilers.giving_ptx(os.environ) if ptx else compilers.plugged(os.environ)
            entry = enter(command, libraries=libraries, environment=told, library_dir=directory)
            if entry.refused:
                note(f"weaker: {entry.refused}; a command that clears its environment does not find the pool's GPUs")
            status = await _execute(entry.arguments)
        finally:
            await held.close()
            await bridge.close()
    return Outcome(status, held.lease)


async def _takes_ptx_alone(held: HeldLease, note: Callable[[str], None]) -> bool:
    """Whether all cards that the lease may get do. Raises as `HeldLease.take`, but not for a silent broker."""
    try:
        cards = await held.cards()
    except Unavailable as error:
        note(f"compilers in the command are not told what cards the pool has (--ptx, --no-ptx): {error}")
        return False
    if cards == "mixed":
        note(
            "the pool has real and simulated cards, and compilers in the command are told of real ones; --ptx tells "
            "them to make PTX, which both take"
        )
    return cards == "simulated"


def _places(lease: messages.LeaseView) -> str:
    return ", ".join(
        f"{card.share.core} % and {card.share.memory_mib} MiB of {card.share.model or card.share.uuid} on {card.server}"
        for card in lease.cards
    )


async def _execute(arguments: Sequence[str]) -> int:
    """Run to the end; signals sent to us go to the command, unless a terminal sent them to it, too."""
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
