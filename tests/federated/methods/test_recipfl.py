"""RecipFL: the networks that each device gets, and the effect of an update on the hypernetwork."""

from __future__ import annotations

import re
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from coordinator.observe.events import RoundStarted
from coordinator.store.run_store import Store
from federated.engine.aggregate import Total, fold
from federated.errors import ConfigError, Unknown
from federated.method import configure
from federated.methods.hypernetwork import graph_hypernetwork as hyper
from federated.task import Card, Profile, Update
from federated.wire.topics import SUBMODEL
from models.cost import cost
from models.named_network import network
from models.submodel_building import full, parameters, shapes
from tests.support.memory_federation import RUN, Member, digits, federate
from tests.support.recipfl import METHOD, begin_method, sent, train_round

PHI = "phi/"


def update(submodel, tensors, agent="a0", samples=1):
    return Update("r", 0, 0, agent, "train", submodel, "0", samples, 1, tensors)


def finish_round(state, *updates):
    total = Total()
    for one in updates:
        fold(total, METHOD.parts(state, METHOD.place(state, one.submodel), one), (one.agent,))
    return METHOD.finish(state, total, np.random.default_rng(0))


def changed(before, after):
    """Return the step of phi, by name."""
    return {
        home.removeprefix(PHI): value - after.tensors[home]
        for home, value in before.tensors.items()
        if home.startswith(PHI)
    }


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
        Card("d", (6,), "float32", 3, 9, 0, (0.0,), (1.0,)),
        (),
    )


def narrow_pair(**given):
    """Return VGG-16 as the strong devices' network and ResNet-101 as the weak ones', with a 64th of
    their channels, for 32x32 images of 3 classes.
    """
    vgg, resnet = (network(model, (3, 32, 32), 3) for model in ("vgg-16", "resnet-101"))
    menu = tuple(
        replace(full(made), width=1 / 64) for made in (replace(resnet, label="resnet-101"), vgg)
    )
    return menu, METHOD.start({}, menu, configure(METHOD, {"hidden": 8, "cap": 1024, **given}))


# ---- sizes ---------------------------------------------------------------------------------------


def test_the_menu_is_a_narrow_network_and_the_whole():
    assert [s.name for s in begin_method()[0]] == ["w0.2-d2", "w1-d2"]


def test_cut_in_depth_the_small_network_is_the_first_section_with_an_exit():
    menu, _ = begin_method(network("resnet-small", (1, 8, 8), 10), shrink="depth")
    assert [s.name for s in menu] == ["w1-d2.0.0-exits-adapter", "w1-d2.2.2"]


def test_other_networks_are_named_apart_smallest_first():
    menu, state = begin_method(
        network("resnet-18-cifar", (1, 16, 16), 10), models=["vgg", "lenet-5", "vgg"]
    )
    assert [s.name for s in menu] == ["lenet-5-w1-d1.1", "vgg-w1-d2.2.2", "w1-d2.2.2.2"]
    assert all(re.match(SUBMODEL, s.name) for s in menu)
    assert {name: tuple(value.shape) for name, value in sent(state, menu[1]).items()} == shapes(
        menu[1]
    )


@pytest.mark.slow
def test_the_posters_networks_are_a_menu_though_the_strong_devices_has_fewer_parameters():
    """On 32x32 images VGG-16 has 34 million parameters and ResNet-101 43, but takes twice the
    multiply-adds, and is the poster's large network.
    """
    net = network("vgg-16", (3, 32, 32), 10)
    menu = METHOD.menu(net, configure(METHOD, {"models": ["resnet-101", "lenet-5"]}))
    assert [s.name for s in menu] == ["lenet-5-w1-d1.1", "resnet-101-w1-d3.4.23.3", "w1-d2.2.3.3.3"]
    _, medium, large = menu
    assert parameters(medium) > parameters(large)
    assert cost(medium).macs < cost(large).macs
    with pytest.raises(
        ConfigError, match=r"set model.name=resnet-101-cifar and list the present one in models"
    ):
        METHOD.menu(net, configure(METHOD, {"models": ["resnet-101-cifar"]}))


