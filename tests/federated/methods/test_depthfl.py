"""DepthFL: depths by sections, exits that teach each other, and FedDyn on both sides."""

from __future__ import annotations

from dataclasses import replace

import msgspec
import numpy as np
import pytest
import torch
from torch import nn
from torch.nn.functional import softmax

from federated.engine.aggregate import Total, fold
from federated.errors import ConfigError, Unknown
from federated.method import configure
from federated.methods.catalogue import find_method
from federated.task import Recipe, Update
from federated.training import state_between_rounds
from federated.training.hooks import Hooks
from federated.training.training_inputs import TrainingSet
from federated.training.training_loop import open_session, train_session
from federated.training.training_step import measure_loss
from models.named_network import network
from models.submodel import Submodel
from models.submodel_building import full, initial, shapes
from tests.support.fixed_exit_network import Told
from tests.support.golden import make_owned, register_toy
from tests.support.memory_federation import Member, digits, federate

NET = network("resnet-small", (1, 8, 8), 10)


@pytest.fixture
def toy(monkeypatch):
    return register_toy(monkeypatch)


def menu(net=NET, **given):
    chosen = find_method("depthfl")
    return chosen.menu(net, configure(chosen, given))


def session_of(logits, weight):
    submodel = Submodel(
        network("resnet-small", (1, 8, 8), 2), 1.0, ((1, 1), (1, 1), (0, 0)), ("exits",)
    )
    recipe = Recipe(hook="depthfl", options={"weight": weight})
    return open_session(
        Told(logits), submodel, recipe, TrainingSet(np.zeros((1, 1)), np.array([0]), [0]), seed=0
    )


# ---- sizes ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(("model", "blocks"), [("resnet-small", 2), ("preresnet", 4)])
def test_depth_n_keeps_sections_and_exits_1_to_n(model, blocks):
    found = menu(network(model, (1, 8, 8), 10))
    assert [s.mask for s in found] == [
        tuple((int(section < n),) * blocks for section in range(3)) for n in (1, 2, 3)
    ]
    for n, submodel in enumerate(found, 1):
        assert {
            name.split(".")[1] for name in shapes(submodel) if name.startswith("sections.")
        } == set(map(str, range(n)))
        assert {
            name.split(".")[1] for name in shapes(submodel) if name.startswith("exits.")
        } == set(map(str, range(min(n, 2))))
        assert ("linear.weight" in shapes(submodel)) == (n == 3)


def test_depths_and_widths_choose_the_sizes():
    assert [s.name for s in menu(depths=[3, 1], widths=[1, 0.5])] == [
        "w0.5-d2.0.0-exits",
        "w1-d2.0.0-exits",
        "w0.5-d2.2.2-exits",
        "w1-d2.2.2-exits",
    ]


@pytest.mark.parametrize(
    ("net", "given", "said"),
    [
        (
            network("mlp", (64,), 10),
            {},
            "model 'mlp' has no exits; models that have: preresnet, resnet",
        ),
        (
            network("resnet-small", (1, 8, 8), 1, target="value"),
            {},
            "regression .* set method.distillation = 0",
        ),
        (NET, {"alpha": 0.0}, "'alpha' of depthfl: expected a number above 0"),
        (NET, {"depths": [4]}, "from 1 to 3 sections"),
        (
            NET,
            {"widths": [2.0]},
            r"depthfl: widths\[0\]: expected a number .* at most 1, found 2.0",
        ),
    ],
)
def test_unsupported_networks_and_settings_are_refused(net, given, said):
    with pytest.raises(ConfigError, match=said):
        menu(net, **given)


def test_devices_of_one_architecture_cannot_be_kept_apart():
    """h and N are of a coordinate that all share."""
    with pytest.raises(Unknown, match="sharing"):
        menu(sharing="architecture")


def test_exits_can_be_small_ones_on_the_same_network():
    """The network's own weights are those that were given; the exits are drawn, again the same."""
    chosen, found = find_method("depthfl"), menu(exit="adapter")
    settings, given = (
        configure(chosen, {"exit": "adapter", "norm": "static"}, seed=3),
        initial(NET, 7, chosen.features),
    )
    state = chosen.start(given, found, settings)
    assert {s.features for s in found} == {("exits-adapter",)}
    assert state.tensors.keys() == shapes(full(NET, ("exits-adapter",))).keys()
    assert all(
        torch.equal(value, given[name])
        for name, value in state.tensors.items()
        if not name.startswith("exits.")
    )
    assert state.tensors["exits.0.conv.weight"].shape == (64, 16, 3, 3)
    again = chosen.start(given, found, settings).tensors
    assert all(torch.equal(value, again[name]) for name, value in state.tensors.items())


