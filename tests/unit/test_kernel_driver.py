"""When a container must be created again to have NVIDIA's driver."""

import asyncio
from pathlib import Path

import pytest

from egpu.adapters.cards.kernel_driver import container_is_too_old, has_libraries

TICK = 0.01


async def ends(version: Path, lacks: list[bool], *, again: float = 60.0, seconds: float = 0.3) -> bool:
    """Whether the container ends within the time; `lacks` may be changed meanwhile."""
    try:
        async with asyncio.timeout(seconds):
            await container_is_too_old(lambda: lacks[0], version=version, look=TICK, again=again)
    except TimeoutError:
        return False
    return True


async def test_a_container_that_began_before_the_driver_ends_when_it_comes(tmp_path: Path) -> None:
    version = tmp_path / "version"
    waiting = asyncio.create_task(ends(version, [True], seconds=5))
    await asyncio.sleep(10 * TICK)
    assert not waiting.done(), "there is no driver"
    version.touch()
    assert await waiting


async def test_a_container_that_has_the_libraries_goes_on(tmp_path: Path) -> None:
    version = tmp_path / "version"
    assert not await ends(version, [False])
    version.touch()
    assert not await ends(version, [False])


async def test_with_the_driver_and_without_its_libraries_it_ends_rarely(tmp_path: Path) -> None:
    version = tmp_path / "version"
    version.touch()
    assert not await ends(version, [True])
    assert await ends(version, [True], again=5 * TICK, seconds=5)


def test_libraries_are_found_where_a_runtime_puts_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("LD_LIBRARY_PATH", raising=False)
    assert not has_libraries([str(tmp_path)])
    (tmp_path / "libcuda.so.1").touch()
    assert has_libraries([str(tmp_path)])
    monkeypatch.setenv("LD_LIBRARY_PATH", f"/none:{tmp_path}")
    assert has_libraries([])
