"""What both commands have in common."""

from __future__ import annotations

import signal

import pytest

from federated.runtime.console import terminable


def test_a_service_managers_end_interrupts_and_afterwards_ends_as_before() -> None:
    before = signal.getsignal(signal.SIGTERM)
    with pytest.raises(KeyboardInterrupt), terminable():
        signal.raise_signal(signal.SIGTERM)
    assert signal.getsignal(signal.SIGTERM) == before
