"""The sequence of checks that `edge-agent doctor` runs. Imports no torch.

The device joins no run: at most, the coordinator is asked to send an echo.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from edge_agent.doctor.check import Check
from edge_agent.doctor.connection_checks import wire
from edge_agent.doctor.device_checks import device
from federated.wire import messages

__all__ = ["examine"]


def examine(broker: str | None, run: str | None, name: str, store: Path) -> Iterator[Check]:
    """Run all checks and yield each result at once. Without a broker, check only the device.
    Raises UsageError for a malformed address or name.
    """
    card: messages.Run | None = None
    if broker is not None:
        for found in wire(broker, run, name):
            if isinstance(found, messages.Run):
                card = found
            else:
                yield found
    yield from device(store, card)
