"""NeFL: the published submodels, separate parameters for each submodel where they are inconsistent,
and tiers.
"""

from __future__ import annotations

import json
import math
from dataclasses import replace

import numpy as np
import pytest
import torch

from federated.engine.aggregate import Total, fold
from federated.errors import ConfigError
from federated.method import configure
from federated.methods.catalogue import find_method
from federated.methods.common.nefl_submodels import GAMMAS
from federated.task import Card, Profile, Update
from federated.training.training_loop import train
from models.named_network import network
from models.submodel_building import build, full, initial, shapes, statistics
from tests.support.memory_federation import Member, digits, federate
from tests.support.published_network_sizes import NOTES
from tests.support.smallest_networks import small

DIGITS = network("resnet-small", (1, 8, 8), 10)
NAMES = ("nefl-d", "nefl-do", "nefl-w", "nefl-wd")
MODELS = {
    "resnet18": "resnet-18-nefl",
    "resnet34": "resnet-34-nefl",
    "resnet56": "resnet-56",
    "resnet110": "resnet-110",
}
KEYS = {"D_code": "d", "D": "d", "WD_code": "wd", "WD": "wd", "W": "w"}


def begun(name, net=DIGITS, seed=0, **given):
    chosen = find_method(name)
    settings = configure(chosen, given, seed=seed)
    menu = chosen.menu(net, settings)
    return chosen, chosen.start(initial(net, 0, chosen.features), menu, settings), menu


def after(chosen, state, *updates):
    """Return the state after a round of (submodel, tensors) pairs."""
    total = Total()
    for index, (submodel, tensors) in enumerate(updates):
        update = Update("r", 1, 0, str(index), "train", submodel, "0", 1 + 9 * index, 1, tensors)
        assert fold(total, chosen.parts(state, chosen.place(state, submodel), update), (index,))
    return chosen.finish(state, total, np.random.default_rng(0))


def received(chosen, state, submodel):
    return chosen.dispatch(state, chosen.place(state, submodel))


def parameters(submodel):
    return sum(map(math.prod, shapes(submodel).values()))


def profile(agent):
    return Profile(
        agent,
        "h",
        "s",
        1.0,
        1,
        1.0,
        1,
        "torch",
        Card("d", (1, 8, 8), "uint8", 10, 9, 0, (0.0,), (1.0,)),
        (),
    )


# ---- sizes ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("model", MODELS)
def test_menus_of_the_papers_networks_are_the_published_ones(model):
    path = NOTES.with_name("nefl_submodels.json")
    if not path.exists():
        pytest.skip("the notes with the sizes of published networks are not beside this checkout")
    notes = json.loads(path.read_text())
    for key in (
        key for key in notes if key.startswith(f"{model}/") and key.partition("/")[2] in KEYS
    ):
        chosen = find_method(f"nefl-{KEYS[key.partition('/')[2]]}")
        menu = chosen.menu(network(MODELS[model], (3, 32, 32), 10), configure(chosen, {}))
        assert [parameters(submodel) for submodel in menu] == [
            row["params_active"] for row in notes[key]
        ], key


@pytest.mark.parametrize(
    "family", ["efficientnet", "mlp", "mobilenet", "resnet", "resnet1d", "transformer", "vit"]
)
def test_other_networks_get_submodels_near_the_gammas(family):
    """In width and in both, each has its share to a tenth of the whole, where the blocks of depth
    alone may be too coarse.
    """
    net = small(family)
    for name in ("nefl-w", "nefl-wd", "nefl-d"):
        chosen = find_method(name)
        menu = chosen.menu(net, configure(chosen, {}))
        assert menu[-1] == full(net, ("steps",))
        shares = [parameters(submodel) / parameters(menu[-1]) for submodel in menu]
        assert shares == sorted(shares)
        assert name == "nefl-d" or np.allclose(shares, GAMMAS[-len(shares) :], atol=0.1), (
            name,
            shares,
        )
        assert name == "nefl-d" or len(shares) == 5
        assert name != "nefl-d" or all(
            min(abs(share - gamma) for gamma in GAMMAS) < 0.2 for share in shares
        )
        assert all(submodel.width == 1 for submodel in menu) == (name == "nefl-d")
        assert name != "nefl-w" or all(submodel.mask == menu[-1].mask for submodel in menu)


