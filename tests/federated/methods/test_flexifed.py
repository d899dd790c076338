"""FlexiFed: layers shared by devices whose networks begin with the same layers."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import msgspec
import numpy as np
import pytest
import torch

from federated.engine.aggregate import Total, fold
from federated.errors import ConfigError
from federated.method import configure
from federated.methods.catalogue import find_method
from federated.methods.flexifed import layer_digests
from federated.task import Update
from federated.training import state_between_rounds
from models.named_network import network
from models.submodel_building import initial, shapes, statistics
from tests.support.memory_federation import Member, digits, federate
from tests.support.smallest_networks import small

NET = small("resnet")  # three sections of two blocks
FIRST = {"stem.weight", "norm.weight", "norm.bias"}


def start(net=NET, fleet=True, **given):
    """Return the state of a fleet with one device of each size of the menu, or of none."""
    chosen = find_method("flexifed")
    settings = configure(chosen, {"norm": "static", **given})
    menu = chosen.menu(net, settings)
    state = chosen.start(initial(net, 0), menu, settings)
    return chosen, menu, replace(state, fleet=dict.fromkeys(menu, 1) if fleet else {})


def view(chosen, state, submodel):
    return chosen.dispatch(state, chosen.place(state, submodel))


def play_round(chosen, state, *updates):
    """Return the state after updates of (submodel, constant); tensors without a row in the plan are
    missing.
    """
    total = Total()
    for index, (submodel, value) in enumerate(updates):
        plan = chosen.place(state, submodel)
        sent = {row.local: torch.full(row.shape, value) for row in plan.rows}
        one = Update("r", 1, 0, str(index), "train", submodel, "0", 1 + 9 * index, 1, sent)
        assert fold(total, chosen.parts(state, plan, one), (index,))
    return chosen.finish(state, total, np.random.default_rng(0))


def constants(tensors):
    """Return the values of constant tensors."""
    assert all(value.unique().numel() == 1 for value in tensors.values())
    return {name: value.flatten()[0].item() for name, value in tensors.items()}


# ---- menu ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("model", "inputs", "names"),
    [
        (
            "vgg-19",
            (3, 32, 32),
            ["w1-d1.1.1.1.1", "w1-d1.1.2.2.2", "w1-d2.2.3.3.3", "w1-d2.2.4.4.4"],
        ),
        ("resnet-small", (1, 8, 8), ["w1-d1.1.1", "w1-d2.2.2"]),
        ("vit-micro", (1, 16, 16), ["w1-d1", "w1-d2", "w1-d3"]),
        ("lenet", (1, 16, 16), ["w1-d1.1"]),
    ],
)
def test_the_menu_has_quarters_of_every_section(model, inputs, names):
    chosen = find_method("flexifed")
    assert [s.name for s in chosen.menu(network(model, inputs, 10), configure(chosen, {}))] == names


def test_depths_that_are_given_are_taken():
    chosen = find_method("flexifed")
    assert [s.name for s in chosen.menu(NET, configure(chosen, {"depths": [[2, 1, 1]]}))] == [
        "w1-d2.1.1"
    ]


def test_statistics_of_layers_that_stay_on_devices_cannot_be_measured():
    with pytest.raises(
        ConfigError,
        match="norm = 'static' cannot measure layers that stay on devices: set norm",
    ):
        start(strategy="basic")


# ---- chains --------------------------------------------------------------------------------------


def test_chains_agree_up_to_the_first_layer_that_differs():
    """d1 and d2 agree in the stem and the first block. Then only one has a second block, so no
    later layer agrees.
    """
    _, (shallow, deep), state = start()
    first, second = (layer_digests(s, state.settings) for s in (shallow, deep))
    same = {name for name in first if first[name] == second.get(name)}
    assert same == {name for name in first if name.startswith("sections.0.0.")} | FIRST


def test_a_layers_statistics_are_part_of_it():
    _, (_, deep), state = start(norm="tracked")
    layers = layer_digests(deep, state.settings)
    assert layers.keys() == {*shapes(deep), *statistics(deep)}
    assert layers["norm.weight"] == layers["norm.running_var"] != layers["stem.weight"]


def test_layers_of_one_name_and_other_shapes_do_not_agree():
    _, (narrow, wide), state = start(widths=[0.5, 1.0], depths=[1])
    for match in ("prefix", "position"):
        given = msgspec.structs.replace(state.settings, match=match)
        first, second = (layer_digests(s, given) for s in (narrow, wide))
        same = {name for name in first if first[name] == second[name]}
        assert same == set()


def test_with_matching_by_position_layers_after_a_difference_are_shared():
    _, (shallow, deep), state = start(match="position")
    first, second = (layer_digests(s, state.settings) for s in (shallow, deep))
    assert all(first[name] == second[name] for name in first)


# ---- strategies ----------------------------------------------------------------------------------


def test_max_averages_each_layer_among_all_whose_chains_agree():
    """Sections of 1, 1, 1 blocks (2), of 1, 1, 2 (6) and of 2, 2, 2 (10): stem and first block (2 +
    6 + 10) / 3, on to section 2 (2 + 6) / 2.
    """
    chosen, menu, state = start(depths=[[1, 1, 1], [1, 1, 2], [2, 2, 2]])
    a, b, c = menu
    after = play_round(chosen, state, (a, 2.0), (b, 6.0), (c, 10.0))
    found = [constants(view(chosen, after, s)) for s in menu]
    for name, value in found[0].items():
        early = name in FIRST or name.startswith("sections.0.0.")
        both = name.startswith(("sections.1.0.", "sections.2.0."))
        assert value == (6 if early else 4 if both else 2), name
    assert found[1]["sections.2.1.conv1.weight"] == found[1]["linear.bias"] == 6
    assert (
        found[2]["sections.0.1.conv1.weight"]
        == found[2]["sections.1.0.conv1.weight"]
        == found[2]["linear.bias"]
        == 10
    )


def test_matched_by_position_max_is_the_mean_over_the_depths_that_have_a_layer():
    chosen, (shallow, deep), state = start(match="position")
    after = play_round(chosen, state, (shallow, 2.0), (deep, 6.0))
    for name, value in constants(view(chosen, after, deep)).items():
        assert value == (6 if name not in shapes(shallow) else 4), name


def test_clustered_averages_the_rest_within_each_architecture():
    chosen, (shallow, deep), state = start(strategy="clustered")
    after = play_round(chosen, state, (shallow, 1.0), (deep, 6.0), (deep, 8.0))
    found = constants(view(chosen, after, deep))
    assert found["stem.weight"] == found["sections.0.0.conv1.weight"] == 5
    assert found["sections.0.1.conv1.weight"] == found["linear.bias"] == 7
    assert constants(view(chosen, after, shallow))["linear.bias"] == 1


def test_basic_leaves_the_rest_on_the_device():
    chosen, (shallow, deep), state = start(strategy="basic", norm="tracked")
    common = (
        FIRST
        | {"norm.running_mean", "norm.running_var"}
        | {name for name in view(chosen, state, shallow) if name.startswith("sections.0.0.")}
    )
    for submodel in (shallow, deep):
        kept = set(chosen.recipe(state, submodel).keep)
        assert set(view(chosen, state, submodel)) == common
        assert kept | common == {*shapes(submodel), *statistics(submodel)}
        assert not kept & common
    after = play_round(chosen, state, (shallow, 2.0), (deep, 6.0))
    assert {home for home in after.tensors if not home.endswith("@devices")} == state.tensors.keys()
    assert constants(view(chosen, after, deep))["stem.weight"] == 4


def test_a_fleet_of_one_architecture_shares_all_under_every_strategy():
    for strategy in ("basic", "clustered", "max"):
        chosen, menu, state = start(strategy=strategy, norm="tracked", depths=[2])
        after = play_round(chosen, state, (menu[0], 2.0), (menu[0], 6.0))
        found = constants(view(chosen, after, menu[0]))
        assert set(found.values()) == {4.0}
        assert found.keys() == {*shapes(menu[0]), *statistics(menu[0])}
        assert chosen.recipe(state, menu[0]).keep == ()


def test_without_a_fleet_a_submodel_is_compared_with_itself():
    chosen, menu, state = start(strategy="clustered", fleet=False)
    assert {row.home for row in chosen.place(state, menu[0]).rows} == set(shapes(menu[0]))


def test_untrained_layers_keep_their_initial_weights():
    chosen, (shallow, deep), state = start()
    after = play_round(chosen, state, (shallow, 2.0))
    assert torch.equal(view(chosen, after, deep)["linear.bias"], state.tensors["linear.bias"])


# ---- whole runs ----------------------------------------------------------------------------------


def fleet():
    return [Member(f"a{i}", digits(i, 3)) for i in range(3)]


SHALLOW, DEEP = "w1-d1.1.1", "w1-d2.2.2"
PINS = {"a0": SHALLOW, "a1": DEEP, "a2": DEEP}
GIVEN = {
    "method.name": "flexifed",
    "model.name": "resnet-small",
    "assign.submodels": PINS,
    "train.epochs": 1,
    "train.batch": 32,
    "train.lr": 0.05,
}


@pytest.mark.parametrize("strategy", ["basic", "clustered"])
def test_a_device_that_leaves_does_not_remove_layers_of_others(strategy: str) -> None:
    """Only deep devices are left: what the shallow one lacks stays theirs, and does not begin again
    as a common layer.
    """
    chosen, menu, state = start(strategy=strategy, norm="tracked")
    deep = menu[-1]
    after = play_round(chosen, state, (menu[0], 1.0), (deep, 3.0))
    alone = replace(after, fleet={deep: 1})
    assert chosen.place(alone, deep) == chosen.place(after, deep)
    assert chosen.recipe(alone, deep).keep == chosen.recipe(after, deep).keep
    if strategy == "clustered":
        assert constants(view(chosen, alone, deep))["linear.weight"] == 3
    else:
        assert "linear.weight" in chosen.recipe(alone, deep).keep
    again = play_round(chosen, alone, (deep, 5.0))
    assert constants(view(chosen, again, deep))["stem.weight"] == 5


@pytest.mark.slow
@pytest.mark.parametrize("strategy", ["clustered", "max"])
def test_three_devices_of_two_depths_learn_digits(tmp_path: Path, strategy: str) -> None:
    done = federate(
        tmp_path, fleet(), {**GIVEN, "method.strategy": strategy, "rounds": 3, "evaluate.every": 3}
    )
    assert all(np.isfinite(s.loss) for s in done.result.scores)
    central = {s.submodel: s.accuracy for s in done.result.scores if s.view == "central"}
    assert central.keys() == {SHALLOW, DEEP}
    assert min(central.values()) > 0.3
    groups = {
        home.partition("@")[2].partition("-")[0]
        for home in done.result.state.tensors
        if "@" in home
    }
    assert groups == ({"w1"} if strategy == "clustered" else {"max"})


def read_kept(folder: Path, submodel: str) -> dict[str, np.ndarray]:
    """Return the tensors that a device keeps of a submodel after its last round."""
    folder, own = next(folder.rglob(state_between_rounds.FOLDER)), f"own/{submodel}/"
    whole = state_between_rounds.read(folder, max(int(path.stem) for path in folder.iterdir()))
    assert all(name.startswith(own) for name in whole)
    return {name.removeprefix(own): value for name, value in whole.items()}


@pytest.mark.slow
def test_personal_layers_stay_on_their_devices_and_keep_training(tmp_path: Path) -> None:
    """They never reach the coordinator. Each device loads its own in the next round, and is scored
    with them.
    """
    given = {**GIVEN, "method.strategy": "basic"}
    once, thrice = (
        federate(tmp_path / str(n), fleet(), {**given, "rounds": n, "evaluate.every": n})
        for n in (1, 3)
    )
    first, third = (
        {name: read_kept(tmp_path / n / name, submodel) for name, submodel in PINS.items()}
        for n in ("1", "3")
    )
    for name in PINS:
        assert first[name].keys() == third[name].keys()
        assert "linear.weight" in first[name]
        assert "stem.weight" not in first[name]
        assert not np.array_equal(first[name]["linear.weight"], third[name]["linear.weight"])
    assert not np.array_equal(third["a1"]["linear.weight"], third["a2"]["linear.weight"])
    before, after = initial(NET, 0), thrice.result.state.tensors
    assert torch.equal(after["linear.weight"], before["linear.weight"])
    assert not torch.equal(after["stem.weight"], before["stem.weight"])
    assert {(s.submodel, s.view) for s in thrice.result.scores} == {
        (s, view) for s in (SHALLOW, DEEP) for view in ("devices", "labels")
    }
    early, late = (
        {s.submodel: s.accuracy for s in done.result.scores if s.view == "devices"}
        for done in (once, thrice)
    )
    assert all(late[s] > early[s] and late[s] > 0.5 for s in late)
