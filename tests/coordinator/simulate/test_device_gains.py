"""What devices gained: training alone, on all data and federated, by the same budget of steps."""

from __future__ import annotations

from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from threading import Event
from typing import Any

from click.testing import CliRunner

from coordinator.cli.main import main
from coordinator.release.stored_run import load_stored_run
from coordinator.run.config_sources import ConfigSources
from coordinator.settings.config import Config
from coordinator.simulate.demo_fleet import DEVICES, DemoOptions, coordinator_command
from coordinator.simulate.device_gains import Comparison, compare_run, count_steps, simplify
from coordinator.simulate.simulation import simulate_run
from coordinator.store.database import Facts
from coordinator.store.run_store import Store
from federated.data.loading import load_device
from federated.defaults import PARTITION
from federated.task import Recipe
from tests.support.memory_federation import RUN, Member, federate

TINY = {
    "name": "tiny",
    "rounds": 2,
    "method.name": "fedavg",
    "model.name": "mlp-small",
    "train.epochs": 1,
    "evaluate.every": 1,
}


def simulate(folder: Path, **settings: Any) -> Path:
    """Simulate a tiny run in this thread; return the folder of runs. settings: with _ for a dot."""
    given = TINY | {key.replace("_", ".", 1): value for key, value in settings.items()}
    sources = ConfigSources(flags=list(given.items()))
    simulate_run(sources, folder / "runs", Event(), lambda event: None, resume=False)
    return folder / "runs"


def compare(runs: Path) -> tuple[list[Comparison], list[int]]:
    calls: list[int] = []
    with closing(Store.open(runs, "tiny", read_only=True)) as store:
        return compare_run(store, calls.append), calls


def test_alone_central_and_federated_are_the_same_for_the_only_device(tmp_path: Path) -> None:
    """One device whose batch is all of its data: every training takes the same two steps."""
    runs = simulate(
        tmp_path,
        method_widths=[1.0],
        simulate_agents=1,
        simulate_partition="iid@60",
        train_batch=60,
    )
    (one,), calls = compare(runs)
    assert (one.agent, one.examples, one.held_out, one.steps) == ("d0", 48, 12, 2)
    assert one.federated == one.alone == one.central
    assert calls == [4, 4, 4, 4], "two steps alone and two on all data"


def test_a_device_alone_takes_its_own_steps_and_the_centre_those_of_all(tmp_path: Path) -> None:
    runs = simulate(
        tmp_path,
        method_widths=[0.5, 1.0],
        simulate_agents=2,
        simulate_partition="classes:5@100",
        train_batch=20,
        train_lr=0.1,
        rounds=4,
        assign_submodels={"d0": "w0.5-d2", "d1": "w1-d2"},
    )
    found, calls = compare(runs)
    budgets, last = count_steps(load_stored_run("tiny", runs))
    steps = {agent: sum(budget.values()) for agent, budget in budgets.items()}
    assert [(one.agent, one.submodel) for one in found] == [
        (agent, submodel.name) for agent, submodel in sorted(last.items())
    ]
    assert {one.agent: one.steps for one in found} == steps
    total = sum(steps.values())
    assert calls == [3 * total] * (3 * total), "all steps alone, and all for each of two submodels"
    assert all(one.alone is not None and one.alone > 0.5 for one in found), "half of the classes"
    out = tmp_path / "report.html"
    words = ["report", "--runs", str(runs), "--out", str(out), "--compare"]
    done = CliRunner().invoke(main, words, catch_exceptions=False)
    assert done.exit_code == 0, done.output
    text = out.read_text()
    assert "of 2 devices gained from taking part" in text
    assert text.count('class="gain"') == 2
    assert f"{found[0].alone:.1%}" in text, "the comparison gives the same numbers again"


def test_a_training_that_diverges_has_no_accuracy(tmp_path: Path) -> None:
    runs = simulate(tmp_path, method_widths=[1.0], simulate_agents=2, simulate_partition="iid@40")
    with closing(Store.open(runs, "tiny", read_only=True)) as store:
        config = store.read_facts().config
    config["train"] = {**config["train"], "lr": 1e30}

    with closing(Store.open(runs, "tiny")) as store:
        facts = store.read_facts()
        store.write_facts(Facts(config, facts.network, facts.menu, facts.reach))
    found, _ = compare(runs)
    assert {(one.alone, one.central) for one in found} == {(None, None)}
    assert all(one.federated is not None for one in found)


def test_a_plain_recipe_has_no_terms_of_a_method() -> None:
    recipe = Recipe(
        epochs=3, lr=0.2, batch=7, seed=4, pull=1.0, variate="scaffold", hook="moon", masked=True
    )
    assert simplify(recipe, 5) == Recipe(epochs=5, steps=5, lr=0.2, batch=7, seed=4)


def test_a_plain_recipe_keeps_a_field_that_is_not_of_a_method() -> None:
    @dataclass(frozen=True)
    class Later(Recipe):
        schedule: str = "constant"

    found = simplify(Later(schedule="cosine"), 5)
    assert isinstance(found, Later)
    assert found.schedule == "cosine"


def test_the_demo_states_how_its_agents_divide_the_data() -> None:
    command = coordinator_command("host", DemoOptions(), Path())
    settings = [command[i + 1] for i, word in enumerate(command) if word == "--set"]
    config = ConfigSources(settings=settings).load()
    assert (config.simulate.agents, config.simulate.partition) == (len(DEVICES), "dirichlet:1.0")
    assert config.simulate.held == Config().simulate.held


def test_devices_of_a_fleet_are_compared_if_the_configuration_states_their_data(
    tmp_path: Path,
) -> None:
    """As in the demo, whose agents have names and processes of their own."""
    shards = {device.name: f"{i}/{len(DEVICES)}" for i, device in enumerate(DEVICES)}
    members = [
        Member(name, load_device("digits", name=name, shard=shard, partition=PARTITION, seed=0))
        for name, shard in shards.items()
    ]
    stated = {"simulate.agents": len(DEVICES), "simulate.partition": PARTITION}
    small = {"method.name": "fedavg", "model.name": "mlp-small", "train.steps": 1}
    federate(tmp_path, members, stated | small)
    with closing(Store.open(tmp_path / "runs", RUN, read_only=True)) as store:
        found = compare_run(store, lambda planned: None)
        entries = {entry.agent: entry for entry in store.read_entries(1)}
    assert [one.agent for one in found] == sorted(shards)
    assert all(one.examples == entries[one.agent].samples for one in found)
    assert all(one.federated is not None and one.alone is not None for one in found)
