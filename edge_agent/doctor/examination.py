"""The sequence of checks of `edge-agent doctor`. Does not import torch.

The device joins no run; it only requests an echo from the coordinator.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from edge_agent.doctor.check import Check
from edge_agent.doctor.connection_checks import check_connection
from edge_agent.doctor.device_checks import check_device
from federated.wire import messages

__all__ = ["examine"]


def examine(broker: str | None, run: str | None, name: str, store: Path) -> Iterator[Check]:
    """Run all checks and yield each result at once. Without a broker, check only the device.
    Raises UsageError for a malformed address or name.
    """
    card: messages.Run | None = None
    if broker is not None:
        for result in check_connection(broker, run, name):
            if isinstance(result, messages.Run):
                card = result
            else:
                yield result
    yield from check_device(store, card)
