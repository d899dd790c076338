"""DynamicFL: the branches that a device trains, keeps and sends, and that training with
them works.
"""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest

from coordinator.assign.affordable_submodels import UNENCODED, make_offers
from federated.errors import ConfigError
from federated.method import configure
from federated.methods.catalogue import find_method
from federated.methods.dynamicfl import SCORES, allot_branches
from federated.task import Card, Profile, Task, Timing
from federated.training.training_loop import open_session, train_session
from models.cost import BranchableLayer, branchable_layers, cost
from models.layers.mergeable_branches import Branch, originals
from models.menu import probes
from models.named_network import network
from models.submodel import Moments
from models.submodel_building import build, full, initial, shapes, statistics
from tests.support.memory_federation import Member, digits, federate
from tests.support.small_tasks import perform

NET = network("preresnet", (1, 4, 4), 3, Moments((8.0,), (5.0,)))
METHOD = find_method("dynamicfl")


def examples(n=20):
    """Return images whose brightness is their class."""
    rng = np.random.default_rng(0)
    y = np.arange(n, dtype=np.int64) % 3
    x = (rng.integers(0, 4, (n, 1, 4, 4)) + 6 * y[:, None, None, None]).astype(np.uint8)
    return SimpleNamespace(x=x, y=y, x_held=x[:3], y_held=y[:3], labels=(0, 1, 2))


def begin_method(net=NET, **given):
    """Return the menu, and the state before the first round."""
    settings = configure(METHOD, {"lr": 0.02, "batch": 8, **given})
    menu = METHOD.menu(net, settings)
    return menu, METHOD.start(initial(net, 0), menu, settings)


def train_round(state, submodel, *, number=1, kept=None, method=METHOD, data=None):
    """Return the update and the memory of a device after a round."""
    sent = {
        name: value.numpy()
        for name, value in method.dispatch(state, method.place(state, submodel)).items()
    }
    task = Task(
        "r", number, 0, "a0", "train", submodel, "v", "", 0, method.recipe(state, submodel), 60.0
    )
    update, memory = perform(task, sent, data or examples(), kept=kept)
    return update.tensors, memory


def count_branches(memory):
    """Return branches of each layer in the last round, by its scores."""
    return {name.removeprefix(SCORES): len(value) for name, value in memory.items()}


# ---- the menu ------------------------------------------------------------------------------------


def test_the_menu_is_one_network_with_more_and_more_branches():
    menu, state = begin_method(branches=3)
    assert [s.branches for s in menu] == [1, 2, 3]
    assert {s.plain for s in menu} == {full(NET)}
    assert [s.name.rpartition("-")[2] for s in menu[1:]] == ["x2", "x3"]
    assert METHOD.assign(state, None, menu[:2], np.random.default_rng(0)) == menu[1]
    plans = {tuple(METHOD.place(state, s).rows) for s in menu}
    assert len(plans) == 1, "all exchange the same tensors"


@pytest.mark.parametrize(
    ("given", "reason"),
    [
        ({"branches": 0}, "dynamicfl: branches: expected a whole number of at least 1, found 0"),
        ({"branches": 6}, "at most 5 for preresnet, found 6"),
        ({"rank": 0}, "dynamicfl: rank: expected a whole number of at least 1, found 0"),
    ],
)
def test_branches_that_no_layer_can_have_are_refused(given, reason):
    with pytest.raises(ConfigError, match=reason):
        METHOD.menu(NET, configure(METHOD, given))


def test_a_device_gets_the_most_branches_that_its_memory_and_its_pace_allow():
    menu, state = begin_method()
    recipe = METHOD.recipe(state, menu[-1])
    timings = tuple(Timing(s, 8, cost(s, 8).macs / 1e8) for s in probes(NET, (1, 2)))
    card = Card("d", (1, 4, 4), "uint8", 3, 80, 0, (0.0,), (1.0,))

    def assign_with(memory):
        profile = Profile("a", "h", "s", 1.0, memory, 0.0, 1, "t", card, timings)
        offered = make_offers(profile, menu, recipe, 1.0, UNENCODED)
        return METHOD.assign(
            state, profile, [o.submodel for o in offered if o.fits], np.random.default_rng(0)
        ).branches, [o.step for o in offered]

    for submodel in menu:
        assert assign_with(cost(submodel, 8).memory)[0] == submodel.branches
    steps = assign_with(10**9)[1]
    assert steps == sorted(set(steps)), "each branch more takes longer"


# ---- which layers --------------------------------------------------------------------------------


def row(*floats, places=1):
    return BranchableLayer(tuple(Branch("kernel", ((n,),)) for n in floats), places, 3)


