"""RecipFL on a device: its histogram, and the weak network that a strong one teaches."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from federated.errors import Refused
from federated.methods.common.recipfl_student_training import histogram, student_loss, teach
from federated.task import Task
from federated.training.hooks import Survey
from federated.training.training_inputs import Stopped
from federated.training.training_loop import open_session
from models.named_network import network
from models.submodel_building import build, shapes
from tests.support.recipfl import METHOD, begin_method, examples, sent, train_round
from tests.support.small_tasks import perform


def test_a_device_tells_its_share_of_each_class():
    y = np.array([0, 0, 1, 3])
    assert histogram(
        Survey(network("mlp", (6,), 4), (), {}, y, y, (0, 1, 3), 1, torch.device("cpu"))
    ) == {"histogram": [0.5, 0.25, 0.0, 0.25]}


def test_a_device_with_values_tells_nothing():
    y = np.zeros((3, 1), np.float32)
    assert (
        histogram(
            Survey(
                network("mlp", (6,), 1, target="value"), (), {}, y, y, (), 1, torch.device("cpu")
            )
        )
        == {}
    )


def test_of_values_the_student_has_squared_errors():
    """(2 - 0)^2 + (2 - 3)^2, and no last term without features."""
    assert (
        student_loss(
            torch.tensor([[2.0]]), torch.tensor([[3.0]]), None, None, torch.tensor([[0.0]])
        ).item()
        == 5.0
    )


def test_a_strong_device_returns_both_networks_and_a_weak_one_its_own():
    menu, state = begin_method(lr=0.05)
    weak, strong = (train_round(state, replace(submodel, owner="a0")) for submodel in menu)
    assert weak.keys() == shapes(menu[0]).keys()
    assert strong.keys() == {*shapes(menu[1]), *(f"small/{name}" for name in shapes(menu[0]))}
    before = sent(state, replace(menu[1], owner="a0"))
    assert not any(np.array_equal(value, before[name].numpy()) for name, value in strong.items())


@pytest.mark.parametrize(
    "net",
    [
        network("resnet-small", (1, 8, 8), 10),
        network("transformer-small", (8,), 12, target="token"),
    ],
    ids=["exit", "tokens"],
)
def test_any_small_network_is_taught(net):
    """An exit with as many features as the teacher's own head; a text, where features are of each
    place.
    """
    menu, state = begin_method(
        net, steps=1, **({"shrink": "depth"} if net.family == "resnet" else {"widths": [0.25, 1.0]})
    )
    rng = np.random.default_rng(0)
    x = rng.integers(0, net.outputs, (6, *net.inputs)).astype(
        np.int64 if net.family == "transformer" else np.uint8
    )
    y = x if net.family == "transformer" else np.arange(6, dtype=np.int64)
    data = SimpleNamespace(x=x, y=y, x_held=x, y_held=y, labels=tuple(range(6)))
    task = Task(
        "r", 1, 0, "a0", "train", menu[-1], "v", "", 0, METHOD.recipe(state, menu[-1]), 60.0
    )
    found = perform(
        task, {name: value.numpy() for name, value in sent(state, menu[-1]).items()}, data
    )[0].tensors
    assert {f"small/{name}" for name in shapes(menu[0])} < found.keys()
    assert all(np.isfinite(value).all() for value in found.values())


def taught(state, submodel, **options):
    """Return the session of a strong device after its own training."""
    recipe, data = METHOD.recipe(state, submodel), examples()
    recipe = replace(recipe, options={**recipe.options, **options})
    session = open_session(build(submodel), submodel, recipe, data, seed=0)
    session.received = sent(state, submodel)
    return session


def test_a_student_follows_its_teacher():
    """All labels say 0. A teacher that says 2 gets half of it: the sum of both cross-entropies is
    least at one half each.
    """
    menu, state = begin_method(lr=0.1, epochs=30)
    session = taught(state, menu[-1])
    session.y = np.zeros_like(session.y)
    answers = {}
    for says in (0, 2):
        with torch.no_grad():
            for value in session.net.linear.parameters():
                value.zero_()
            session.net.linear.bias[says] = 50.0
        teach(session)
        net = build(menu[0])
        net.load_state_dict(
            {name.removeprefix("small/"): value for name, value in session.sent.items()},
            strict=False,
        )
        answers[says] = net.train()(torch.from_numpy(session.x)).softmax(1).mean(0).tolist()
    assert answers[0][0] > 0.9
    assert answers[2][2] == pytest.approx(0.5, abs=0.1)


def test_teaching_ends_when_it_is_no_longer_wanted():
    menu, state = begin_method()
    session = taught(state, menu[-1])
    session.stop = lambda: True
    with pytest.raises(Stopped):
        teach(session)


def test_no_code_of_anothers_choice_is_run():
    menu, state = begin_method()
    small = METHOD.recipe(state, menu[-1]).options["small"]
    session = taught(
        state,
        menu[-1],
        small={**small, "network": {**small["network"], "family": "os:getcwd", "preset": ""}},
    )
    with pytest.raises(Refused, match="os:getcwd"):
        teach(session)
