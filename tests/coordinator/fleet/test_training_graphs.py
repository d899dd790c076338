"""Training graphs are exported once, published by digest, and named in the tasks of the agents that
need them.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from hashlib import sha256
from pathlib import Path

import pytest

from coordinator.fleet.published_weights import WeightSlots
from coordinator.fleet.training_graphs import EXPORTED, TrainingGraphs
from export.trainstep.graph_order import make_order
from federated.device.trainers.onnx_trainer import OnnxTrainer
from federated.task import Recipe, Task
from federated.wire import envelope, messages, topics
from federated.wire.links.memory import MemoryBroker, MemoryLink
from models.given_objects import give
from models.menu import menu
from models.submodel import Submodel
from tests.support.scripted_coordinator import SMALL, profile, task
from tests.support.smallest_networks import small
from tests.support.waiting import eventually

RECIPE = Recipe(batch=4)
FREE = replace(profile(None), capabilities=("graphs",), timings=())  # type: ignore[arg-type]
KINDS = ("step", "evaluation", "calibration")


@pytest.fixture
def graphs(tmp_path: Path) -> Iterator[TrainingGraphs]:
    slots = WeightSlots(MemoryLink(MemoryBroker(), "c"), "r", tmp_path / "spool")
    made = TrainingGraphs(slots, tmp_path / "graphs")
    yield made
    made.close()


def shelve(folder: Path, submodel: Submodel = SMALL) -> dict[str, str]:
    """Write graphs as an earlier process of the run did. Return their digests by kind."""
    place = folder / "graphs" / make_order(submodel, RECIPE).name
    place.mkdir(parents=True)
    digests = {}
    for kind in KINDS:
        digests[kind] = sha256(kind.encode()).hexdigest()
        (place / f"{kind}-{digests[kind]}.onnx").write_bytes(kind.encode())
    return digests


def finish(graphs: TrainingGraphs) -> None:
    assert eventually(lambda: not graphs.waiting, 1000)


def ask(work: str = "train", **recipe: object) -> Task:
    return replace(task(work=work), recipe=replace(RECIPE, **recipe))


def test_numbers_of_a_recipe_do_not_change_its_graphs() -> None:
    one = make_order(SMALL, replace(RECIPE, lr=0.1, momentum=0.9, pull=0.5, epochs=3, seed=4))
    assert one == make_order(replace(SMALL, owner="a"), replace(RECIPE, lr=0.2, pull=0.7, steps=9))
    for other in (
        RECIPE,
        replace(RECIPE, pull=0.5, optimiser="adam"),
        replace(RECIPE, pull=0.5, batch=5),
        replace(RECIPE, pull=0.5, clip=1.0),
        replace(RECIPE, pull=0.5, frozen=("stem.weight",)),
    ):
        assert make_order(SMALL, other).name != one.name
    hooked = [
        make_order(
            SMALL, replace(RECIPE, hook="scalefl", options={"gamma": gamma, "variant": name})
        )
        for gamma, name in ((0.0, "code"), (0.5, "code"), (0.5, "clean"))
    ]
    assert hooked[0] == hooked[1] != hooked[2]


def test_a_task_names_the_graphs_that_its_work_needs(
    graphs: TrainingGraphs, tmp_path: Path
) -> None:
    digests = shelve(tmp_path)
    assert graphs.explain_absence(FREE, SMALL, RECIPE) == EXPORTED
    graphs.request([(SMALL, RECIPE)])
    finish(graphs)
    assert graphs.explain_absence(FREE, SMALL, RECIPE) == ""

    def name(task: Task) -> dict[str, str]:
        return {one.kind: one.digest for one in graphs.complete(task, FREE).graphs}

    assert name(ask()) == {"step": digests["step"]}
    assert name(ask(scores=True)) == digests
    for work, kind in (("calibrate", "calibration"), ("evaluate", "evaluation")):
        assert name(ask(work)) == {kind: digests[kind]}


def test_an_agent_with_the_networks_code_needs_no_graphs(graphs: TrainingGraphs) -> None:
    assert graphs.explain_absence(profile(None), SMALL, RECIPE) == ""  # type: ignore[arg-type]
    assert graphs.complete(ask(), profile(None)) == ask()  # type: ignore[arg-type]


def test_graphs_are_published_once_under_their_digest(tmp_path: Path) -> None:
    broker = MemoryBroker()
    digests = shelve(tmp_path)
    graphs = TrainingGraphs(
        WeightSlots(MemoryLink(broker, "c"), "r", tmp_path / "spool"), tmp_path / "graphs"
    )
    graphs.request([(SMALL, RECIPE)])
    finish(graphs)
    device = MemoryLink(broker, "d")
    device.subscribe(topics.manifest(topics.graph("r", digests["step"])))
    for _ in range(2):
        graphs.complete(ask(), FREE)
    delivery = device.receive(0)
    assert delivery is not None
    manifest = envelope.decode(delivery.payload)
    assert isinstance(manifest, messages.Manifest)
    assert (manifest.sha256, manifest.size) == (digests["step"], len("step"))
    assert device.receive(0) is None
    graphs.close()


def test_a_resumed_run_publishes_the_graphs_of_open_tasks_again(
    graphs: TrainingGraphs, tmp_path: Path
) -> None:
    shelve(tmp_path)
    graphs.request([(SMALL, RECIPE)])
    finish(graphs)
    sent = graphs.complete(ask(), FREE)
    broker = MemoryBroker()
    again = TrainingGraphs(
        WeightSlots(MemoryLink(broker, "c"), "r", tmp_path / "spool"), tmp_path / "graphs"
    )
    again.restore(sent)
    device = MemoryLink(broker, "d")
    device.subscribe(topics.manifest(topics.graph("r", sent.graphs[0].digest)))
    assert device.receive(0) is not None
    again.restore(ask())  # a task without graphs
    again.close()


def test_a_network_that_was_passed_as_an_object_is_named(
    graphs: TrainingGraphs, caplog: pytest.LogCaptureFixture
) -> None:
    network = replace(SMALL.network, family=give("Net_12345678", object()))
    graphs.request([(replace(SMALL, network=network), RECIPE)])
    finish(graphs)
    why = graphs.explain_absence(FREE, replace(SMALL, network=network), RECIPE)
    assert "was passed as an object" in why
    assert "devices without PyTorch cannot train it" in caplog.text


@pytest.mark.slow
@pytest.mark.timeout(2000)  # an export has a low priority, so a busy machine delays it
def test_a_submodel_is_exported_in_a_process_and_a_device_runs_its_graphs(tmp_path: Path) -> None:
    """Although an earlier process of the run left graphs that the disk damaged."""
    (submodel,) = menu(small("mlp"), (0.5,), (1,))
    shelve(tmp_path, submodel)
    damaged = next((tmp_path / "graphs").glob("*/step-*.onnx"))
    damaged.write_bytes(b"rot")
    slots = WeightSlots(MemoryLink(MemoryBroker(), "c"), "r", tmp_path / "spool")
    graphs = TrainingGraphs(slots, tmp_path / "graphs")
    graphs.request([(submodel, RECIPE), (submodel, replace(RECIPE, hook="moon"))])
    finish(graphs)
    graphs.close()
    assert not damaged.exists()
    assert graphs.explain_absence(FREE, submodel, RECIPE) == ""
    why = graphs.explain_absence(FREE, submodel, replace(RECIPE, hook="moon"))
    assert "the hooks of 'moon' requires PyTorch" in why
    made = graphs.complete(replace(ask(scores=True), submodel=submodel), FREE).graphs
    assert {one.kind for one in made} == set(KINDS)
    trainer, found = OnnxTrainer("cpu"), {}
    for one in made:
        found[one.kind] = tmp_path / f"{one.digest}.graph"
        (source,) = (tmp_path / "graphs").glob(f"*/{one.kind}-{one.digest}.onnx")
        found[one.kind].write_bytes(source.read_bytes())
    trainer.use_graphs(found)
    shapes = trainer.shapes(submodel)
    assert shapes.parameters
    assert shapes.statistics
