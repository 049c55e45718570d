"""Keep a device plugin registered with kubelet: listen, register, and do both again after each restart of kubelet.

A starting kubelet deletes every socket of the directory, makes its own and knows no plugin. From here: kubelet.sock
becomes another file (another inode), or our own socket is gone.
"""

from __future__ import annotations

import asyncio
from pathlib import Path

import grpc.aio
import structlog

from egpu.api import names
from egpu_base.errors import ElasticGPUError, Unavailable
from egpu_base.kubelet.deviceplugin import (
    DIRECTORY,
    KUBELET_SOCKET,
    DevicePlugin,
    Registration,
    register,
    serve_plugin,
)

log = structlog.get_logger(__name__)

ENDPOINT = "elasticgpu-slot.sock"
#: kubelet does not wait for us; a restarted kubelet may be without our slots for this long.
POLL_SECONDS = 0.25
RETRY_SECONDS = 0.5


class Registrar:
    """`run()` keeps `plugin` registered with the kubelet of `kubelet_dir`; `registered` is its present state."""

    def __init__(self, plugin: DevicePlugin, kubelet_dir: Path, *, poll_seconds: float = POLL_SECONDS) -> None:
        self._plugin = plugin
        self._directory = kubelet_dir / DIRECTORY
        self._poll_seconds = poll_seconds
        self._server: grpc.aio.Server | None = None
        self.registered = False

    async def run(self) -> None:
        try:
            while True:
                try:
                    kubelet = await self._listen_and_register()
                except ElasticGPUError as error:
                    log.info("not registered with kubelet yet", reason=str(error))
                    await asyncio.sleep(RETRY_SECONDS)
                    continue
                await self._until_changed(kubelet)
                self.registered = False
                log.info("kubelet has restarted: registering again")
        finally:
            await self._stop()

    def withdraw(self) -> None:
        """Do nothing: without `run` there is no socket, and kubelet gives out no slot."""

    async def _listen_and_register(self) -> tuple[int, int, int] | None:
        kubelet = self._identity(KUBELET_SOCKET)
        if kubelet is None:
            raise Unavailable(f"{self._directory / KUBELET_SOCKET} does not exist: is kubelet running?")
        await self._stop()
        self._server = await serve_plugin(self._plugin, self._directory / ENDPOINT)
        await register(self._directory, Registration(names.SLOT, ENDPOINT, self._plugin.options))
        self.registered = True
        log.info("registered with kubelet", resource=names.SLOT, directory=str(self._directory))
        return kubelet

    async def _until_changed(self, kubelet: tuple[int, int, int] | None) -> None:
        while self._identity(KUBELET_SOCKET) == kubelet and self._identity(ENDPOINT) is not None:  # noqa: ASYNC110
            # Polled: two stat calls, and no watch to lose when the directory itself is made anew.
            await asyncio.sleep(self._poll_seconds)

    async def _stop(self) -> None:
        """End streams at once: a kubelet that reads one of them is the one that has gone."""
        self.registered = False
        if self._server is not None:
            await self._server.stop(None)
            self._server = None

    def _identity(self, socket: str) -> tuple[int, int, int] | None:
        """Return inode and change time: the inode number alone may be reused for the next socket."""
        try:
            found = (self._directory / socket).lstat()
        except OSError:
            return None
        return found.st_dev, found.st_ino, found.st_ctime_ns
