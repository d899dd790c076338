"""Additions of each method to FedAvg, and the catalogue."""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import asdict

import msgspec
import numpy as np
import pytest
import torch

from federated.errors import ConfigError, Unknown
from federated.method import configure
from federated.methods.catalogue import METHODS, find_method
from federated.methods.common.width_depth_submodels import assign, propose_sizes
from federated.methods.heterofl import own_rows
from federated.settings_validation import validate
from federated.task import Recipe
from models.cost import cost
from models.named_network import network
from models.slicing import Row
from models.submodel_building import full, initial, shapes, statistics
from tests.support.handmade_rounds import NET, play_round, start

# ---- catalogue and settings ----------------------------------------------------------------------


@pytest.mark.parametrize("name", METHODS)
def test_a_method_carries_its_name_and_paper(name):
    chosen = find_method(name.upper())
    assert chosen.name == name
    assert "arXiv" in chosen.paper
    assert chosen.summary


def test_an_unknown_method_suggests_the_nearest():
    with pytest.raises(Unknown, match="unknown method 'fedav'; did you mean fedavg"):
        find_method("fedav")


@pytest.mark.parametrize(
    ("name", "key", "value", "wanted"),
    [
        ("scaffold", "lr", 0.0, "a number above 0"),
        ("scaffold", "server_lr", -1, "a number above 0"),
        ("recipfl", "server_lr", -1, "a number above 0"),
        ("recipfl", "server_clip", -1, "a number of at least 0"),
        ("fedavg", "epochs", 0, "a whole number of at least 1"),
        ("fedavg", "batch", 0, "a whole number of at least 1"),
        ("fednova", "momentum", 1.5, "a number between 0 and 1"),
        ("fedprox", "mu", -0.1, "a number of at least 0"),
        ("inclusivefl", "beta", 2, "a number between 0 and 1"),
        ("scalefl", "temperature", 0, "a number above 0"),
    ],
)
def test_a_number_out_of_range_is_refused_before_anyone_trains(name, key, value, wanted):
    with pytest.raises(
        ConfigError, match=f"method {name}: {key}: expected {wanted}, found {value}$"
    ):
        configure(find_method(name), {key: value})


@pytest.mark.parametrize(
    ("name", "given", "where", "wanted"),
    [
        (
            "fedavg",
            {"widths": ["half"]},
            "widths[0]",
            "a number above 0 and at most 1, found 'half'",
        ),
        (
            "fedavg",
            {"widths": [1.0, True]},
            "widths[1]",
            "a number above 0 and at most 1, found true",
        ),
        ("fedavg", {"widths": [0.5, 2]}, "widths[1]", "a number above 0 and at most 1, found 2"),
        (
            "fedavg",
            {"depths": [1.5]},
            "depths[0]",
            "a whole number of at least 1 or a list, found 1.5",
        ),
        ("fedavg", {"depths": [0]}, "depths[0]", "a whole number of at least 1 or a list, found 0"),
        ("fedavg", {"depths": [[2, 0]]}, "depths[0][1]", "a whole number of at least 1, found 0"),
        (
            "fedavg",
            {"milestones": ["half"]},
            "milestones[0]",
            "a whole number above 0 or a number above 0 and below 1, found 'half'",
        ),
        (
            "fedavg",
            {"milestones": [-1]},
            "milestones[0]",
            "a whole number above 0 or a number above 0 and below 1, found -1",
        ),
        (
            "fedavg",
            {"milestones": [0.5, 1.5]},
            "milestones[1]",
            "a whole number above 0 or a number above 0 and below 1, found 1.5",
        ),
        (
            "scalefl",
            {"milestones": [9, 20.0]},
            "milestones[1]",
            "a whole number above 0 or a number above 0 and below 1, found 20.0",
        ),
        (
            "depthfl",
            {"ramp": 1.0},
            "ramp",
            "a whole number of at least 0 or a number of at least 0 and below 1, found 1.0",
        ),
        (
            "depthfl",
            {"ramp": -0.1},
            "ramp",
            "a whole number of at least 0 or a number of at least 0 and below 1, found -0.1",
        ),
        ("fedavg", {"milestones": 5}, "milestones", "a list, found 5"),
        ("recipfl", {"models": "lenet"}, "models", "a list, found 'lenet'"),
        ("recipfl", {"models": [1]}, "models[0]", "text, found 1"),
        ("fedfa", {"lr": "fast"}, "lr", "a number above 0, found 'fast'"),
        ("fedfa", {"lr": float("nan")}, "lr", "a finite number, found nan"),
        ("fedfa", {"widths": [float("inf")]}, "widths[0]", "a finite number, found inf"),
        ("fedfa", {"masked": 1}, "masked", "true or false, found 1"),
        ("fedfa", {"epochs": 1.5}, "epochs", "a whole number of at least 1, found 1.5"),
        ("fedfa", {"epochs": True}, "epochs", "a whole number of at least 1, found true"),
        ("fedfa", {"scaling": 2}, "scaling", "one of l2, rms, none, found 2"),
        ("fedavg", {"weighting": "votes"}, "weighting", "one of samples, uniform, found 'votes'"),
    ],
)
def test_an_invalid_value_of_a_setting_is_refused(name, given, where, wanted):
    with pytest.raises(ConfigError, match=re.escape(f"method {name}: {where}: expected {wanted}")):
        configure(find_method(name), given)


