"""Whole runs whose updates are encoded."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from coordinator.store.store import Store
from federated.errors import Unknown
from tests.support.federation import Member, digits, federate

FEDAVG = {"method.name": "fedavg", "train.norm": "tracked", "model.name": "mlp", "train.steps": 2}


def weights(folder: Path) -> dict[str, torch.Tensor]:
    store = Store.open(folder / "runs", "test", read_only=True)
    try:
        return store.read_checkpoint(1)[0]
    finally:
        store.close()


def test_a_run_by_half_precision_is_that_of_raw_values_up_to_its_rounding(tmp_path: Path) -> None:
    """The same two agents train the same round: uploads shrink to half, and each weight of their
    mean is off by at most 2^-11 of the largest.
    """
    sent, found = {}, {}
    for name in ("raw", "fp16"):
        members = [Member(f"a{i}", digits(i, 2)) for i in range(2)]
        made = federate(tmp_path / name, members, {**FEDAVG, "wire.codec": name})
        sent[name], found[name] = made.result.bytes_up, weights(tmp_path / name)
        assert made.result.rounds == 1
    values = 2 * sum(value.numel() for value in found["raw"].values())
    assert sent["raw"] - sent["fp16"] == pytest.approx(2 * values, rel=0.1)
    apart = 0.0
    for home, value in found["raw"].items():
        off = float((found["fp16"][home] - value).abs().max())
        assert off <= 2**-11 * float(value.abs().max()) + 2**-25, home
        apart = max(apart, off)
    assert apart > 0, "nothing was rounded: the codec was not used"


def test_an_agent_without_the_codec_is_not_asked(tmp_path: Path) -> None:
    members = [Member(f"a{i}", digits(i, 3)) for i in range(2)]
    lacking = Member("a2", digits(2, 3), codecs=("raw",))
    given = {**FEDAVG, "wire.codec": "fp16", "fleet.min_agents": 2}
    federate(tmp_path, [*members, lacking], given)
    assert lacking.participant is not None
    assert lacking.participant.refused
    assert "the codec 'fp16', which this device lacks (it has raw)" in str(lacking.participant.over)
    store = Store.open(tmp_path / "runs", "test", read_only=True)
    assert {entry.agent for entry in store.entries(1)} == {"a0", "a1"}
    store.close()


def test_an_unknown_codec_is_said_before_a_run(tmp_path: Path) -> None:
    with pytest.raises(Unknown, match="unknown codec 'fp61'; known: fp16, raw"):
        federate(tmp_path, [Member("a0", digits(0, 2))], {**FEDAVG, "wire.codec": "fp61"})