def test_the_work_of_some_branches_in_every_layer_is_spent_in_order_on_all_that_a_layer_can_have():
    """Layers a and b of 4 places, c of 1, with branches of 1, 3 and 3 floats. Two branches
    everywhere: 4 + 4 + 1 = 9. From the bottom: a takes 4 of it and not 12; b takes 4; c the last 1.
    """
    able = {"a": row(1, 3, 3, places=4), "b": row(1, 3, 3, places=4), "c": row(1, 3, 3)}
    assert {name: len(chosen) for name, chosen in allot_branches(able, 2, "abc").items()} == {
        "a": 1,
        "b": 1,
        "c": 1,
    }
    assert {name: len(chosen) for name, chosen in allot_branches(able, 2, "cab").items()} == {
        "a": 0,
        "b": 0,
        "c": 3,
    }
    assert {name: len(chosen) for name, chosen in allot_branches(able, 4, "cab").items()} == {
        "a": 3,
        "b": 3,
        "c": 3,
    }
    assert {name: len(chosen) for name, chosen in allot_branches(able, 1, "abc").items()} == {
        "a": 0,
        "b": 0,
        "c": 0,
    }


def test_no_order_spends_more_than_the_budget():
    able = branchable_layers(full(NET), 3)
    budget = cost(replace(full(NET), branches=2)).macs - cost(full(NET)).macs
    for order in (list(able), list(able)[::-1]):
        chosen = allot_branches(able, 2, order)
        spent = sum(
            able[name].places * branch.floats
            for name, branches in chosen.items()
            for branch in branches
        )
        assert 0 < spent <= budget
        assert max(map(len, chosen.values())) == 3


def test_the_first_round_begins_at_the_bottom_and_the_next_with_the_highest_scores():
    menu, state = begin_method()
    _, first = train_round(state, menu[1])
    branches = list(count_branches(first).values())
    assert branches[0] == 4
    assert branches[-1] == 1
    assert sum(branches) > len(branches)
    top = "sections.2.1.conv2"
    scores = {
        name: np.full_like(value, float(name == SCORES + top)) for name, value in first.items()
    }
    second = count_branches(train_round(state, menu[1], number=2, kept=scores)[1])
    assert count_branches(first)[top] == 1
    assert second[top] == 4
    assert second["stem"] > 1, "what is left goes to the lower layers, whose scores tie"


def test_a_network_with_attention_keeps_its_plan():
    net = network("vit-micro", (1, 4, 4), 3, Moments((8.0,), (5.0,)))
    menu, state = begin_method(net)
    _, first = train_round(state, menu[1])
    turned = {name: np.full_like(value, index) for index, (name, value) in enumerate(first.items())}
    assert count_branches(train_round(state, menu[1], number=2, kept=turned)[1]) == count_branches(
        first
    )
    assert count_branches(train_round(state, menu[2], number=2, kept=turned)[1]) != count_branches(
        first
    ), "unless its device may have more"


def test_scores_are_mean_gradients_of_each_branch_in_the_last_epoch():
    """Two epochs of two steps: the gradients of the last two, per parameter."""
    menu, state = begin_method(epochs=2, branches=2)
    data, seen = examples(16), []
    session = open_session(
        build(menu[1]),
        menu[1],
        METHOD.recipe(state, menu[1]),
        data,
        seed=0,
    )

    def step(session):
        METHOD.hooks.step(session)
        seen.append([float(branch[0].grad.abs().mean()) for branch in originals(session.net.stem)])

    train_session(session, replace(METHOD.hooks, step=step))
    assert session.steps == len(seen) == 4
    expected = [seen[2][branch] + seen[3][branch] for branch in range(2)]
    assert session.memory[SCORES + "stem"].tolist() == pytest.approx(expected, rel=1e-5)


# ---- training ------------------------------------------------------------------------------------


@pytest.mark.parametrize("norm", ["static", "tracked"])
def test_a_device_sends_the_plain_network(norm):
    menu, state = begin_method(norm=norm)
    tensors, memory = train_round(state, menu[-1])
    plain = shapes(full(NET)) | (statistics(full(NET)) if norm == "tracked" else {})
    assert {name: value.shape for name, value in tensors.items()} == plain
    assert set(count_branches(memory).values()) == {4}
    assert not np.array_equal(tensors["stem.weight"], state.tensors["stem.weight"].numpy())


