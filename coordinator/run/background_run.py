"""Execute a run in a thread of its own, so that a Python program can iterate over its events."""

from __future__ import annotations

import queue
import threading
import weakref
from collections.abc import Callable, Iterator
from types import TracebackType

from coordinator.observe.events import (
    AgentsAwaited,
    Event,
    FleetChanged,
    LoopTurned,
    Publish,
    RoundStarted,
    RunEnded,
    skip_repeats,
)
from coordinator.store.control_requests import Stopped

__all__ = ["Channel", "EventStream"]

WAIT = 0.2  # seconds between looks at the queue: on Windows, ctrl-C does not interrupt a wait
FREQUENT = (FleetChanged, LoopTurned)  # published several times a second; not passed on


class Channel:
    """The data that a run's thread and the program share. It refers to neither of them, so that an
    unused stream is garbage-collected.

    items: events, then an error or None at the end.
    stopping: stops the run when set. The run may also check it between events.
    """

    def __init__(self, *, stepwise: bool, stopping: threading.Event | None = None) -> None:
        self.items = queue.SimpleQueue[Event | BaseException | None]()
        self.stopping = stopping or threading.Event()
        self._asked = threading.Semaphore(0) if stepwise else None
        self._stopped = False
        self._awaited: AgentsAwaited | None = None  # the last one since a round started

    def ask(self) -> None:
        """Let a stepwise run continue."""
        if self._asked is not None:
            self._asked.release()

    def stop(self) -> None:
        self.stopping.set()
        self.ask()

    def execute(self, run: Callable[[Publish], object]) -> None:
        """Execute the run in this thread, to its end."""
        try:
            run(skip_repeats(self._deliver))
        except (KeyboardInterrupt, Stopped):
            self.items.put(None)
        except BaseException as error:
            self.items.put(error)
        else:
            self.items.put(None)

    def _deliver(self, event: Event) -> None:
        """Pass an event to the program. If the run is stepwise, wait for the next request.
        Raises KeyboardInterrupt once to stop the run.
        """
        last = isinstance(event, RunEnded)
        if last or (self._is_news(event) and not self.stopping.is_set()):
            self.items.put(event)
            if self._asked is not None and not last:
                self._asked.acquire()
        if self.stopping.is_set() and not (last or self._stopped):
            self._stopped = True
            raise KeyboardInterrupt

    def _is_news(self, event: Event) -> bool:
        if isinstance(event, RoundStarted):
            self._awaited = None
        if isinstance(event, AgentsAwaited):
            known, self._awaited = self._awaited, event
            return event != known
        return not isinstance(event, FREQUENT)


class EventStream(Iterator[Event]):
    """A run in a thread of its own, which yields its events and raises its error.

    The run begins at once. If it is stepwise, it waits at each event until the program asks for the
    next one, as a generator does. `close` stops the run as ctrl-C stops a command, so that it can
    be resumed; so do ctrl-C while the program waits, the end of a `with` block, and the end of the
    program.
    """

    def __init__(self, channel: Channel, run: Callable[[Publish], object]) -> None:
        """Begin the run, and wait for its first event, so that this raises the errors of a run that
        cannot begin. run: executes it, with a reader of its events.
        """
        self._channel = channel
        self._thread = threading.Thread(target=channel.execute, args=(run,), name="run")
        self._thread.daemon = True
        self._thread.start()
        self._finalize = weakref.finalize(self, end_run, channel, self._thread)
        self.ended = False
        self._first = self._take()

    def __next__(self) -> Event:
        event, self._first = self._first, None
        if event is None and not self.ended:
            self._channel.ask()
            event = self._take()
        if event is None:
            raise StopIteration
        return event

    def __enter__(self) -> EventStream:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Stop the run, and wait until it has ended. Do nothing if it has."""
        self.ended, self._first = True, None
        self._finalize()

    def _take(self) -> Event | None:
        """Return the next event, None at the end. Raises the error of the run."""
        try:
            item = self._wait()
        except BaseException:  # ctrl-C in the program
            self.close()
            raise
        if item is None or isinstance(item, BaseException):
            self.close()
            if item is not None:
                raise item
            return None
        return item

    def _wait(self) -> Event | BaseException | None:
        while True:
            try:
                return self._channel.items.get(timeout=WAIT)
            except queue.Empty:
                continue


def end_run(channel: Channel, thread: threading.Thread) -> None:
    """Stop a run, and wait until it has ended."""
    channel.stop()
    if thread is not threading.current_thread():
        thread.join()
