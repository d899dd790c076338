"""The messages that a dry run shows."""

from __future__ import annotations

import math
from collections.abc import Callable
from contextlib import closing
from typing import Any

import pytest

from coordinator.run.runner import choose_probes, complete_card
from federated.data import loading
from federated.method import configure
from federated.methods.catalogue import find_method
from federated.wire import envelope, messages, topics
from federated.wire.links.catalogue import open_link
from models.named_network import network
from tests.support.processes import AGENT, Start, result
from tests.support.waiting import PATIENCE

pytestmark = [pytest.mark.broker, pytest.mark.processes]


Show = Callable[..., dict[str, Any]]


@pytest.fixture
def show_dry_run(broker: str, start: Start) -> Show:
    """Announce a run with a method and a codec, and return what a device would send in it."""

    def show(name: str, codec: str = "raw", **given: Any) -> dict[str, Any]:
        chosen, card = find_method(name), loading.load_central("digits").card()
        net = network("resnet-small", card.inputs, card.outputs, card)
        settings = configure(chosen, {"steps": 1, **given}, rounds=2)
        probes = choose_probes(net, chosen, settings)
        run = messages.Run("r", name, "resnet-small", net, probes, 8, "s", codec=codec)
        run = complete_card(run, chosen, settings)
        with closing(open_link(broker, "coordinator")) as link:
            link.publish(topics.run("r"), envelope.encode(run), retain=True)
            shard = ["--data", "digits", "--shard", "0/9", "--partition", "dirichlet:0.1"]
            where = ["--broker", broker, "--run", "r", "--name", "a", "--seed", "0"]
            return result(start(*AGENT, "join", "--dry-run", *where, *shard, "--format", "json"))

    return show


@pytest.mark.slow
def test_the_classes_are_shown_if_the_method_needs_them(show_dry_run: Show) -> None:
    found = show_dry_run("heterofl")
    labels = found["train"]["header"]["notes"]["labels"]
    assert labels == sorted(set(labels))
    assert 1 <= len(labels) < 10, "so skewed a shard lacks some classes"


@pytest.mark.slow
def test_the_methods_tensors_are_shown_and_no_calibration_if_statistics_travel_with_the_weights(
    show_dry_run: Show,
) -> None:
    found = show_dry_run("scaffold", widths=(0.25,))
    weights = {name for name in found["train"]["tensors"] if not name.startswith("c/")}
    assert {
        f"c/{name}" for name in weights if not name.endswith(("running_mean", "running_var"))
    } == found["train"]["tensors"].keys() - weights
    assert "calibrate" not in found


@pytest.mark.slow
def test_tensors_of_a_methods_own_layers_are_shown(show_dry_run: Show) -> None:
    assert "sections.0.0.step" in show_dry_run("nefl-wd")["train"]["tensors"]


@pytest.mark.slow
def test_the_bytes_follow_the_runs_codec(show_dry_run: Show) -> None:
    """fp16 halves the 4 bytes per value; statistics and scores are not encoded."""
    raw, half = (
        show_dry_run("fedavg", codec, widths=(0.25,), norm="static") for codec in ("raw", "fp16")
    )
    assert "labels" not in raw["train"]["header"]["notes"], "this method does not need the classes"
    values = sum(math.prod(shape) for shape in raw["train"]["tensors"].values())
    assert raw["train"]["bytes"] - half["train"]["bytes"] == pytest.approx(2 * values, rel=0.1)
    assert {work: half[work]["codec"] for work in ("train", "calibrate", "evaluate")} == {
        "train": "fp16",
        "calibrate": "raw",
        "evaluate": "raw",
    }
    assert {"fp16", "raw"} <= set(half["profile"]["codecs"])


def test_a_dry_run_without_graphs_names_the_trainer_that_needs_none(start: Start) -> None:
    process = start(*AGENT, "join", "--dry-run", "--trainer", "onnx", "--data", "digits")
    process.communicate(timeout=PATIENCE)
    assert process.returncode == 2