def test_more_branches_move_more():
    """After one step of plain gradient descent from the same weights, a corner of a kernel has
    moved as it does without branches, its centre four times as far (Lemma 2).
    """
    menu, state = begin_method(steps=1, momentum=0.0, lr=0.1)
    before, name = state.tensors["stem.weight"].numpy(), "stem.weight"
    one, four = (train_round(state, submodel)[0][name] - before for submodel in (menu[0], menu[3]))
    cross = np.array([[1, 2, 1], [2, 4, 2], [1, 2, 1]])
    assert np.abs(one).max() > 1e-3
    np.testing.assert_allclose(four, one * cross, rtol=0, atol=1e-5)


@pytest.mark.parametrize("model", ["preresnet", "mlp"])
def test_how_branches_start_changes_nothing_but_rounding(model):
    found = []
    for init in ("normal", "zeros"):
        menu, state = begin_method(
            network(model, (1, 4, 4), 3, Moments((8.0,), (5.0,))), init=init, steps=3, branches=2
        )
        found.append(train_round(state, menu[1])[0])
    for name, value in found[0].items():
        np.testing.assert_allclose(value, found[1][name], rtol=1e-3, atol=1e-4)


def test_low_rank_branches_train_a_network_of_linear_layers():
    menu, state = begin_method(
        network("mlp", (1, 4, 4), 3, Moments((8.0,), (5.0,))), linear="low-rank", rank=2, branches=2
    )
    tensors, memory = train_round(state, menu[1])
    assert set(count_branches(memory).values()) == {2}
    assert all(np.isfinite(value).all() for value in tensors.values())


def test_one_branch_is_fedavg_bit_for_bit():
    menu, state = begin_method()
    assert METHOD.recipe(state, menu[0]) == find_method("fedavg").recipe(state, menu[0])
    ours, memory = train_round(state, menu[0])
    theirs, _ = train_round(state, menu[0], method=find_method("fedavg"))
    assert not memory
    assert all(np.array_equal(ours[name], theirs[name]) for name in theirs)


def test_the_same_task_twice_gives_the_same_bits():
    menu, state = begin_method()
    first, second = train_round(state, menu[2]), train_round(state, menu[2])
    for one, other in zip(first, second, strict=True):
        assert one.keys() == other.keys()
        assert all(np.array_equal(one[name], other[name]) for name in one)


def test_branches_leave_nothing_behind_in_the_network():
    menu, state = begin_method()
    data, net = examples(), build(menu[3])
    names = [name for name, _ in net.named_parameters()]
    session = open_session(net, menu[3], METHOD.recipe(state, menu[3]), data, seed=0)
    train_session(session, METHOD.hooks)
    assert len(session.parameters) > len(names)
    assert sorted(name for name, _ in net.named_parameters()) == sorted(names)


# ---- whole runs ----------------------------------------------------------------------------------

SMALL = {"model.name": "resnet-small", "method.name": "dynamicfl", "method.branches": 3}


@pytest.mark.slow
def test_three_budgets_train_three_numbers_of_branches_of_one_network(tmp_path):
    menu = METHOD.menu(network("resnet-small", (1, 8, 8), 10), configure(METHOD, {"branches": 3}))
    room = [int(cost(submodel, 32).memory / 0.8) + 1000 for submodel in menu]
    fleet = [Member(f"a{i}", digits(i, 3), memory=memory) for i, memory in enumerate(room)]
    settings = {
        **SMALL,
        "rounds": 2,
        "evaluate.every": 2,
        "method.epochs": 2,
        "assign.memory": 0.8,
        "assign.slack": 10.0,
    }
    done = federate(tmp_path, fleet, settings)
    assert [done.result.history.assigned[f"a{i}"].branches for i in range(3)] == [1, 2, 3]
    assert {
        home: tuple(value.shape) for home, value in done.result.state.tensors.items()
    } == shapes(menu[0]) | statistics(menu[0])
    assert {s.submodel for s in done.result.scores} == {menu[0].plain.name}, (
        "one network is evaluated, without branches"
    )
    central = [s.accuracy for s in done.result.scores if s.view == "central"]
    assert central[0] > 0.5, central
    assert all(np.isfinite(s.loss) for s in done.result.scores)


@pytest.mark.slow
def test_static_norms_are_calibrated_for_the_plain_network(tmp_path):
    fleet = [Member(f"a{i}", digits(i, 3)) for i in range(3)]
    done = federate(
        tmp_path,
        fleet,
        {
            **SMALL,
            "method.norm": "static",
            "rounds": 2,
            "evaluate.every": 2,
            "assign.submodels": {"a0": "w1-d2.2.2-x3"},
        },
    )
    assert done.result.history.assigned["a0"].branches == 3
    assert any(home.startswith("stats/w1-d2.2.2/") for home in done.result.state.tensors)
    assert all(np.isfinite(s.loss) for s in done.result.scores)
