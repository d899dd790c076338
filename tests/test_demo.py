"""The demo as in the README."""

from __future__ import annotations

import pytest

from tests.support.processes import COORDINATOR, Start, result


@pytest.mark.slow
@pytest.mark.processes
@pytest.mark.broker
def test_the_demo(start: Start) -> None:
    """The command of the README gives at least three sizes and all documented numbers."""
    told = result(start(*COORDINATOR, "demo", "--seed", "0", "--format", "json"), 240)
    assert len({a["parameters"] for a in told["agents"]}) >= 3
    assert len(told["agents"]) == 4
    assert told["accuracy"] >= 0.93
    assert told["worst_accuracy"] >= 0.88
    assert told["onnx_max_abs_diff"] <= 1e-5
    assert told["bytes_up"] > 0
    assert told["bytes_down"] > 0
    assert set(told) >= {"rounds", "seconds", "broker"}
    carried = {agent["submodel"] for agent in told["agents"]}
    assert not carried & set(told["untrained"])
