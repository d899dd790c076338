"""What is scored of a network with several exits, in the rounds of a real federation."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest

from coordinator import start
from federated.methods.fedavg import fedavg, proposal
from tests.support.federation import Member, digits, federate


def test_each_exit_is_scored_on_the_coordinators_data_and_on_the_devices(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One exit after each of the three sections, and the mean of their logits; the answer that counts is that of the last."""
    method = replace(fedavg(), features=("exits",), menu=partial(proposal, features=("exits",)))
    monkeypatch.setattr(start, "method_named", lambda name: method)
    settings = {"rounds": 1, "method.name": "fedavg", "model.name": "resnet-small", "method.widths": [0.25], "train.steps": 1, "evaluate.local": True}
    done = federate(tmp_path, [Member("a0", digits(0, 1))], settings)
    found = {s.view: s for s in done.result.scores if not s.agent}
    exits = {f"{where}/{view}" for where in ("central", "devices") for view in ("exit0", "exit1", "exit2", "ensemble")}
    assert found.keys() == {"central", "devices", "labels", "before", "after", *exits}
    assert found["central"].loss == found["central/exit2"].loss != found["central/exit0"].loss
    assert found["devices"].accuracy == found["devices/exit2"].accuracy