def test_without_feddyn_no_alpha_is_needed():
    assert len(menu(alpha=0.0, solver="fedavg")) == 3


# ---- the device's half ---------------------------------------------------------------------------


def lose(session):
    """Return the loss of one example of class 0."""
    hooks = find_method("depthfl").hooks
    return measure_loss(session, hooks, torch.zeros(1, 1), torch.tensor([0]))


def test_one_exit_learns_with_cross_entropy_only():
    """Logits 0 and 0 of two classes: log 2, however much distillation weighs."""
    session = session_of([[[0.0, 0.0]]], 5.0)
    assert lose(session).item() == pytest.approx(np.log(2))


def test_each_exit_is_taught_by_the_mean_of_the_others_who_feel_nothing_of_it():
    """d loss / d z_i is p_i - truth + lambda/(n - 1) sum_j (p_i - p_j): no term in which i is a
    teacher.
    """
    logits, truth, weight = (
        torch.tensor([[[1.0, 0.0]], [[0.0, 2.0]], [[0.5, -1.0]]]),
        torch.tensor([1.0, 0.0]),
        0.6,
    )
    session = session_of(logits.tolist(), weight)
    lose(session).backward()
    p = softmax(logits, 2)
    expected = p - truth + weight / 2 * (3 * p - p.sum(0))
    torch.testing.assert_close(session.net.logits.grad, expected)


def test_the_recipe_carries_the_weight_of_its_round_and_feddyn():
    chosen = find_method("depthfl")
    settings = configure(chosen, {"ramp": 4})
    state = chosen.start(initial(NET, 0, chosen.features), menu(), settings)
    found = [chosen.recipe(replace(state, round=n), menu()[0]) for n in (0, 1, 3, 9)]
    assert [r.options["weight"] for r in found] == pytest.approx(
        [np.exp(-5 * 0.75**2), np.exp(-5 * 0.5**2), 1.0, 1.0]
    )
    assert {(r.hook, r.variate, r.pull, r.momentum) for r in found} == {
        ("depthfl", "feddyn", 0.1, 0.0)
    }
    averaged = msgspec.structs.replace(settings, solver="fedavg")
    plain = chosen.recipe(replace(state, settings=averaged), menu()[0])
    assert (plain.hook, plain.variate, plain.pull) == ("depthfl", "", 0.0)


# ---- the coordinator's half ----------------------------------------------------------------------


def one_round(chosen, state, given):
    total = Total()
    for index, (submodel, tensors) in enumerate(given):
        update = Update("r", 0, 0, str(index), "train", submodel, "0", 1 + 7 * index, 1, tensors)
        fold(total, chosen.parts(state, chosen.place(state, submodel), update), (index,))
    return chosen.finish(state, total, np.random.default_rng(0))


def test_h_accumulates_over_rounds_only_in_trained_coordinates(toy):
    """First 2 of 4 agents answer: w 10 -> mean 12, h = -.5 * 2/4 * 2 = -.5, w = 12 + 1. Then 1
    answers: w 13 -> 14, h = -.5 - .5 * 1/4 * 1 = -.625, w = 15.25.
    """
    whole = toy(
        lambda submodel: (
            {"w": (2,), "bn.running_mean": (1,)}
            if not submodel.owner
            else {"w": (1,), "bn.running_mean": (1,)}
        )
    )
    part, chosen = make_owned(whole, "a"), find_method("depthfl")
    before = {"w": torch.tensor([10.0, 10.0]), "bn.running_mean": torch.tensor([1.0])}
    state = replace(
        chosen.start(before, [whole], configure(chosen, {"alpha": 0.5, "norm": "static"})),
        fleet={part: 3, whole: 1},
    )
    state = one_round(
        chosen,
        state,
        [
            (part, {"w": torch.tensor([value]), "bn.running_mean": torch.tensor([value])})
            for value in (11.0, 13.0)
        ],
    )
    assert state.tensors["w"].tolist() == [13.0, 10.0]
    assert state.tensors["h/w"].tolist() == [-0.5, 0.0]
    assert state.tensors["bn.running_mean"].tolist() == [12.0]
    assert "h/bn.running_mean" not in state.tensors
    state = one_round(chosen, state, [(part, {"w": torch.tensor([14.0])})])
    assert state.tensors["w"].tolist() == [15.25, 10.0]
    assert state.tensors["h/w"].tolist() == [-0.625, 0.0]