def test_the_rule_drops_the_last_block_that_brings_the_share_nearest():
    """Parameters of 174,976 in the last blocks: 4,673 (section 0), 18,561 and 73,985 (section 2);
    0.55 of all is 78,739 fewer.
    """
    chosen = find_method("nefl-d")
    menu = chosen.menu(DIGITS, configure(chosen, {"gammas": (0.55, 0.9, 1.0)}))
    assert parameters(menu[-1]) == 174_976
    assert [parameters(menu[-1]) - parameters(s) for s in menu] == [4_673 + 73_985, 18_561, 0]
    assert [submodel.mask for submodel in menu] == [
        ((1, 0), (1, 1), (1, 0)),
        ((1, 1), (1, 0), (1, 1)),
        ((1, 1), (1, 1), (1, 1)),
    ]


def test_a_share_below_the_smallest_leaves_one_block():
    chosen = find_method("nefl-d")
    (tiny,) = chosen.menu(network("mlp", (784,), 10), configure(chosen, {"gammas": (0.01,)}))
    assert tiny.mask == ((1, 0),)


def test_widths_and_depths_may_be_named_instead():
    chosen = find_method("nefl-w")
    menu = chosen.menu(DIGITS, configure(chosen, {"widths": (0.5, 1.0), "depths": (1, 2)}))
    assert {submodel.name for submodel in menu} == {
        "w0.5-d1.1.1-steps",
        "w0.5-d2.2.2-steps",
        "w1-d1.1.1-steps",
        "w1-d2.2.2-steps",
    }


@pytest.mark.parametrize("name", NAMES)
def test_the_error_for_a_network_without_steps_lists_those_that_have_them(name):
    chosen = find_method(name)
    with pytest.raises(
        ConfigError, match=r"model 'vgg' has no steps; models that have: .*resnet.*vit"
    ):
        chosen.menu(network("vgg", (1, 8, 8), 10), configure(chosen, {}))


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"gammas": ()}, r"gammas \[\]: expected at least one fraction"),
        (
            {"gammas": (0.0, 1.0)},
            r"gammas\[0\]: expected a number above 0 .* found 0.0",
        ),
        (
            {"gammas": ("half",)},
            r"gammas\[0\]: expected a number above 0 .* found 'half'",
        ),
        ({"depths": [1]}, r"depths \[1\] without widths: set both, or use gammas"),
        ({"flex": -1}, "nefl-do: flex: expected a whole number of at least 0, found -1"),
        ({"inconsistent": "none"}, "first_step"),
    ],
)
def test_settings_that_make_no_sense_are_refused(given, message):
    chosen = find_method("nefl-do")
    with pytest.raises(ConfigError, match=message):
        chosen.menu(DIGITS, configure(chosen, given))


# ---- state ---------------------------------------------------------------------------------------


def test_norms_and_steps_are_averaged_within_a_submodel_and_the_rest_over_all():
    chosen, state, menu = begun("nefl-w")
    narrow, whole = menu[0], menu[-1]
    sent = [
        (s, {name: torch.full(shape, value) for name, shape in (shapes(s) | statistics(s)).items()})
        for s, value in ((narrow, 2.0), (whole, 6.0))
    ]
    done = after(chosen, state, *sent)
    first, last, between = (received(chosen, done, s) for s in (narrow, whole, menu[1]))
    for name in (
        "norm.weight",
        "norm.running_var",
        "sections.1.0.shortcut.norm.bias",
        "sections.1.0.step",
    ):
        assert torch.equal(first[name], torch.full_like(first[name], 2.0))
        assert torch.equal(last[name], torch.full_like(last[name], 6.0))
        assert torch.equal(between[name], received(chosen, state, menu[1])[name])
    n = first["stem.weight"].shape[0]
    assert n == 8
    assert torch.equal(last["stem.weight"][:n], torch.full_like(first["stem.weight"], 4.0))
    assert torch.equal(last["stem.weight"][n:], torch.full_like(last["stem.weight"][n:], 6.0))
    assert torch.equal(last["linear.bias"], torch.full((10,), 4.0))


