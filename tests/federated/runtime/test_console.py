"""Signals of the console."""

from __future__ import annotations

import signal

import pytest

from federated.runtime.console import handle_sigterm


def test_sigterm_interrupts_only_within_the_context() -> None:
    before = signal.getsignal(signal.SIGTERM)
    with pytest.raises(KeyboardInterrupt), handle_sigterm():
        signal.raise_signal(signal.SIGTERM)
    assert signal.getsignal(signal.SIGTERM) == before
