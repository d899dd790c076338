"""The messages that a dry run shows."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from coordinator.broker import local_broker as brokers
from coordinator.run.runner import choose_probes, complete_card
from edge_agent.device.process_limits import Limits
from edge_agent.join.dry_run import perform_dry_run
from edge_agent.join.training_process_control import Job
from federated.data import loading
from federated.method import configure
from federated.methods.catalogue import find_method
from federated.wire import envelope, messages, topics
from federated.wire.links.catalogue import open_link
from models.named_network import network

pytestmark = [pytest.mark.broker, pytest.mark.processes]


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[str]:
    with brokers.start("127.0.0.1", 0, "auto", tmp_path / "broker") as started:
        yield started.address


def show_dry_run(broker: str, name: str, codec: str = "raw", **given: Any) -> dict[str, Any]:
    """Announce a run with a method and a codec, and return what a device would send in it."""
    chosen, card = find_method(name), loading.load_central("digits").card()
    net = network("preresnet", card.inputs, card.outputs, card)
    settings = configure(chosen, {"steps": 1, **given}, rounds=2)
    run = complete_card(
        messages.Run(
            "r", name, "preresnet", net, choose_probes(net, chosen, settings), 8, "s", codec=codec
        ),
        chosen,
        settings,
    )
    link = open_link(broker, "coordinator")
    try:
        link.publish(topics.run("r"), envelope.encode(run), retain=True)
        found: dict[str, Any] = json.loads(
            perform_dry_run(
                Job("a", "digits", None, "0/9", "dirichlet:0.1", 0, "cpu", "", Limits()),
                broker,
                "r",
                as_json=True,
            )
        )
    finally:
        link.close()
    return found


@pytest.mark.slow
def test_the_classes_are_shown_if_the_method_needs_them(broker: str) -> None:
    found = show_dry_run(broker, "heterofl")
    labels = found["train"]["header"]["notes"]["labels"]
    assert labels == sorted(set(labels))
    assert 1 <= len(labels) < 10, "so skewed a shard lacks some classes"
    assert "labels" not in show_dry_run(broker, "fedavg")["train"]["header"]["notes"]


@pytest.mark.slow
def test_the_methods_tensors_are_shown_and_no_calibration_if_statistics_travel_with_the_weights(
    broker: str,
) -> None:
    found = show_dry_run(broker, "scaffold", widths=(0.25,))
    weights = {name for name in found["train"]["tensors"] if not name.startswith("c/")}
    assert {
        f"c/{name}" for name in weights if not name.endswith(("running_mean", "running_var"))
    } == found["train"]["tensors"].keys() - weights
    assert "calibrate" not in found


@pytest.mark.slow
def test_tensors_of_a_methods_own_layers_are_shown(broker: str) -> None:
    assert "sections.0.0.step" in show_dry_run(broker, "nefl-wd")["train"]["tensors"]


@pytest.mark.slow
def test_the_bytes_follow_the_runs_codec(broker: str) -> None:
    """fp16 halves the 4 bytes per value; statistics and scores are not encoded."""
    raw, half = (
        show_dry_run(broker, "fedavg", codec, widths=(0.25,), norm="static")
        for codec in ("raw", "fp16")
    )
    values = sum(math.prod(shape) for shape in raw["train"]["tensors"].values())
    assert raw["train"]["bytes"] - half["train"]["bytes"] == pytest.approx(2 * values, rel=0.1)
    assert {work: half[work]["codec"] for work in ("train", "calibrate", "evaluate")} == {
        "train": "fp16",
        "calibrate": "raw",
        "evaluate": "raw",
    }
    assert {"fp16", "raw"} <= set(half["profile"]["codecs"])
