"""SCAFFOLD: the coordinator's part per coordinate, and the device's part with other optimisers than
the paper's.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from federated.engine.aggregate import Total, fold
from federated.method import configure
from federated.methods.catalogue import METHODS, find_method
from federated.methods.scaffold import make_disjoint, scaffold
from federated.task import Update
from federated.training import state_between_rounds
from federated.training.hooks import Hooks
from federated.training.training_inputs import TrainingSet
from federated.training.training_loop import open_session, train_session
from federated.wire import envelope, messages
from federated.wire.links.memory import MemoryBroker
from models.named_network import network
from models.slicing import as_slices, corner
from models.submodel import Submodel
from models.submodel_building import build, full, initial, shapes, statistics
from tests.support.golden import floats, register_toy
from tests.support.memory_federation import Member, digits, federate

X, Y = np.zeros((1, 1), np.float32), np.zeros(1, np.int64)


@pytest.fixture
def toy(monkeypatch):
    return register_toy(monkeypatch)


def begin_method(toy, **given):
    """Return two sizes of one vector, of four and of two entries; all weights are 1, all variates
    0.
    """
    whole = toy(lambda submodel: {"w": (4 if submodel.width == 1 else 2,)})
    half = Submodel(whole.network, 0.5, whole.mask)
    chosen = find_method("scaffold")
    settings = configure(chosen, {"norm": "static", "weighting": "uniform", "epochs": 1, **given})
    return chosen, chosen.start({"w": torch.ones(4)}, [half, whole], settings), whole, half


def finish_round(chosen, state, *updates):
    total = Total()
    for index, (submodel, w, c) in enumerate(updates):
        update = Update(
            "r",
            0,
            0,
            str(index),
            "train",
            submodel,
            "0",
            1 + 8 * index,
            2,
            {"w": floats(w), "c/w": floats(c)},
            {},
        )
        assert fold(total, chosen.parts(state, chosen.place(state, submodel), update), (index,))
    return chosen.finish(state, total, np.random.default_rng(0)).tensors


def known(folder, round, variates):
    """Return the memory of a device with these variates after a round."""
    return state_between_rounds.read(
        folder / state_between_rounds.FOLDER,
        round,
        {home: tuple(value.shape) for home, value in variates.items()},
    )


def test_variates_are_divided_by_the_devices_of_the_fleet_that_hold_a_coordinate(toy):
    """Three small and one whole are there; one of each answers: 2 of 4 hold the first half, 1 of 1
    the second.
    """
    chosen, state, whole, half = begin_method(toy)
    state = replace(state, fleet={half: 3, whole: 1})
    after = finish_round(chosen, state, (half, [3, 3], [1, 2]), (whole, [1, 1, 5, 5], [3, 0, 8, 8]))
    assert after["c/w"].tolist() == [1.0, 0.5, 8.0, 8.0]
    assert after["w"].tolist() == [2.0, 2.0, 5.0, 5.0]


def test_variates_outside_the_submodels_of_a_round_do_not_change(toy):
    chosen, state, whole, half = begin_method(toy)
    state = replace(
        state,
        fleet={half: 1, whole: 1},
        tensors={**state.tensors, "c/w": floats([0.25, 0.25, 0.1, 0.3])},
    )
    after = finish_round(chosen, state, (half, [2, 2], [1, -1]))
    assert after["c/w"][:2].tolist() == [0.75, -0.25]
    assert torch.equal(after["c/w"][2:], state.tensors["c/w"][2:])
    assert torch.equal(after["w"][2:], state.tensors["w"][2:])


def test_devices_that_answer_are_counted_even_if_the_fleet_is_unknown(toy):
    chosen, state, whole, _ = begin_method(toy)
    after = finish_round(chosen, state, (whole, [1] * 4, [1] * 4), (whole, [1] * 4, [3] * 4))
    assert after["c/w"].tolist() == [2.0] * 4


def test_the_coordinator_goes_a_share_of_the_way(toy):
    chosen, state, whole, _ = begin_method(toy, server_lr=0.5)
    after = finish_round(chosen, state, (whole, [3, 3, 3, 3], [1] * 4))
    assert after["w"].tolist() == [2.0] * 4
    assert after["c/w"].tolist() == [1.0] * 4


def test_weights_can_be_averaged_by_examples_and_variates_are_not(toy):
    """Two devices with 1 and 9 examples."""
    chosen, state, whole, _ = begin_method(toy, weighting="samples")
    after = finish_round(chosen, state, (whole, [11] * 4, [0] * 4), (whole, [1] * 4, [4] * 4))
    assert after["w"].tolist() == [2.0] * 4
    assert after["c/w"].tolist() == [2.0] * 4


def test_sharing_can_be_limited_to_devices_of_one_architecture(toy):
    chosen, state, whole, half = begin_method(toy, sharing="architecture")
    after = finish_round(chosen, state, (half, [3, 3], [1, 1]), (whole, [5, 5, 5, 5], [2, 2, 2, 2]))
    assert (after[f"w@{half.name}"].tolist(), after[f"c/w@{half.name}"].tolist()) == (
        [3.0, 3.0],
        [1.0, 1.0],
    )
    assert (after[f"w@{whole.name}"].tolist(), after[f"c/w@{whole.name}"].tolist()) == (
        [5.0] * 4,
        [2.0] * 4,
    )


def test_running_statistics_have_no_variate():
    net = network("mlp", (6,), 3)
    chosen = find_method("scaffold")
    state = chosen.start(initial(net, 0), [full(net)], configure(chosen, {"norm": "tracked"}))
    sent = chosen.dispatch(state, chosen.place(state, full(net)))
    assert {name for name in sent if name.startswith("c/")} == {
        f"c/{name}" for name in shapes(full(net))
    }
    assert statistics(full(net)).keys() <= sent.keys()


@pytest.mark.parametrize("optimiser", [{"momentum": 0.9}, {"optimiser": "adam"}, {"clip": 0.5}])
def test_under_any_optimiser_the_variate_of_a_device_is_the_mean_of_its_own_directions(
    toy, optimiser
):
    """A constant gradient of 2: with zero variates and with c = 3, c_i = 7 the kept c_i+ is the
    same, while the weights differ by K eta (c - c_i).
    """
    chosen, state, whole, _ = begin_method(toy, lr=0.125, **{"epochs": 4, **optimiser})
    kept, moved = [], []
    for c, ours in ((0.0, 0.0), (3.0, 7.0)):
        session = open_session(
            build(whole), whole, chosen.recipe(state, whole), TrainingSet(X, Y), seed=0
        )
        session.received, session.memory = (
            {"w": torch.zeros(4), "c/w": torch.full((4,), c)},
            {"c/w": torch.full((4,), ours)},
        )
        train_session(session, Hooks("toy", loss=lambda s, x, truth: 2 * s.net.w.sum()))
        assert session.step == 4
        kept.append(session.memory["c/w"])
        moved.append(session.net.w.detach())
        torch.testing.assert_close(session.sent["c/w"], kept[-1] - ours)
    torch.testing.assert_close(kept[1], kept[0], rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(kept[0], -moved[0] / (4 * 0.125))
    torch.testing.assert_close(moved[1] - moved[0], torch.full((4,), 4 * 0.125 * 4.0))


@pytest.mark.parametrize("momentum", [0.0, 0.9])
def test_unequal_devices_of_skewed_data_learn_digits(tmp_path, momentum):
    fleet = [
        Member(f"a{i}", digits(i, 3, "dirichlet:0.3"), speed)
        for i, speed in enumerate((0.01, 0.018, 0.5))
    ]
    sizes = {"method.widths": [0.5, 1.0], "method.depths": [1, 2], "method.momentum": momentum}
    done = federate(
        tmp_path,
        fleet,
        {
            "method.name": "scaffold",
            "model.name": "mlp",
            "rounds": 4,
            "train.epochs": 3,
            "evaluate.every": 4,
            **sizes,
        },
    )
    central = [s for s in done.result.scores if s.view == "central"]
    assert len({s.name for s in done.result.history.assigned.values()}) > 1
    assert all(np.isfinite(s.loss) for s in done.result.scores)
    assert max(s.accuracy for s in central) > 0.6
    assert any(
        bool(value.any())
        for home, value in done.result.state.tensors.items()
        if home.startswith("c/")
    )


@pytest.mark.parametrize(
    "what", ["an update was refused", "no answer arrived", "the coordinator came back"]
)
def test_the_variate_of_the_coordinator_is_the_mean_of_its_devices(tmp_path, what):
    """c = (1/N) sum c_i after every round with all N devices, also with lost messages: both sides
    agree on the folded updates.
    """

    def spoil(update):
        lost = what == "an update was refused" and update.work == "train" and update.round == 2
        return (
            replace(
                update, tensors={name: value * np.nan for name, value in update.tensors.items()}
            )
            if lost
            else update
        )

    given = {
        "method.name": "scaffold",
        "model.name": "mlp",
        "train.steps": 2,
        "evaluate.devices": False,
        "fleet.deadline": 20.0,
    }

    def lose_receipts(delivery):
        told = envelope.decode(delivery.payload) if "/cmd/" in delivery.topic else None
        return (
            [] if isinstance(told, messages.Receipt) and what == "no answer arrived" else [delivery]
        )

    def fleet():
        return [Member("a0", digits(0, 2)), Member("a1", digits(1, 2), change=spoil)]

    again = what == "the coordinator came back"
    done = federate(
        tmp_path,
        fleet(),
        {**given, "rounds": 2 if again else 3},
        broker=MemoryBroker(tamper=lose_receipts),
    )
    if again:
        done = federate(tmp_path, fleet(), {**given, "rounds": 3}, resume=True)
    variates = {
        home: value for home, value in done.result.state.tensors.items() if home.startswith("c/")
    }
    folded = dict(done.result.history.folded)
    assert folded == {"a0": 3, "a1": 3}
    assert all(bool(value.any()) for value in variates.values())
    kept = [known(tmp_path / name, folded[name], variates) for name in ("a0", "a1")]
    for home, value in variates.items():
        np.testing.assert_allclose(
            value.numpy(), (kept[0][home] + kept[1][home]) / 2, rtol=1e-4, atol=1e-6
        )


# ---- devices that get another submodel -----------------------------------------------------------

SMALL, WIDE, SHALLOW = "w0.5-d2", "w1-d2", "w1-d1"
SIZES = {
    "model.name": "mlp",
    "method.widths": [0.5, 1.0],
    "method.depths": [1, 2],
    "train.steps": 2,
    "evaluate.devices": False,
}


TURNS = {
    "narrower": [[WIDE], [SMALL], [WIDE]],
    "shallower": [[WIDE], [SHALLOW], [WIDE]],
    "wider": [[SMALL], [WIDE], [SHALLOW], [WIDE]],
    "two that swap": [[WIDE, SMALL], [SMALL, WIDE], [WIDE, SMALL]],
    "two that shrink": [[WIDE, WIDE], [SHALLOW, SMALL], [SMALL, SHALLOW]],
}
"""What each device trains, round by round."""


def check_mean(folder, done, submodels):
    """Check that c is the mean of the c_i over the devices whose submodels ever held a coordinate;
    0 without any.
    """
    variates = {
        home: value for home, value in done.result.state.tensors.items() if home.startswith("c/")
    }
    sizes = {
        submodel.name: submodel
        for submodel in find_method("scaffold").menu(
            network("mlp", (1, 8, 8), 10), {"widths": [0.5, 1.0], "depths": [1, 2]}
        )
    }
    kept = [known(folder / f"a{i}", len(submodels), variates) for i in range(len(submodels[0]))]
    for home, value in variates.items():
        held = np.zeros((len(kept), *value.shape), bool)
        for index, names in enumerate(zip(*submodels, strict=True)):
            for name in names:
                if (shape := shapes(sizes[name]).get(home.removeprefix("c/"))) is not None:
                    held[index][as_slices(corner(shape))] = True
        mean = sum(one.get(home, np.zeros(value.shape)) for one in kept) / np.maximum(
            held.sum(0), 1
        )
        np.testing.assert_allclose(value.numpy(), mean, rtol=0, atol=1e-6)
    assert max(float(value.abs().max()) for value in variates.values()) > 1e-2


def federated_turns(folder, submodels, *, resume=False, **given):
    members = [Member(f"a{i}", digits(i, 2)) for i in range(len(submodels[0]))]
    return federate(
        folder,
        members,
        {**SIZES, "method.name": "scaffold", "rounds": len(submodels), **given},
        resume=resume,
    )


@pytest.mark.parametrize("method_name", ["scaffold", "inco-scaffold"])
@pytest.mark.parametrize("turns", TURNS)
def test_c_is_the_mean_of_the_c_i_when_devices_get_other_submodels(tmp_path, method_name, turns):
    """After every round; the coordinator and the devices restart between the rounds."""
    for number in range(1, len(TURNS[turns]) + 1):
        submodels = TURNS[turns][:number]
        pins = {f"a{i}": name for i, name in enumerate(submodels[-1])}
        done = federated_turns(
            tmp_path,
            submodels,
            resume=number > 1,
            **{"method.name": method_name, "assign.submodels": pins},
        )
        check_mean(tmp_path, done, submodels)


def test_each_submodel_has_its_own_c_and_c_i_when_only_equal_devices_share(tmp_path):
    """Two devices swap: each c is the mean of both devices' c_i of that submodel, and none knows of
    the other submodel's.
    """
    for number in (1, 2, 3):
        submodels = TURNS["two that swap"][:number]
        pins = {f"a{i}": name for i, name in enumerate(submodels[-1])}
        done = federated_turns(
            tmp_path,
            submodels,
            resume=number > 1,
            **{"method.sharing": "architecture", "assign.submodels": pins},
        )
        variates = {
            home: value
            for home, value in done.result.state.tensors.items()
            if home.startswith("c/") and "@" in home
        }
        kept = [known(tmp_path / name, number, variates) for name in pins]
        assert {home.partition("@")[2] for home in variates} == {SMALL, WIDE}
        for home, value in variates.items():
            found = [one[home].astype(float) for one in kept if home in one]
            assert len(found) == (1 if number == 1 else 2)
            np.testing.assert_allclose(value.numpy(), sum(found) / len(found), rtol=0, atol=1e-6)


@pytest.mark.parametrize("turns", TURNS)
def test_c_is_the_mean_of_the_c_i_when_one_coordinator_gives_other_submodels(
    tmp_path, monkeypatch, turns
):
    def assign(state, profile, affordable, rng):
        name = TURNS[turns][state.round][int(profile.agent.removeprefix("a"))]
        return next(submodel for submodel in affordable if submodel.name == name)

    monkeypatch.setitem(METHODS, "scaffold", lambda: replace(scaffold(), assign=assign))
    check_mean(tmp_path, federated_turns(tmp_path, TURNS[turns]), TURNS[turns])


def test_a_device_with_several_rectangles_of_a_home_counts_once_per_coordinate():
    nested = make_disjoint([((0, 1), (0, 2)), ((0, 3), (0, 2))])
    assert nested == [((0, 3), (0, 2))]
    crossing = torch.zeros(3, 2)
    for where in make_disjoint([((0, 1), (0, 2)), ((0, 3), (0, 1))]):
        crossing[as_slices(where)] += 1
    assert crossing.tolist() == [[1, 1], [1, 0], [1, 0]]


def test_a_device_that_left_before_it_trained_does_not_count(toy):
    """The whole network's only holder leaves untrained: its half of c stays 0, and the mean of the
    other half is over one device again.
    """
    chosen, state, whole, half = begin_method(toy)
    state = replace(state, holders={(half,): 1, (whole,): 1})
    state = replace(state, tensors=finish_round(chosen, state, (half, [1, 1], [4, 6])))
    assert state.tensors["c/w"].tolist() == [2.0, 3.0, 0.0, 0.0]
    state = replace(state, holders={(half,): 1})
    state = replace(state, tensors=finish_round(chosen, state, (half, [1, 1], [1, 1])))
    assert state.tensors["c/w"].tolist() == [5.0, 7.0, 0.0, 0.0]
    state = replace(state, holders={(half,): 1, (whole,): 1})
    assert finish_round(chosen, state, (whole, [1] * 4, [1, 1, 8, 8]))["c/w"].tolist() == [
        3.0,
        4.0,
        8.0,
        8.0,
    ]


def test_devices_that_left_count_with_what_they_trained(toy):
    """A mean of 2 over the two that trained: a third that joins has a c_i of 0, and one that left
    keeps its own.
    """
    chosen, state, whole, half = begin_method(toy)
    state = replace(state, holders={(whole,): 2})
    state = replace(
        state,
        tensors=finish_round(chosen, state, (whole, [1] * 4, [1] * 4), (whole, [1] * 4, [3] * 4)),
    )
    assert state.tensors["c/w"].tolist() == [2.0] * 4
    joined = replace(state, holders={(whole,): 2, (half,): 1}, fleet={whole: 1, half: 1})
    after = finish_round(chosen, joined, (half, [1, 1], [6, 9]))
    torch.testing.assert_close(after["c/w"], torch.tensor([10 / 3, 13 / 3, 2.0, 2.0]))
    later = replace(joined, tensors=after, holders={(whole,): 2, (half, whole): 1})
    after = finish_round(chosen, later, (whole, [1] * 4, [0, 0, 2, 2]))
    torch.testing.assert_close(after["c/w"], torch.tensor([10 / 3, 13 / 3, 2.0, 2.0]))
