"""Kubernetes's own programs under tests that install: no workload has pods, and a Service answers at its address."""

import asyncio
import contextlib
import os
import shlex
import subprocess
from collections.abc import AsyncGenerator, Mapping, Sequence
from pathlib import Path
from typing import Final

from egpu_base.kubernetes import Client
from egpu_sim.cluster.kubernetes import PROGRAMS

WITHOUT: Final = ("deployment-controller", "daemonset-controller", "replicaset-controller")
MANAGER: Final = "kube-controller-manager"


def without_workloads(programs: Path, directory: Path) -> Path:
    """Make a directory with the same programs, in which the controller manager makes no pods for workloads: simulated
    nodes have no images."""
    directory.mkdir()
    for name in {*PROGRAMS} - {MANAGER}:
        (directory / name).symlink_to(programs / name)
    controllers = ",".join(["*", *(f"-{one}" for one in WITHOUT)])
    command = shlex.join([str(programs / MANAGER), f"--controllers={controllers}"])
    script = directory / MANAGER
    script.write_text(f'#!/bin/sh\nexec {command} "$@"\n')
    script.chmod(0o755)
    return directory


def with_flags(programs: Path, directory: Path, flags: Mapping[str, Sequence[str]]) -> Path:
    """Make a directory with the same programs, of which some get further flags."""
    directory.mkdir()
    for name in PROGRAMS:
        if name not in flags:
            (directory / name).symlink_to(programs / name)
            continue
        script = directory / name
        script.write_text(f'#!/bin/sh\nexec {shlex.join([str(programs / name), *flags[name]])} "$@"\n')
        script.chmod(0o755)
    return directory


@contextlib.asynccontextmanager
async def answered(client: Client, namespace: str, service: str, port: int) -> AsyncGenerator[None]:
    """Lead port 443 of a Service's address to a port of this machine, as kube-proxy does. The address is one of the
    loopback interface meanwhile. Needs root."""
    found = await client.raw("GET", f"/api/v1/namespaces/{namespace}/services/{service}")
    address: str = found["spec"]["clusterIP"]
    _loopback("add", address)
    try:
        server = await asyncio.start_server(lambda reader, writer: _relay(reader, writer, port), address, 443)
        async with server:
            yield
    finally:
        _loopback("del", address)


def may_answer() -> bool:
    """Return whether this user may give the loopback interface an address."""
    return os.geteuid() == 0


def _loopback(action: str, address: str) -> None:
    subprocess.run(["ip", "address", action, f"{address}/32", "dev", "lo"], check=True, timeout=10)


async def _relay(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, port: int) -> None:
    with contextlib.suppress(OSError):
        other_reader, other_writer = await asyncio.open_connection("127.0.0.1", port)
        await asyncio.gather(_copy(reader, other_writer), _copy(other_reader, writer))


async def _copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    try:
        while data := await reader.read(1 << 16):
            writer.write(data)
            await writer.drain()
    except OSError:
        pass  # the other side shows it
    finally:
        writer.close()
