"""The reflectors of one process: started together, ready together."""

from collections.abc import Callable
from typing import Any

from egpu_base.kubernetes.client import Client, T
from egpu_base.kubernetes.lists import Large, same
from egpu_base.kubernetes.reflector import Reflector
from egpu_base.runtime.endless import EndlessTasks


class Caches:
    """`add` the kinds a process needs, register handlers, then `run()`."""

    def __init__(self, client: Client) -> None:
        self.client = client
        self._reflectors: list[Reflector[Any]] = []

    def add(
        self,
        kind: type[T],
        *,
        namespace: str | None = None,
        labels: str | None = None,
        fields: str | None = None,
        packed: bool = False,
        transform: Callable[[T], T] = same,
        large: Large[T] = None,
        optional: bool = False,
    ) -> Reflector[T]:
        """Add a `Reflector` with these arguments."""
        reflector = Reflector(
            self.client,
            kind,
            namespace=namespace,
            labels=labels,
            fields=fields,
            packed=packed,
            transform=transform,
            large=large,
            optional=optional,
        )
        self._reflectors.append(reflector)
        return reflector

    async def run(self) -> None:
        """Run for ever; a handler's error ends it."""
        async with EndlessTasks() as group:
            for reflector in self._reflectors:
                group.start(reflector.run())

    async def synced(self) -> None:
        """Wait until every kind has been listed once."""
        for reflector in self._reflectors:
            await reflector.synced.wait()

    def not_ready(self) -> str | None:
        """Return what is still missing, for /readyz."""
        missing = [one.kind.__name__ for one in self._reflectors if not one.synced.is_set()]
        return f"not listed yet: {', '.join(missing)}" if missing else None