@pytest.mark.parametrize(
    ("kind", "own"),
    [("norms+steps", {"norm.weight", "step"}), ("steps", {"step"}), ("none", set())],
)
def test_inconsistent_parameters_can_be_configured(kind, own):
    chosen, state, menu = begun("nefl-w", inconsistent=kind)
    homes = {row.local: row.home for row in chosen.place(state, menu[0]).rows}
    found = {
        name
        for name, local in (("norm.weight", "norm.weight"), ("step", "sections.0.0.step"))
        if "@" in homes[local]
    }
    assert found == own
    assert homes["stem.weight"] == "stem.weight"


def test_layer_norms_are_shared_by_default():
    chosen, state, menu = begun("nefl-w", small("vit"))
    own = {
        row.local.rpartition(".")[2] for row in chosen.place(state, menu[0]).rows if "@" in row.home
    }
    assert own == {"step"}
    chosen, state, menu = begun("nefl-w", small("vit"), inconsistent="norms+steps")
    assert any(
        row.local == "norm.weight" and "@" in row.home for row in chosen.place(state, menu[0]).rows
    )


def test_both_steps_of_a_transformers_layer_begin_with_what_is_left_out_after_it():
    chosen, state, menu = begun("nefl-do", small("vit"), gammas=(0.5, 1.0))
    assert menu[0].mask == ((1, 0, 0),) or menu[0].mask == ((1, 1, 0),)
    last = sum(menu[0].mask[0]) - 1
    got = received(chosen, state, menu[0])
    carried = float(3 - last)
    assert {float(got[f"sections.0.{last}.{part}.step"]) for part in ("attention", "feed")} == {
        carried
    }
    assert carried > 1
    assert {
        float(value)
        for name, value in received(chosen, state, menu[1]).items()
        if name.endswith("step")
    } == {1.0}


def test_the_projection_of_a_skipped_first_block_is_trained_by_all_that_run_it_or_only_by_owners():
    for owner, moves in (("executes", True), ("mask", False)):
        chosen, state, menu = begun("nefl-d", projection_owner=owner)
        skips = replace(menu[-1], mask=((1, 1), (0, 1), (1, 1)))
        sent = {name: value + 1 for name, value in received(chosen, state, skips).items()}
        done = received(chosen, after(chosen, state, (skips, sent)), skips)
        conv, norm = "sections.1.0.shortcut.conv.weight", "sections.1.0.shortcut.norm.weight"
        assert torch.equal(done[conv], sent[conv]) == moves
        assert torch.equal(done[norm], sent[norm])
        assert torch.equal(done["sections.1.1.conv1.weight"], sent["sections.1.1.conv1.weight"])


def test_fixed_steps_stay_while_all_else_is_trained():
    data = digits(0, 8)
    moved = {}
    for kind in ("learnable", "fixed"):
        chosen, state, menu = begun("nefl-do", step_sizes=kind)
        net = build(menu[0])
        net.load_state_dict(received(chosen, state, menu[0]), strict=False)
        before = {name: value.clone() for name, value in net.named_parameters()}
        train(
            net,
            menu[0],
            replace(chosen.recipe(state, menu[0]), epochs=1),
            data,
            seed=0,
        )
        moved[kind] = {
            name for name, value in net.named_parameters() if not torch.equal(value, before[name])
        }
    assert any(name.endswith("step") for name in moved["learnable"])
    assert {name for name in moved["learnable"] if not name.endswith("step")} == moved["fixed"]


# ---- tiers ---------------------------------------------------------------------------------------


def given_over(chosen, state, agents, rounds):
    """Return the submodels by round and agent. agents: submodels that each can afford."""
    state, rng = replace(state, agents={name: {} for name in agents}), np.random.default_rng(0)
    return [
        [
            chosen.assign(replace(state, round=r), profile(name), able, rng)
            for name, able in agents.items()
        ]
        for r in range(rounds)
    ]


