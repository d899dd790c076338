"""Remember the last result of a computation by key, and repeat it only if its inputs changed."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Generic, TypeVar

__all__ = ["LastResults"]

T = TypeVar("T")


class LastResults(Generic[T]):
    """The last result by key, each with its inputs, for which it is computed again if they
    changed.
    """

    def __init__(self) -> None:
        self._found = dict[Hashable, tuple[tuple[object, ...], T]]()

    def get(self, key: Hashable, inputs: tuple[object, ...], compute: Callable[[], T]) -> T:
        known = self._found.get(key)
        if known is None or known[0] != inputs:
            known = self._found[key] = inputs, compute()
        return known[1]

    def trim(self, most: int) -> None:
        """Forget everything if there are more than `most` results: of agents that went away."""
        if len(self._found) > most:
            self._found.clear()