@pytest.mark.parametrize(
    ("given", "found"),
    [
        (
            {"models": ["mlp-large"]},
            "model 'mlp-large' has more parameters and multiply-adds than the run's own",
        ),
        ({"models": ["lenet"]}, "cannot take examples of shape"),
        ({"shrink": "depth"}, "no second section"),
        ({"widths": [2.0]}, r"recipfl: widths\[0\]: expected a number .* at most 1, found 2.0"),
        ({"hidden": 6}, "hidden = 6"),
        ({"dropout": 1.0}, "dropout = 1.0"),
        ({"cap": 0}, "cap = 0"),
    ],
)
def test_unsupported_networks_and_settings_are_refused(given, found):
    with pytest.raises(ConfigError, match=found):
        begin_method(**given)


def test_a_family_without_exits_cannot_be_cut_in_depth():
    with pytest.raises(ConfigError, match=r"no exits-adapter; models that have: .*resnet"):
        begin_method(network("vgg", (1, 8, 8), 10), shrink="depth")


def test_an_unknown_network_lists_the_known():
    with pytest.raises(Unknown, match="unknown model 'mlpp'; did you mean mlp"):
        begin_method(models=["mlpp"])


# ---- who gets what -------------------------------------------------------------------------------


def test_a_submodel_is_made_for_its_agent():
    menu, state = begin_method()
    chosen = METHOD.assign(state, profile("a7"), menu, np.random.default_rng(0))
    assert (chosen.plain, chosen.owner) == (menu[-1], "a7")
    assert (
        METHOD.assign(state, profile("a7"), menu[:1], np.random.default_rng(0)).name == "w0.2-d2@a7"
    )


def test_a_device_that_can_afford_all_gets_the_whole_network_even_if_it_has_fewer_parameters():
    menu, state = narrow_pair()
    assert parameters(menu[0]) > parameters(menu[1])
    for affordable in (menu, menu[::-1]):
        assert (
            METHOD.assign(state, profile("a7"), affordable, np.random.default_rng(0)).plain
            == menu[1]
        )
    assert {name.partition("/")[0] for name in sent(state, menu[1]) if "/" in name} == {"small"}


def test_the_largest_submodel_is_sent_with_the_smallest_and_the_others_are_sent_alone():
    menu, state = begin_method(widths=[0.2, 0.5, 1.0])
    along = [{name for name in sent(state, submodel) if "/" in name} for submodel in menu]
    assert along == [set(), set(), {f"small/{name}" for name in shapes(menu[0])}]
    assert [METHOD.recipe(state, submodel).hook for submodel in menu] == ["", "", "recipfl"]
    small, alone = sent(state, menu[0]), sent(state, menu[2])
    assert all(torch.equal(alone[f"small/{name}"], value) for name, value in small.items())


def test_without_transfer_every_submodel_is_sent_alone():
    menu, state = begin_method(transfer=False)
    assert not any("/" in name for name in sent(state, menu[-1]))
    assert METHOD.recipe(state, menu[-1]).hook == ""


def test_classes_of_an_agent_shape_its_classifier():
    menu, state = begin_method()
    state = replace(
        state,
        agents={
            "a0": {"histogram": [1.0, 0.0, 0.0]},
            "a1": {"histogram": [0.0, 0.0, 1.0]},
            "a2": {"histogram": "forged"},
        },
    )
    found = {owner: sent(state, replace(menu[0], owner=owner)) for owner in ("a0", "a1", "a2", "")}
    assert not torch.equal(found["a0"]["linear.weight"], found["a1"]["linear.weight"])
    assert torch.equal(found["a0"]["stem.weight"], found["a1"]["stem.weight"])
    assert torch.equal(found["a2"]["linear.weight"], found[""]["linear.weight"])


