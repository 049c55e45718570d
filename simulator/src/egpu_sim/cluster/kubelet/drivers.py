"""Drivers of dynamic resource allocation: found by their sockets in plugins_registry, asked for their names, and told.

As a real kubelet, this one registers a driver as soon as its socket appears, and forgets it when the socket goes. The
slices of a driver that stays away are removed from the API server.
"""

from __future__ import annotations

import asyncio
import stat
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import structlog

from egpu_base.errors import ElasticGPUError, Unavailable
from egpu_base.kubelet.dra import (
    PLUGIN_TYPE,
    REGISTRY,
    SERVICES,
    DriverClient,
    PluginInfo,
    notify_registered,
    plugin_info,
)
from egpu_base.kubernetes import Client
from egpu_base.kubernetes.paths import path_of
from egpu_sim.cluster.dynamic.kinds import ResourceSlice

log = structlog.get_logger(__name__)

LOOK_SECONDS: Final = 0.25
"""Pause between looks at the folder's time of change."""
RETRY_SECONDS: Final = 1.0
WIPE_SECONDS: Final = 30.0
"""The time after which a driver's slices are removed, as a real kubelet does."""


@dataclass(frozen=True)
class _Registered:
    """A driver whose socket of registration is the file of this inode."""

    inode: int
    name: str
    client: DriverClient


class Drivers:
    def __init__(self, kubelet_dir: Path, *, node: str, client: Client) -> None:
        self._directory = kubelet_dir / REGISTRY
        self._node = node
        self._client = client
        self._registered: dict[Path, _Registered] = {}
        self._wiping: dict[str, asyncio.Task[None]] = {}

    def get(self, name: str) -> DriverClient:
        """Return the client of a driver. Raises Unavailable while it is not registered."""
        for one in self._registered.values():
            if one.name == name:
                return one.client
        raise Unavailable(f"DRA driver {name} is not registered")

    async def run(self) -> None:
        """Follow the folder, for ever."""
        self._directory.mkdir(parents=True, exist_ok=True)
        looked_at, waits = 0, False
        try:
            while True:
                changed_at = self._directory.stat().st_mtime_ns
                if waits or changed_at != looked_at:
                    looked_at, waits = changed_at, not await self._update(_sockets(self._directory))
                await asyncio.sleep(RETRY_SECONDS if waits else LOOK_SECONDS)
        finally:
            for task in self._wiping.values():
                task.cancel()
            for one in self._registered.values():
                await one.client.close()

    async def _update(self, sockets: Mapping[Path, int]) -> bool:
        """Register new sockets and forget those that are gone. Return False where one has to be tried again."""
        for path, one in list(self._registered.items()):
            if sockets.get(path) != one.inode:
                del self._registered[path]
                await one.client.close()
                self._wiping[one.name] = asyncio.create_task(self._wipe(one.name), name=f"slices of {one.name}")
                log.info("driver has gone", driver=one.name, socket=str(path))
        done = True
        for path, inode in sockets.items():
            if path not in self._registered:
                done &= await self._register(path, inode)
        return done

    async def _register(self, path: Path, inode: int) -> bool:
        """Return False where it has to be tried again."""
        try:
            info = await plugin_info(path)
            problem = _problem(info, path)
            if not problem:
                one = _Registered(inode, info.name, DriverClient(Path(info.endpoint or path)))
                self._registered[path] = one
                if (wiping := self._wiping.pop(info.name, None)) is not None:
                    wiping.cancel()
            await notify_registered(path, problem)
        except ElasticGPUError as error:
            log.info("driver not registered", socket=str(path), reason=str(error))
            return False
        log.info("driver registered" if not problem else "driver refused", driver=info.name, reason=problem)
        return True

    async def _wipe(self, driver: str) -> None:
        await asyncio.sleep(WIPE_SECONDS)
        params = {"fieldSelector": f"spec.nodeName={self._node},spec.driver={driver}"}
        try:
            await self._client.raw("DELETE", path_of(ResourceSlice, None), params=params)
        except ElasticGPUError as error:
            log.warning("slices not removed", driver=driver, reason=str(error))


def _problem(info: PluginInfo, path: Path) -> str:
    """Return why a plugin cannot be registered; empty if it can."""
    if info.type != PLUGIN_TYPE:
        return f"no handler registered for plugin type: {info.type} at socket {path}"
    if not info.name:
        return "DRA driver name is empty"
    if not set(info.services) & set(SERVICES):
        asked, known = ", ".join(info.services), ", ".join(SERVICES)
        return f"none of the services of the plugin ({asked}) is one of kubelet's ({known})"
    return ""


def _sockets(directory: Path) -> dict[Path, int]:
    """Return the inodes of the sockets in the folder."""
    found: dict[Path, int] = {}
    for path in sorted(directory.iterdir()):
        try:
            status = path.lstat()
        except FileNotFoundError:
            continue
        if stat.S_ISSOCK(status.st_mode) and not path.name.startswith("."):
            found[path] = status.st_ino
    return found
