"""Predictions from probes."""

from __future__ import annotations

import pytest

from edge_agent.bench.probe_prediction import Prediction
from federated.task import Timing

pytest.importorskip("torch")


def test_prediction_lies_between_neighbouring_probes() -> None:
    from models.families.catalogue import menu, network

    small, middle, large = menu(network("preresnet", (1, 8, 8), 10), (0.25, 0.5, 1.0), (4,))
    found = Prediction(
        (Timing(small, 1, 0.001), Timing(large, 1, 0.010)),
        (Timing(small, 8, 0.01), Timing(large, 8, 0.10)),
    )
    assert 0.001 < (found.latency(middle) or 0) < 0.010
    assert 0.01 < (found.step(middle, 8) or 0) < 0.10


def test_probes_files_and_missing_timings_have_no_prediction() -> None:
    from models.families.catalogue import menu, network

    small, large = menu(network("preresnet", (1, 8, 8), 10), (0.25, 1.0), (4,))
    found = Prediction((Timing(small, 1, 0.001),), (Timing(small, 8, 0.01),))
    assert (found.latency(small), found.step(small, 8)) == (None, None)
    assert (found.latency(None), found.step(None, 8)) == (None, None)
    assert (Prediction().latency(large), Prediction().step(large, 8)) == (None, None)
