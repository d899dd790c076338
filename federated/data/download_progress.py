"""Report how much of a data set has been downloaded by torchvision."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from functools import partial
from typing import Any

__all__ = ["Show", "report_downloads", "watch_downloads"]

Show = Callable[[int, int], None]  # of the bytes that have arrived, and of all

INTERVAL = 0.2  # seconds between two reports
_watcher = ContextVar[Show | None]("watcher", default=None)


@contextmanager
def watch_downloads(show: Show) -> Iterator[None]:
    """Let downloads report to `show`. Without it, torchvision prints a bar on standard error."""
    token = _watcher.set(show)
    try:
        yield
    finally:
        _watcher.reset(token)


@contextmanager
def report_downloads(utils: Any) -> Iterator[None]:
    """Report downloads to the watcher. utils: the module of torchvision that performs them."""
    bar, show = utils.tqdm, _watcher.get()
    if show is not None:
        utils.tqdm = partial(Bar, show)
    try:
        yield
    finally:
        utils.tqdm = bar


class Bar:
    """Takes the place of the progress bar that torchvision prints."""

    def __init__(self, show: Show, total: int | None = None, **options: Any) -> None:
        self._show, self._total = show, total or 0
        self._done, self._shown = 0, 0.0

    def __enter__(self) -> Bar:
        return self

    def __exit__(self, *error: object) -> None:
        """Do nothing: the watcher removes its own display."""

    def update(self, size: int) -> None:
        """Count bytes that have arrived."""
        self._done += size
        now = time.monotonic()
        if self._total and (self._done >= self._total or now - self._shown >= INTERVAL):
            self._shown = now
            self._show(self._done, self._total)
