"""The driver's two sockets: kubelet finds the one in plugins_registry, which names the other.

A restarted kubelet looks into the folder again and asks anew. Both sockets are made again should one of them go.
"""

from __future__ import annotations

import asyncio
import contextlib
from pathlib import Path
from typing import Final

import grpc.aio
import structlog

from egpu.api import names
from egpu_base.errors import ElasticGPUError
from egpu_base.kubelet.dra import PLUGINS, REGISTRY, Driver, PluginInfo, serve_driver, serve_registration

log = structlog.get_logger(__name__)

LOOK_SECONDS: Final = 0.5
RETRY_SECONDS: Final = 1.0


class Registration:
    """`run()` keeps `driver` registered; `registered` is its present state."""

    def __init__(self, driver: Driver, kubelet_dir: Path) -> None:
        self._driver = driver
        self._socket = kubelet_dir / PLUGINS / names.DRIVER / "dra.sock"
        self._registry_socket = kubelet_dir / REGISTRY / f"{names.DRIVER}-reg.sock"
        self._servers: list[grpc.aio.Server] = []
        self.registered = False

    async def run(self) -> None:
        try:
            while True:
                try:
                    await self._listen()
                except ElasticGPUError as error:
                    log.warning("kubelet cannot find the driver yet", reason=str(error))
                    await self._stop()
                    await asyncio.sleep(RETRY_SECONDS)
                    continue
                while self._socket.exists() and self._registry_socket.exists():  # noqa: ASYNC110
                    await asyncio.sleep(LOOK_SECONDS)
                log.info("a socket of the driver is gone: listening again")
                await self._stop()
        finally:
            await self._stop()

    async def _listen(self) -> None:
        """Listen on the driver's socket before kubelet can learn of it."""
        self._servers.append(await serve_driver(self._driver, self._socket))
        info = PluginInfo(names.DRIVER, str(self._socket.absolute()))
        self._servers.append(await serve_registration(info, self._registry_socket, self._answered))

    def _answered(self, problem: str) -> None:
        self.registered = not problem
        if problem:
            log.warning("kubelet does not register the driver", reason=problem)
        else:
            log.info("registered with kubelet", driver=names.DRIVER)

    async def _stop(self) -> None:
        self.registered = False
        while self._servers:
            await self._servers.pop().stop(None)
        # kubelet must not find a socket that nobody answers.
        for socket in (self._registry_socket, self._socket):
            with contextlib.suppress(OSError):
                socket.unlink(missing_ok=True)
