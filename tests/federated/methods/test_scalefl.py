"""ScaleFL: levels in width and depth at once, weighted exits, and a scaler that is always on."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch.nn.functional import softmax

from export.onnx_export import export, predict
from export.onnx_session import load
from federated.errors import ConfigError
from federated.method import configure
from federated.methods.catalogue import find_method
from federated.methods.scalefl import weighted_loss
from federated.task import Recipe
from federated.training.hooks import Hooks
from federated.training.training_inputs import TrainingSet
from federated.training.training_loop import open_session, train_session
from federated.training.training_step import measure_loss
from models.layers.batch_norm import norms
from models.named_network import network
from models.slicing import extract
from models.submodel import Submodel
from models.submodel_building import build, initial
from tests.support.fixed_exit_network import Told
from tests.support.memory_federation import Member, digits, federate

NET = network("resnet-small", (1, 8, 8), 10)


def menu(net=NET, **given):
    chosen = find_method("scalefl")
    return chosen.menu(net, configure(chosen, given))


def session_of(logits, **options):
    submodel = Submodel(
        network("resnet-small", (1, 8, 8), 2), 1.0, ((1, 1), (1, 1), (0, 0)), ("exits-conv",)
    )
    recipe = Recipe(
        hook="scalefl", options={"gamma": 0.0, "temperature": 2.0, "variant": "code", **options}
    )
    return open_session(
        Told(logits), submodel, recipe, TrainingSet(np.zeros((1, 1)), np.array([0]), [0]), seed=0
    )


# ---- levels --------------------------------------------------------------------------------------


def test_four_levels_pair_widths_with_exits():
    """ResNet "small" has 6 blocks and exits after 3, 4, 5 and 6 of them."""
    assert [(s.width, s.mask) for s in menu()] == [
        (0.7, ((1, 1), (1, 0), (0, 0))),
        (0.7, ((1, 1), (1, 1), (0, 0))),
        (0.75, ((1, 1), (1, 1), (1, 0))),
        (1.0, ((1, 1), (1, 1), (1, 1))),
    ]
    assert {s.features for s in menu()} == {("exits-conv", "scaler-always")}


def test_a_network_of_three_exits_ends_at_its_last():
    found = menu(network("resnet-10", (1, 8, 8), 10))
    assert [(s.width, sum(map(sum, s.mask))) for s in found] == [
        (0.7, 2),
        (0.7, 3),
        (0.75, 4),
        (1.0, 4),
    ]


@pytest.mark.parametrize(
    ("net", "given", "said"),
    [
        (
            network("vit-micro", (1, 16, 16), 10),
            {},
            "model 'vit' has no exits-conv, scaler-always; models that have: preresnet, resnet",
        ),
        (
            NET,
            {"widths": [0.5, 1.0]},
            r"as many widths as depths, found widths \[0.5, 1.0\]",
        ),
        (
            NET,
            {"depths": [0, 1, 2, 3]},
            r"scalefl: depths\[0\]: expected a whole number of at least 1, found 0",
        ),
        (
            network("resnet-small", (1, 8, 8), 1, target="value"),
            {},
            "regression .* set method.gamma = 0",
        ),
    ],
)
def test_unsupported_networks_and_settings_are_refused(net, given, said):
    with pytest.raises(ConfigError, match=said):
        menu(net, **given)


def test_values_are_learned_without_distillation():
    assert len(menu(network("resnet-small", (1, 8, 8), 1, target="value"), gamma=0)) == 4


# ---- the loss ------------------------------------------------------------------------------------


def lose(session):
    """Return the loss of one example of class 0."""
    hooks = find_method("scalefl").hooks
    return measure_loss(session, hooks, torch.zeros(1, 1), torch.tensor([0]))


def test_deeper_exits_weigh_more():
    """Losses a, b, c of three exits: (a + 2 b + 3 c) / 6."""
    logits = [[[1.0, 0.0]], [[0.0, 1.0]], [[3.0, 0.0]]]
    a, b, c = (float(np.log1p(np.exp(out[0][1] - out[0][0]))) for out in logits)
    found = lose(session_of(logits))
    assert found.item() == pytest.approx((a + 2 * b + 3 * c) / 6)


def test_the_clean_variant_teaches_per_example_and_does_not_change_the_teacher():
    """With 2 classes the mean of the authors' code is half as large; d T^2 KL / d z_1 is T
    (softmax(z_1/T) - softmax(z_2/T)), and only their gradient reaches z_2.
    """
    logits = [[[1.0, 0.0]], [[2.0, -1.0]]]
    grads, kl = {}, {}
    for variant in ("code", "clean"):
        plain, taught = (session_of(logits, gamma=gamma, variant=variant) for gamma in (0.0, 0.5))
        losses = [lose(session) for session in (plain, taught)]
        for loss in losses:
            loss.backward()
        grads[variant] = taught.net.logits.grad - plain.net.logits.grad
        kl[variant] = (losses[1] - losses[0]).item()
    assert kl["clean"] == pytest.approx(2 * kl["code"])
    first, last = softmax(torch.tensor(logits) / 2, 2)
    torch.testing.assert_close(grads["clean"][0], 0.5 * 2 * (first - last) / 3)
    torch.testing.assert_close(grads["code"][0], grads["clean"][0] / 2)
    assert not grads["clean"][1].any()
    assert grads["code"][1].any()


def test_distillation_begins_after_a_quarter_of_the_rounds():
    chosen = find_method("scalefl")
    settings = configure(chosen, {}, rounds=8)
    state = chosen.start(initial(NET, 0, chosen.features), menu(), settings)
    found = [chosen.recipe(replace(state, round=n), menu()[0]).options for n in (0, 2, 3, 7)]
    assert [options["gamma"] for options in found] == [0.0, 0.0, 0.05, 0.05]
    assert {(options["temperature"], options["variant"]) for options in found} == {(3.0, "code")}


@pytest.mark.parametrize("gamma", [0.0, 0.05])
def test_every_tensor_of_a_level_is_trained(gamma):
    """Every tensor of a level has a gradient, so the mean over the devices that hold a tensor
    equals the authors' mean over the devices that trained it.
    """
    data, chosen = digits(0, 100), find_method("scalefl")
    settings = configure(chosen, {"gamma": gamma, "epochs": 1, "steps": 1})
    for level in menu():
        state = replace(chosen.start(initial(NET, 0, chosen.features), menu(), settings), round=1)
        net, seen = build(level), dict[str, torch.Tensor]()
        session = open_session(net, level, chosen.recipe(state, level), data, seed=0)
        look = Hooks(
            "toy",
            exit_loss=weighted_loss,
            step=lambda s, seen=seen: seen.update(
                (n, p.grad) for n, p in s.net.named_parameters() if p.grad is not None
            ),
        )
        train_session(session, look)
        assert seen.keys() == {row.local for row in chosen.place(state, level).rows}
        assert all(bool(grad.any()) for grad in seen.values())


# ---- evaluation ----------------------------------------------------------------------------------


@pytest.mark.slow
def test_an_exported_level_divides_as_it_did_in_training(tmp_path):
    """Activations are made as small as the norms' eps, where a scaler tells: the graph says what
    the network says, and not what it says without.
    """
    chosen, level = find_method("scalefl"), menu()[0]
    state = chosen.start(initial(NET, 0, chosen.features), menu(), configure(chosen, {}))
    nets = []
    for features in (level.features, ("exits-conv",)):
        net = build(replace(level, features=features)).eval()
        net.load_state_dict(extract(state.tensors, chosen.place(state, level)), strict=False)
        for layer in norms(net).values():
            layer.running_var.fill_(1e-6)
        nets.append(net)
    x = np.random.default_rng(0).random((3, 1, 8, 8), dtype=np.float32) * 1e-3
    said, without = (predict(net, NET, x) for net in nets)
    path = export(
        nets[0], NET, x, tmp_path / "net.onnx", {"run": "r", "round": 1, "submodel": level.name}
    )
    np.testing.assert_allclose(load(path).predict(x), said, rtol=1e-4, atol=1e-4)
    assert np.abs(said - without).max() > 0.01


# ---- runs ----------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("model", ["resnet-small", "preresnet"])
def test_two_rounds_of_three_levels_end_with_finite_scores(tmp_path, model):
    names = [submodel.name for submodel in menu(network(model, (1, 8, 8), 10))]
    pins = {"a0": names[0], "a1": names[2], "a2": names[3]}
    given = {
        "method.name": "scalefl",
        "model.name": model,
        "rounds": 2,
        "evaluate.every": 2,
        "train.steps": 1,
        "assign.submodels": pins,
    }
    done = federate(
        tmp_path,
        [Member(f"a{i}", digits(i, 30)) for i in range(3)],
        {**given, "evaluate.devices": False, "evaluate.examples": 20},
    )
    assert {s.submodel for s in done.result.scores if s.view == "central"} == set(names)
    assert sum(s.view == "central/exit3" for s in done.result.scores) == 1
    assert all(np.isfinite(s.loss) for s in done.result.scores)


@pytest.mark.slow
def test_it_learns_digits(tmp_path):
    fleet, widths = (
        [Member(f"a{i}", digits(i, 3, "iid")) for i in range(2)],
        {"method.widths": [0.35, 0.5], "method.depths": [1, 4]},
    )
    given = {
        "method.name": "scalefl",
        "model.name": "resnet-small",
        **widths,
        "method.gamma": 0.05,
        "train.batch": 32,
    }
    pins = {"a0": "w0.35-d2.1.0", "a1": "w0.5-d2.2.2"}
    rounds = {
        "rounds": 2,
        "train.epochs": 2,
        "evaluate.every": 2,
        "evaluate.devices": False,
        "assign.submodels": pins,
    }
    done = federate(tmp_path, fleet, {**given, **rounds})
    central = {s.submodel: s.accuracy for s in done.result.scores if s.view == "central"}
    assert len(central) == 2
    assert min(central.values()) > 0.4  # chance is a tenth
