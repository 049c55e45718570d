"""Find objects of a reflector's copy by a value in them, without a look at all of them."""

from collections.abc import Callable
from typing import Generic

from egpu_base.kubernetes.client import T
from egpu_base.kubernetes.reflector import Change, Reflector


class Index(Generic[T]):
    """An index for kinds without a namespace. `key` returns an object's value, or None to leave it out."""

    def __init__(self, reflector: Reflector[T], key: Callable[[T], str | None]) -> None:
        self._reflector = reflector
        self._key = key
        self._names: dict[str, set[str]] = {}
        reflector.on_change(self._take)

    def get(self, key: str) -> list[T]:
        """Return the objects, in the order of their names."""
        found = (self._reflector.get(name) for name in sorted(self._names.get(key, ())))
        return [one for one in found if one is not None]

    def names(self, key: str) -> list[str]:
        """Return their names, in order."""
        return sorted(self._names.get(key, ()))

    def _take(self, change: Change[T]) -> None:
        if change.old is not None and (key := self._key(change.old)) is not None:
            names = self._names.get(key, set())
            names.discard(change.old.name)
            if not names:
                self._names.pop(key, None)
        if change.new is not None and (key := self._key(change.new)) is not None:
            self._names.setdefault(key, set()).add(change.new.name)