# ---- updates -------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("start", [begin_method, narrow_pair])
def test_an_update_moves_phi_by_the_gradient_of_what_was_made_times_its_change(start):
    """The step of a large and of a small device together is autograd's of <theta(phi), theta -
    theta'>, small network included.
    """
    menu, state = start(server="sgd", server_lr=1.0, server_clip=0.0)
    state = replace(state, agents={"a0": {"histogram": [0.5, 0.5, 0.0]}})
    generator, leaves = (
        torch.Generator().manual_seed(0),
        {n.removeprefix(PHI): v.clone().requires_grad_() for n, v in state.tensors.items()},
    )
    updates, product = [], torch.zeros(())
    for submodel, agent in ((menu[0], "a1"), (menu[1], "a0")):
        own = replace(submodel, owner=agent)
        change = {
            name: 0.01 * torch.randn(value.shape, generator=generator)
            for name, value in sent(state, own).items()
        }
        updates.append(
            update(
                own, {name: value - change[name] for name, value in sent(state, own).items()}, agent
            )
        )
        classes = hyper.read_class_shares([0.5, 0.5, 0.0] if agent == "a0" else None, 3)
        for name, value in hyper.generate(leaves, submodel, {}, classes).items():
            product = product + (value * change[name]).sum()
        if submodel == menu[1]:
            for name, value in hyper.generate(leaves, menu[0], {}, classes).items():
                product = product + (value * change[f"small/{name}"]).sum()
    gradient = torch.autograd.grad(product, list(leaves.values()), materialize_grads=True)
    step = changed(state, finish_round(state, *updates))
    assert max(float(value.abs().max()) for value in step.values()) > 1e-3
    for name, expected in zip(leaves, gradient, strict=True):
        torch.testing.assert_close(step[name], expected, rtol=1e-3, atol=2e-6)


def test_a_step_brings_what_is_made_nearer_to_what_came_back():
    menu, state = begin_method(encode="none")
    target = {name: value + 0.05 for name, value in sent(state, menu[0]).items()}

    def distance(one):
        return sum(
            float((sent(one, menu[0])[name] - value).square().sum())
            for name, value in target.items()
        )

    first = distance(state)
    for _ in range(5):
        state = finish_round(state, update(menu[0], target))
    assert distance(state) < 0.8 * first


@pytest.mark.parametrize(
    ("weighting", "expected"), [("sum", 2.0), ("samples", 1.0), ("uniform", 1.0)]
)
def test_equal_updates_add_up_or_average(weighting, expected):
    menu, state = begin_method(server="sgd", server_lr=1.0, server_clip=0.0, weighting=weighting)
    moved = {name: value + 0.01 for name, value in sent(state, menu[0]).items()}
    once = changed(state, finish_round(state, update(menu[0], moved, "a0", 3)))
    twice = changed(
        state, finish_round(state, update(menu[0], moved, "a0", 3), update(menu[0], moved, "a1", 3))
    )
    for name, value in once.items():
        torch.testing.assert_close(twice[name], expected * value, rtol=1e-5, atol=1e-6)


def test_a_step_is_clipped_as_a_whole():
    menu, state = begin_method(server="sgd", server_lr=1.0, server_clip=0.5)
    step = changed(
        state,
        finish_round(
            state,
            update(menu[0], {name: value + 10 for name, value in sent(state, menu[0]).items()}),
        ),
    )
    assert float(torch.cat([value.flatten() for value in step.values()]).norm()) == pytest.approx(
        0.5, rel=1e-4
    )


def test_generated_weights_are_deterministic_and_an_untrained_update_changes_nothing():
    """With dropout, the seed depends on the round and the agent."""
    menu, state = begin_method(dropout=0.5)
    state = finish_round(state, update(menu[0], sent(state, menu[0])))
    one, other = (replace(menu[0], owner=owner) for owner in ("a0", "a1"))
    assert all(
        torch.equal(value, sent(state, one)[name]) for name, value in sent(state, one).items()
    )
    assert not torch.equal(sent(state, one)["linear.weight"], sent(state, other)["linear.weight"])
    for part in METHOD.parts(state, METHOD.place(state, one), update(one, sent(state, one))):
        assert not part.home.startswith(PHI) or not part.value.any()


@pytest.mark.parametrize(
    ("encode", "homes"),
    [("none", set()), ("size", {"w0.2-d2"}), ("agent", {"w0.2-d2@a0", "w0.2-d2@a1"})],
)
def test_last_weights_are_kept_by_size_by_agent_or_not_at_all(encode, homes):
    menu, state = begin_method(encode=encode)
    ones = [replace(menu[0], owner=owner) for owner in ("a0", "a1")]
    after = finish_round(
        state,
        *(
            update(s, {n: v + i for n, v in sent(state, s).items()}, s.owner)
            for i, s in enumerate(ones)
        ),
    )
    kept = {home: value for home, value in after.tensors.items() if home.startswith("theta/")}
    assert {home.partition("@")[2] for home in kept} == homes
    if encode == "size":
        torch.testing.assert_close(
            kept["theta/linear.bias@w0.2-d2"], sent(state, menu[0])["linear.bias"] + 0.5
        )


# ---- whole runs ----------------------------------------------------------------------------------


