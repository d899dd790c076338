"""Predictions from probes."""

from __future__ import annotations

import pytest

from edge_agent.bench.bench_command import predict
from federated.task import Timing

pytest.importorskip("torch")


def test_prediction_lies_between_neighbouring_probes() -> None:
    from models.menu import menu
    from models.named_network import network

    small, middle, large = menu(network("preresnet", (1, 8, 8), 10), (0.25, 0.5, 1.0), (4,))
    inference = (Timing(small, 1, 0.001), Timing(large, 1, 0.010))
    training = (Timing(small, 8, 0.01), Timing(large, 8, 0.10))
    assert 0.001 < (predict(inference, middle, 1, training=False) or 0) < 0.010
    assert 0.01 < (predict(training, middle, 8, training=True) or 0) < 0.10


def test_probes_files_and_missing_timings_have_no_prediction() -> None:
    from models.menu import menu
    from models.named_network import network

    small, large = menu(network("preresnet", (1, 8, 8), 10), (0.25, 1.0), (4,))
    timings = (Timing(small, 8, 0.01),)
    for training in (False, True):
        assert predict(timings, small, 8, training=training) is None
        assert predict(timings, None, 8, training=training) is None
        assert predict((), large, 8, training=training) is None