@pytest.mark.parametrize("name", METHODS)
def test_defaults_are_within_their_own_ranges(name):
    chosen = find_method(name)
    assert configure(
        chosen, {key: known.default for key, known in chosen.settings.items()}
    ) == configure(chosen, {})


def test_settings_replace_defaults():
    chosen = find_method("fedfa")
    found = configure(chosen, {"lr": 1, "depths": [2]})
    assert (found["lr"], found["depths"]) == (1.0, (2,))
    assert {*found.__struct_fields__} == {*chosen.settings, "seed", "rounds"}


def test_an_unknown_setting_is_named():
    with pytest.raises(Unknown, match="unknown fedfa setting 'scalin'; did you mean scaling"):
        configure(find_method("fedfa"), {"scalin": "rms"})


@pytest.mark.parametrize("key", ["seed", "rounds"])
def test_settings_of_the_run_are_not_settings_of_a_method(key):
    with pytest.raises(Unknown, match=f"unknown fedfa setting '{key}'"):
        configure(find_method("fedfa"), {key: 3})


def test_an_agent_reads_the_settings_of_a_card_by_the_same_record():
    """Settings from `configure` survive the wire, with the run's seed and rounds; another method's
    do not.
    """
    made = configure(find_method("fedfa"), {"widths": [0.5, 1.0], "lr": 1}, seed=3, rounds=7)
    plain = msgspec.msgpack.decode(msgspec.msgpack.encode(msgspec.to_builtins(made)))
    read = validate(find_method("fedfa").record, plain, "card of run 'r': fedfa")
    assert read == made
    assert (read["seed"], read["rounds"], read["widths"]) == (3, 7, (0.5, 1.0))
    with pytest.raises(ConfigError, match=r"card of run 'r': fedavg: unknown key '.*'; "):
        validate(find_method("fedavg").record, plain, "card of run 'r': fedavg")
    with pytest.raises(ConfigError, match=r"fedfa: seed: expected a whole number .* found -1"):
        validate(find_method("fedfa").record, {**plain, "seed": -1}, "fedfa")


def test_settings_are_read_by_name_and_cannot_be_changed():
    found = configure(find_method("heterofl"), {})
    assert (found["batch"], "sharing" in found) == (10, False)
    with pytest.raises(KeyError, match="sharing"):
        found["sharing"]
    with pytest.raises(AttributeError):
        found.batch = 1