def members(count=3):
    return [Member(f"a{i}", digits(i, count)) for i in range(count)]


@pytest.mark.slow
def test_networks_that_share_nothing_learn_together(tmp_path):
    settings = {
        "method.name": "recipfl",
        "method.models": ["mlp", "vgg"],
        "model.name": "resnet-small",
        "rounds": 2,
        "train.steps": 2,
    }
    pins = {"a0": "mlp-w1-d2", "a1": "vgg-w1-d2.2.2", "a2": "w1-d2.2.2"}
    began = []
    given = {
        **settings,
        "assign.submodels": pins,
        "evaluate.every": 2,
        "evaluate.local": True,
        "evaluate.agents": 1,
    }
    done = federate(
        tmp_path,
        members(),
        given,
        read=lambda event: began.append(event) if isinstance(event, RoundStarted) else None,
    )
    for event in began:
        assert {name: s.name for name, s in event.chosen.items()} == {
            name: f"{size}@{name}" for name, size in pins.items()
        }
    assert {name: s.name for name, s in done.result.history.assigned.items()} == pins, (
        "as the menu names them"
    )
    store = Store.open(tmp_path / "runs", RUN, read_only=True)
    assert store.read_last_submodels() == pins, "as the menu names them: so are they released"
    store.close()
    assert {s.submodel for s in done.result.scores if s.view == "central"} == set(pins.values())
    assert {s.view for s in done.result.scores} >= {"before", "after", "devices"}
    assert all(0 <= s.accuracy <= 1 and np.isfinite(s.loss) for s in done.result.scores)
    assert not any(member.error for member in done.members.values())


@pytest.mark.slow
def test_vgg_16_and_resnet_101_learn_from_each_other_at_full_size():
    """One step of each on 16 examples: the strong device trains both networks, the weak one its
    own, and phi moves towards what came back.
    """
    net, rng = network("vgg-16", (3, 32, 32), 10), np.random.default_rng(0)
    settings = configure(
        METHOD,
        {
            "models": ["resnet-101"],
            "hidden": 8,
            "cap": 4096,
            "batch": 16,
            "epochs": 1,
            "encode": "none",
        },
    )
    menu = METHOD.menu(net, settings)
    state = METHOD.start({}, menu, settings)
    x, y = rng.integers(0, 256, (16, 3, 32, 32), dtype=np.uint8), np.arange(16, dtype=np.int64) % 10
    data = SimpleNamespace(x=x, y=y, x_held=x[:2], y_held=y[:2], labels=tuple(range(10)))
    updates = []
    for agent, submodel in zip(("weak", "strong"), menu, strict=True):
        own = replace(submodel, owner=agent)
        updates.append(update(own, train_round(state, own, data), agent, 16))
        made = {name: value.numpy() for name, value in sent(state, own).items()}
        assert updates[-1].tensors.keys() == made.keys()
        moved = [
            name
            for name, value in updates[-1].tensors.items()
            if not np.array_equal(value, made[name])
        ]
        assert len(moved) > 0.9 * len(made)
        assert all(np.isfinite(value).all() for value in updates[-1].tensors.values())
    assert {name for name in updates[1].tensors if "/" in name} == {
        f"small/{name}" for name in updates[0].tensors
    }
    step = changed(state, finish_round(state, *updates))
    assert all(bool(value.isfinite().all()) for value in step.values())
    assert {name for name, value in step.items() if value.any()} >= {
        name for name in step if name.startswith(("decoders", "heads", "sweep.cell"))
    }


def test_weights_generated_for_no_particular_device_classify_digits(tmp_path):
    """No device trained these weights. After three rounds both sizes are far above chance."""
    settings = {
        "method.name": "recipfl",
        "method.server_lr": 0.01,
        "model.name": "mlp",
        "rounds": 3,
    }
    training = {
        "train.batch": 32,
        "train.lr": 0.05,
        "train.epochs": 2,
        "assign.submodels": {"a0": "w0.2-d2", "a*": "w1-d2"},
    }
    looks = {"evaluate.every": 3, "evaluate.between": False, "evaluate.devices": False}
    done = federate(tmp_path, members(), {**settings, **training, **looks})
    central = {s.submodel: s.accuracy for s in done.result.scores if s.view == "central"}
    assert central["w0.2-d2"] > 0.5
    assert central["w1-d2"] > 0.7