@pytest.mark.parametrize(("agents", "rounds"), [(1, 8), (2, 4), (3, 3), (5, 2), (20, 1)])
@pytest.mark.parametrize("seed", range(3))
def test_equal_devices_that_can_afford_every_submodel_soon_train_every_one(agents, rounds, seed):
    chosen, state, menu = begun("nefl-w", seed=seed)
    assert len(menu) == 5
    found = given_over(chosen, state, {f"a{i:02d}": menu for i in range(agents)}, rounds)
    assert {submodel for row in found for submodel in row} == set(menu)


def test_a_device_trains_its_tier_and_two_below_equally_and_all_smaller_ones_as_one():
    chosen, state, menu = begun("nefl-w")
    for able, cycle in (
        (menu, [1, 1, 2, 2, 2]),
        (menu[:4], [1, 1, 1, 1]),
        (menu[:2], [1, 1]),
        (menu[2:3], [1]),
    ):
        found = [
            row[0] for row in given_over(chosen, state, {"a": able, "b": menu}, 2 * sum(cycle))
        ]
        assert [found.count(submodel) for submodel in able] == [2 * times for times in cycle]
        assert set(found) <= set(able), "a device never gets what it cannot afford"
        drawn = {
            chosen.assign(state, profile("stranger"), able, np.random.default_rng(i))
            for i in range(60)
        }
        assert drawn == set(able)


def test_the_submodel_of_a_device_depends_only_on_the_seed_and_the_round():
    chosen, state, menu = begun("nefl-w", seed=1)
    fleet = {"a": menu, "b": menu[:4]}
    assert given_over(chosen, state, fleet, 16) == given_over(chosen, state, fleet, 16)
    _, other, _ = begun("nefl-w", seed=2)
    assert given_over(chosen, state, fleet, 16) != given_over(chosen, other, fleet, 16)


def test_a_tier_by_index_never_asks_for_more_than_a_device_can_afford():
    chosen, state, menu = begun("nefl-w", tiers="index")
    state = replace(state, agents={name: {} for name in "abcde"})
    rng = np.random.default_rng(0)
    assert {chosen.assign(state, profile("a"), menu, rng) for _ in range(60)} == set(menu[:3])
    assert {chosen.assign(state, profile("e"), menu[:4], rng) for _ in range(60)} == set(menu[2:4])
    assert {chosen.assign(state, profile("e"), menu[:2], rng) for _ in range(10)} == {menu[1]}
    assert chosen.assign(state, profile("a"), menu[4:], rng) == menu[4]


# ---- runs ----------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_two_rounds_of_unequal_devices_end_with_finite_scores_of_every_submodel(tmp_path, name):
    fleet = [
        Member("a0", digits(0, 12), 0.01),
        Member("a1", digits(1, 12), 0.02),
        Member("a2", digits(2, 12), 0.5),
    ]
    given = {
        "method.name": name,
        "model.name": "resnet-small",
        "rounds": 2,
        "evaluate.every": 2,
        "evaluate.examples": 20,
        "train.epochs": 1,
    }
    done = federate(tmp_path, fleet, given)
    scores = {s.submodel: s.loss for s in done.result.scores if s.view == "central"}
    assert len(scores) >= 4
    assert all(np.isfinite(loss) for loss in scores.values())
    assert all(outcome is None for outcome in (member.error for member in fleet))


@pytest.mark.slow
def test_it_learns_digits(tmp_path):
    fleet = [Member(f"a{i}", digits(i, 3), speed) for i, speed in enumerate((0.01, 0.02))]
    given = {
        "method.name": "nefl-wd",
        "model.name": "mlp-small",
        "rounds": 12,
        "evaluate.every": 12,
    }
    done = federate(tmp_path, fleet, given)
    central = {s.submodel: s.accuracy for s in done.result.scores if s.view == "central"}
    assert len(central) == 5
    assert central["w1-d2-steps"] > 0.85
    assert sum(central.values()) / 5 > 0.75