def test_without_distillation_each_exit_learns_by_itself():
    chosen = find_method("depthfl")
    state = chosen.start(
        initial(NET, 0, chosen.features), menu(), configure(chosen, {"distillation": 0.0})
    )
    assert chosen.recipe(replace(state, round=500), menu()[0]).options["weight"] == 0
    logits = torch.tensor([[[1.0, 0.0]], [[0.0, 2.0]]])
    session = session_of(logits.tolist(), 0.0)
    lose(session).backward()
    torch.testing.assert_close(
        session.net.logits.grad, softmax(logits, 2) - torch.tensor([1.0, 0.0])
    )


@pytest.mark.parametrize(("solver", "reached"), [("feddyn", 3.0), ("fedavg", 2.0)])
def test_both_halves_find_the_least_sum_of_unequal_losses(toy, solver, reached):
    """Losses w^2 / 2 and 3 (w - 4)^2 / 2 are least together at 3; devices that go to their own ends
    meet at the mean of these, 2.
    """
    whole, chosen = toy(lambda submodel: {"w": (1,)}), find_method("depthfl")
    given = configure(
        chosen,
        {
            "solver": solver,
            "alpha": 0.5,
            "norm": "static",
            "lr": 0.3,
            "lr_decay": 1.0,
            "decay": 0.0,
            "steps": 25,
            "epochs": 25,
        },
    )
    state = replace(chosen.start({"w": torch.zeros(1)}, [whole], given), fleet={whole: 2})
    memories = [{}, {}]
    for _ in range(30):
        sent = []
        for (bend, end), kept in zip(((1.0, 0.0), (3.0, 4.0)), memories, strict=True):
            net = nn.Module()
            net.w = nn.Parameter(state.tensors["w"].clone())
            session = open_session(
                net,
                whole,
                chosen.recipe(state, whole),
                TrainingSet(np.zeros((1, 1)), np.zeros(1)),
                seed=0,
            )
            session.memory = kept
            train_session(
                session,
                Hooks(
                    "toy",
                    loss=lambda s, x, y, bend=bend, end=end: (
                        bend / 2 * (s.net.w - end) ** 2
                    ).sum(),
                ),
            )
            sent.append((whole, {"w": net.w.detach()}))
        state = one_round(chosen, state, sent)
    assert float(state.tensors["w"]) == pytest.approx(reached, abs=1e-3)


# ---- runs ----------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize(("model", "blocks"), [("resnet-small", 2), ("preresnet", 4)])
def test_two_rounds_of_three_depths_end_with_finite_scores_of_every_exit(tmp_path, model, blocks):
    names = [
        f"w1-d{d}" for d in (f"{blocks}.0.0", f"{blocks}.{blocks}.0", f"{blocks}.{blocks}.{blocks}")
    ]
    pins = {f"a{i}": name for i, name in enumerate(names)}
    given = {
        "method.name": "depthfl",
        "model.name": model,
        "rounds": 2,
        "evaluate.every": 2,
        "evaluate.examples": 20,
        "train.steps": 1,
        "assign.submodels": pins,
    }
    done = federate(tmp_path, [Member(f"a{i}", digits(i, 30)) for i in range(3)], given)
    found = {(s.submodel, s.view) for s in done.result.scores}
    views = ["central", "central/ensemble", "central/exit0", "central/exit1", "central/exit2"]
    assert {(f"{names[2]}-exits", view) for view in views} <= found
    assert {name for name, view in found if view == "central"} == {
        f"{name}-exits" for name in names
    }
    assert all(np.isfinite(s.loss) for s in done.result.scores)
    assert any(home.startswith("h/sections.2.") for home in done.result.state.tensors)
    assert sorted(s.name for s in done.result.history.assigned.values()) == sorted(
        f"{name}-exits" for name in names
    )


