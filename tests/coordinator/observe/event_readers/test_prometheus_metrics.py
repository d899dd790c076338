"""Counters of the metrics."""

from __future__ import annotations

import re
from pathlib import Path

from prometheus_client import CollectorRegistry, generate_latest

from coordinator.observe.event_readers.prometheus_metrics import REFUSALS, RunMeter
from coordinator.observe.event_readers.reader import ReaderContext
from coordinator.observe.events import AgentRefused, Rejected
from coordinator.settings.config import Config


def test_rejected_messages_are_counted_by_known_kinds(tmp_path: Path) -> None:
    registry = CollectorRegistry()
    meter = RunMeter(ReaderContext(tmp_path, Config(), lambda: 0.0), registry)
    for kind in ("size", "update", "update", "answered"):
        meter.read(Rejected(kind, "pi", "reason", "pi", "t"))
    meter.read(AgentRefused("pi", "reason"))
    found = generate_latest(registry).decode()
    counted = dict(re.findall(r'espalier_rejects_total\{reason="(\w+)"\} ([0-9.]+)', found))
    assert {kind: float(count) for kind, count in counted.items()} == dict.fromkeys(
        REFUSALS, 0.0
    ) | {"size": 1, "update": 2, "joining": 1}