def test_a_menu_that_cannot_be_is_refused():
    with pytest.raises(ConfigError, match="expected widths above 0"):
        find_method("fedfa").menu(NET, configure(find_method("fedfa"), {"depths": [[1, 2]]}))


# ---- menus, assignment, recipes ------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "first", "last", "count"),
    [
        ("fedavg", "w1-d4.4.4", "w1-d4.4.4", 1),
        ("heterofl", "w0.0625-d4.4.4-scaler", "w1-d4.4.4-scaler", 5),
        ("fedfa", "w0.5-d2.2.2", "w1-d4.4.4", 9),
        ("fedfa-w", "w0.5-d4.4.4", "w1-d4.4.4", 3),
        ("fedfa-d", "w1-d2.2.2", "w1-d4.4.4", 3),
    ],
)
def test_the_menu_of_a_method(name, first, last, count):
    chosen = find_method(name)
    found = chosen.menu(NET, configure(chosen, {}))
    assert (found[0].name, found[-1].name, len(found)) == (first, last, count)


@pytest.mark.parametrize("name", [name for name in METHODS if find_method(name).assign is assign])
def test_a_device_gets_the_largest_it_can_afford(name):
    """The choice is from FedAvg's menu, or from the method's own."""
    chosen, net = find_method(name), network("resnet-small", (1, 8, 8), 10)
    given = configure(
        chosen, {"widths": (0.5, 1.0), "depths": (1, 2)} if chosen.menu is propose_sizes else {}
    )
    menu = chosen.menu(net, given)
    able = menu[:-1] or menu
    got = chosen.assign(
        chosen.start(initial(net, 0, chosen.features), menu, given),
        None,
        able[::-1],
        np.random.default_rng(0),
    )
    assert cost(got).parameters == max(cost(s).parameters for s in able)


def test_the_recipe_is_made_of_settings():
    chosen, state = start("heterofl", lr=0.1, epochs=5, batch=10)
    assert chosen.recipe(state, full(NET)) == Recipe(
        epochs=5,
        batch=10,
        lr=0.1,
        momentum=0.9,
        decay=5e-4,
        clip=1.0,
        masked=True,
        labels=True,
        norm="static",
    )


# ---- FedAvg --------------------------------------------------------------------------------------


def test_the_settings_of_fedavg_have_the_defaults_of_a_recipe():
    """Statistics of batch norm travel only if a method says so: not every trainer has them."""
    settings, plain = find_method("fedavg").settings, asdict(Recipe())
    different = {key for key in settings.keys() & plain if settings[key].default != plain[key]}
    assert different == {"norm"}


def test_tracked_statistics_travel_and_static_ones_do_not():
    names = {}
    for norm in ("tracked", "static"):
        chosen, state = start("fedavg", norm=norm)
        names[norm] = set(chosen.dispatch(state, chosen.place(state, full(NET))))
    assert names["tracked"] - names["static"] == set(statistics(full(NET)))
    assert names["static"] == set(shapes(full(NET)))


def test_a_variance_never_falls_below_zero():
    """The clamp holds for any values in an update."""
    chosen, state = start("fedavg")
    sent = chosen.dispatch(state, chosen.place(state, full(NET)))
    after = play_round(
        chosen,
        state,
        (
            full(NET),
            {
                **sent,
                "norm.running_var": torch.full((64,), -2.0),
                "norm.running_mean": torch.full((64,), -2.0),
            },
            1,
            {},
        ),
    )
    assert after["norm.running_var"].tolist() == [0.0] * 64
    assert after["norm.running_mean"].tolist() == [-2.0] * 64


@pytest.mark.parametrize("name", METHODS)
def test_a_state_has_the_methods_own_settings_and_its_menu(name):
    chosen, state = start(name)
    assert type(state.settings) is chosen.record
    assert state.menu == chosen.menu(state.menu[0].network, state.settings)