@pytest.mark.slow
def test_it_learns_digits(tmp_path):
    fleet = [Member(f"a{i}", digits(i, 3, "iid")) for i in range(2)]
    pins = {"a0": "w0.5-d2.2.0", "a1": "w0.5-d2.2.2"}
    given = {
        "method.name": "depthfl",
        "model.name": "resnet-small",
        "method.widths": [0.5],
        "method.ramp": 3,
        "assign.submodels": pins,
    }
    done = federate(
        tmp_path,
        fleet,
        {**given, "rounds": 6, "train.epochs": 2, "evaluate.every": 6, "evaluate.devices": False},
    )
    central = {(s.submodel, s.view): s.accuracy for s in done.result.scores}
    # chance is a tenth
    assert min(central["w0.5-d2.2.2-exits", view] for view in ("central", "central/ensemble")) > 0.4


SHALLOW, MIDDLE, DEEP = (f"w0.5-d{depths}" for depths in ("2.0.0", "2.2.0", "2.2.2"))


@pytest.mark.slow
@pytest.mark.parametrize(
    "submodels",
    [
        [[DEEP], [SHALLOW], [DEEP]],
        [["w1-d2.0.0"], ["w0.5-d2.0.0"], ["w1-d2.0.0"]],
        [[DEEP, SHALLOW], [SHALLOW, DEEP], [DEEP, MIDDLE]],
    ],
    ids=lambda submodels: " ".join("+".join(several) for several in submodels),
)
def test_h_is_the_mean_of_what_all_devices_keep_when_they_get_other_submodels(tmp_path, submodels):
    """h = (1/N) sum_i c_i, where a device that never trained a coordinate has c_i = 0. The
    coordinator and the devices restart between the rounds.
    """
    given = {
        "method.name": "depthfl",
        "model.name": "resnet-small",
        "method.widths": [0.5, 1.0],
        "train.steps": 2,
        "evaluate.devices": False,
    }
    for number, several in enumerate(submodels, 1):
        pins = {f"a{i}": name for i, name in enumerate(several)}
        members = [Member(name, digits(i, 30)) for i, name in enumerate(pins)]
        again = {**given, "rounds": number, "evaluate.every": 9, "assign.submodels": pins}
        done = federate(tmp_path, members, again, resume=number > 1)
        means = {
            home.removeprefix("h/"): value
            for home, value in done.result.state.tensors.items()
            if home.startswith("h/")
        }
        wanted = {f"c/{name}": tuple(value.shape) for name, value in means.items()}
        kept = [
            state_between_rounds.read(tmp_path / name / state_between_rounds.FOLDER, number, wanted)
            for name in pins
        ]
        for name, value in means.items():
            np.testing.assert_allclose(
                value.numpy(),
                sum(one.get(f"c/{name}", np.zeros(value.shape)) for one in kept) / len(kept),
                rtol=0,
                atol=1e-6,
            )
        assert all(bool(value.any()) for value in means.values())


def level(x):
    """Return the mean brightness of each image, ten times: as many values as there were classes."""
    return np.repeat(x.reshape(len(x), -1).mean(1, keepdims=True), 10, axis=1).astype(np.float32)


@pytest.mark.slow
def test_small_exits_without_distillation_end_with_finite_scores_of_values(tmp_path):
    """NeFL's DepthFL, on the mean brightness of each digit."""
    fleet = [
        Member(f"a{i}", replace(data, target="value", y=level(data.x), y_held=level(data.x_held)))
        for i, data in enumerate(digits(i, 30) for i in (0, 1))
    ]
    chosen = {
        "method.name": "depthfl",
        "method.exit": "adapter",
        "method.distillation": 0.0,
        "method.widths": [0.5],
    }
    done = federate(
        tmp_path,
        fleet,
        {
            **chosen,
            "model.name": "resnet-small",
            "rounds": 1,
            "train.steps": 1,
            "evaluate.examples": 20,
            "data.name": "agents",
        },
    )
    assert {s.submodel for s in done.result.scores} == {
        f"w0.5-d{d}-exits-adapter" for d in ("2.0.0", "2.2.0", "2.2.2")
    }
    assert all(np.isfinite(s.loss) for s in done.result.scores)


def test_the_network_of_a_depth_is_the_whole_ones_corner():
    """A device of depth 1 receives tensors of the whole network only."""
    chosen = find_method("depthfl")
    state = chosen.start(
        initial(NET, 0, chosen.features), menu(), configure(chosen, {"norm": "static"})
    )
    sent = chosen.dispatch(state, chosen.place(state, menu()[0]))
    assert sent.keys() == shapes(menu()[0]).keys()
    assert all(torch.equal(value, state.tensors[name]) for name, value in sent.items())
    assert state.tensors.keys() == shapes(full(NET, ("exits",))).keys()
