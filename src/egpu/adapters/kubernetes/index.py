"""Objects of a reflector's copy by something that they say, without looking at all of them."""

from collections.abc import Callable
from typing import Generic

from egpu.adapters.kubernetes.client import T
from egpu.adapters.kubernetes.reflector import Change, Reflector


class Index(Generic[T]):
    """Of kinds without a namespace. `key` is what an object is found by, None for one that nobody looks for."""

    def __init__(self, reflector: Reflector[T], key: Callable[[T], str | None]) -> None:
        self._reflector = reflector
        self._key = key
        self._names: dict[str, set[str]] = {}
        reflector.on_change(self._take)

    def get(self, key: str) -> list[T]:
        """In the order of their names."""
        found = (self._reflector.get(name) for name in sorted(self._names.get(key, ())))
        return [one for one in found if one is not None]

    def names(self, key: str) -> list[str]:
        """Their names, in order."""
        return sorted(self._names.get(key, ()))

    def _take(self, change: Change[T]) -> None:
        if change.old is not None and (key := self._key(change.old)) is not None:
            names = self._names.get(key, set())
            names.discard(change.old.name)
            if not names:
                self._names.pop(key, None)
        if change.new is not None and (key := self._key(change.new)) is not None:
            self._names.setdefault(key, set()).add(change.new.name)