def test_with_a_menu_fedavg_is_the_coverage_mean():
    """Half width by 3 examples, full width by 1: the shared corner is weighed, the rest is the wide
    one's.
    """
    chosen, state = start("fedavg", widths=(0.5, 1.0), norm="static")
    narrow, wide = chosen.menu(NET, state.settings)
    updates = [
        (s, {name: torch.full(shape, v) for name, shape in shapes(s).items()}, n, {})
        for s, v, n in ((narrow, 2.0, 3), (wide, 6.0, 1))
    ]
    after = play_round(chosen, state, *updates)["stem.weight"][:, 0, 0, 0]
    assert after.tolist() == [3.0] * 8 + [6.0] * 8


# ---- HeteroFL ------------------------------------------------------------------------------------


def test_only_rows_of_held_classes_weigh():
    row = Row("w", ((0, 3), (0, 2)), "h", ((1, 4), (0, 2)), (5, 2))
    assert own_rows(row, 2.0, [0, 2, 99], 3).tolist() == [0.0, 2.0, 2.0]


def test_the_head_of_an_absent_class_stays():
    """Classes 0 and 1 are held; rows 2 to 9 of the head keep every bit, the rest of the network
    does not.
    """
    chosen, state = start("heterofl")
    submodel = chosen.menu(NET, state.settings)[-1]
    sent = {name: torch.full(shape, 5.0) for name, shape in shapes(submodel).items()}
    after = play_round(chosen, state, (submodel, sent, 1, {"labels": [0, 1]}))
    assert after["linear.weight"][:2].tolist() == [[5.0] * 64] * 2
    assert torch.equal(after["linear.weight"][2:], state.tensors["linear.weight"][2:])
    assert bool((after["stem.weight"] == 5).all())


@pytest.mark.parametrize("name", ["heterofl", "fedrolex"])
def test_dynamic_rates_are_drawn_evenly_among_those_that_a_device_can_afford(name):
    """Of the three smallest rates, each about a third of 600 times."""
    chosen, state = start(name, rates="dynamic")
    affordable, rng = chosen.menu(NET, state.settings)[:3], np.random.default_rng(0)
    drawn = Counter(chosen.assign(state, None, affordable, rng) for _ in range(600))
    assert drawn.keys() == set(affordable)
    assert all(150 < count < 250 for count in drawn.values())
    fixed, state = start(name)
    assert fixed.assign(state, None, affordable, rng) == affordable[-1]


def test_devices_count_and_not_their_examples():
    chosen, state = start("heterofl")
    submodel = chosen.menu(NET, state.settings)[0]
    updates = [
        (submodel, {n: torch.full(s, v) for n, s in shapes(submodel).items()}, samples, {})
        for v, samples in ((1.0, 1), (3.0, 99))
    ]
    assert play_round(chosen, state, *updates)["stem.weight"][0, 0, 0, 0] == 2.0


def serves(name, net):
    try:
        return bool(
            find_method(name).menu(net, configure(find_method(name), UNDISTILLED.get(name, {})))
        )
    except ConfigError:
        return False


VALUES = network("resnet-small", (1, 8, 8), 1, target="value")
# they distil probabilities of classes, which values have not
UNDISTILLED = {"depthfl": {"distillation": 0}, "scalefl": {"gamma": 0}}


@pytest.mark.parametrize("name", [name for name in METHODS if serves(name, VALUES)])
def test_values_are_neither_masked_nor_trained_without_bound(name):
    """With masking, a network of values would always answer 0, since it has no classes. The
    method's own gradient bound stays.
    """
    chosen, net, given = find_method(name), VALUES, UNDISTILLED.get(name, {})
    settings_ = configure(chosen, given)
    menu = chosen.menu(net, settings_)
    recipe = chosen.recipe(chosen.start(initial(net, 0, chosen.features), menu, settings_), menu[0])
    assert not recipe.masked
    assert recipe.clip == 1.0
    assert (
        chosen.recipe(
            chosen.start(
                initial(net, 0, chosen.features), menu, configure(chosen, {**given, "clip": 5.0})
            ),
            menu[0],
        ).clip
        == 5.0
    )
