"""A run's readers are made before it starts, and one that raises gets no further events."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest

from coordinator.observe.event_readers.reader import ReaderContext
from coordinator.observe.event_readers.run_readers import make_reader, publish_safely
from coordinator.observe.events import Event, LoopTurned
from coordinator.settings.config import Config
from federated.errors import ConfigError


def test_a_factory_that_makes_no_reader_is_an_error(tmp_path: Path) -> None:
    """The reader in place of its factory, a factory without `return`, or one that fails."""
    context = ReaderContext(tmp_path, Config(), lambda: 0.0)
    for make in (lambda event: None, lambda context: {"read": print}):
        with pytest.raises(ConfigError, match=r"event reader 'mine' returned a .* ReaderContext"):
            make_reader("mine", make, context)
    with pytest.raises(ConfigError, match=r"event reader 'mine' .*AttributeError"):
        make_reader("mine", lambda context: context.absent, context)


def test_a_reader_that_raises_is_logged_and_removed(
    caplog: pytest.LogCaptureFixture,
) -> None:
    came: list[Event] = []

    def fail(event: Event) -> None:
        came.append(event)
        raise OSError("no room")

    seen: list[Event] = []
    publish = publish_safely({"broken": fail, "whole": seen.append})
    with caplog.at_level(logging.ERROR):
        publish(LoopTurned())
        publish(LoopTurned())
    assert (came, seen) == ([LoopTurned()], [LoopTurned(), LoopTurned()])
    (record,) = caplog.records
    assert "'broken' failed" in record.getMessage()
    assert "no room" in str(record.exc_info)
