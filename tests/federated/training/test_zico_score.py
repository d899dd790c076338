"""ZiCo: the score, the tensors that it uses, and FedFA's choice with it."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
import torch

from federated.method import State, configure
from federated.methods.catalogue import find_method
from federated.task import Card, Profile
from federated.trainer_capabilities import list_required_capabilities
from federated.training.hooks import Survey
from federated.training.zico_score import layers, score, survey, zico
from models.cost import cost
from models.named_network import network
from models.submodel_building import build, full, shapes
from tests.support.memory_federation import Member, digits, federate
from tests.support.smallest_networks import small

NET = network("preresnet", (1, 8, 8), 10)
ZICO = {"choice": "zico", "widths": (0.25, 0.5), "depths": (2,)}


def make_survey(data, memory=10**9, **given):
    chosen = find_method("fedfa")
    settings = configure(chosen, {**ZICO, **given}, seed=3)
    return Survey(
        NET,
        chosen.menu(NET, settings),
        settings,
        data.x,
        data.y,
        data.labels,
        memory,
        torch.device("cpu"),
    )


def profile(scores, runtime="torch"):
    found = {} if scores is None else {"zico": scores}
    return Profile(
        "a",
        "h",
        "s",
        1.0,
        1,
        1.0,
        1,
        runtime,
        Card("d", (1, 8, 8), "uint8", 10, 9, 0, (0.0,), (1.0,)),
        (),
        found,
    )


def begin_method(**given):
    chosen = find_method("fedfa")
    settings = configure(chosen, {**ZICO, "widths": (0.25, 0.5, 1.0), **given})
    return chosen, State(0, {}, settings), chosen.menu(NET, settings)


# ---- the score -----------------------------------------------------------------------------------


def test_weights_whose_gradient_does_not_vary_are_left_out():
    """The first layer has gradients (1, 5) and (3, 5): the first entry has mean 2 and deviation 1.
    The second layer does not vary.
    """
    assert zico(
        {"a": torch.tensor([[1.0, 5.0], [3.0, 5.0]]), "b": torch.ones(2, 3)}
    ) == pytest.approx(math.log(2))
    assert zico({"b": torch.ones(2, 3)}) == 0.0


def test_the_score_divides_mean_sizes_by_the_population_deviation():
    """(-1, 2, 2): mean of sizes 5/3, deviation sqrt(2)."""
    assert zico({"a": torch.tensor([[-1.0], [2.0], [2.0]])}) == pytest.approx(
        math.log(5 / 3 / math.sqrt(2))
    )


@pytest.mark.parametrize("family", ["preresnet", "densenet", "vit", "transformer", "mlp"])
def test_convolutions_and_linears_are_scored_and_nothing_else(family):
    submodel = full(small(family))
    named = {f"{name}.weight" for name in layers(build(submodel, "meta"))}
    wide = {
        name
        for name, shape in shapes(submodel).items()
        if len(shape) > 1 and name.endswith("weight") and "norm" not in name
    }
    assert named == wide
    assert not named & {"tokens", "positions"}


def test_a_linear_networks_score_is_that_of_its_gradients_by_hand():
    """mlp without blocks is linear, norm, relu, linear: the gradients are autograd's on the network
    that the seed makes.
    """
    submodel = replace(full(network("mlp", (4,), 3)), mask=((0, 0),))
    generator = torch.Generator().manual_seed(0)
    batches = [
        (torch.rand(6, 4, generator=generator), torch.randint(3, (6,), generator=generator))
        for _ in range(2)
    ]
    state = torch.get_rng_state()
    found = score(submodel, batches, 5)
    assert torch.equal(torch.get_rng_state(), state)
    net = build(submodel, seed=5).train()
    expected = 0.0
    gradients = []
    for x, y in batches:
        net.zero_grad()
        torch.nn.functional.cross_entropy(net(x), y).backward()
        gradients.append((net.stem.weight.grad.clone(), net.linear.weight.grad.clone()))
    for one, two in zip(*gradients, strict=True):
        mean, deviation = (one.abs() + two.abs()) / 2, (one - two).abs() / 2  # of two values
        expected += math.log(float((mean[deviation > 0] / deviation[deviation > 0]).double().sum()))
    assert found == pytest.approx(expected, rel=1e-5)


# ---- the survey ----------------------------------------------------------------------------------


def test_a_device_scores_what_fits_its_memory_the_same_each_time():
    data = digits(0, 8)
    found = survey(make_survey(data))
    assert set(found["zico"]) == {"w0.25-d2.2.2", "w0.5-d2.2.2"}
    assert all(math.isfinite(value) for value in found["zico"].values())
    assert survey(make_survey(data)) == found
    narrow, wide = make_survey(data).menu
    least = cost(narrow, 32).memory
    assert least < cost(wide, 32).memory
    assert set(survey(make_survey(data, memory=least))["zico"]) == {narrow.name}
    assert survey(make_survey(data, memory=least - 1)) == {"zico": {}}


def test_nothing_is_scored_unless_asked_for_or_of_three_examples():
    data = digits(0, 8)
    assert survey(make_survey(data, choice="largest")) == {}
    few = replace(data, x=data.x[:3], y=data.y[:3])
    assert survey(make_survey(few)) == {}
    some = replace(data, x=data.x[:4], y=data.y[:4])
    assert set(survey(make_survey(some))["zico"]) == {"w0.25-d2.2.2", "w0.5-d2.2.2"}


# ---- FedFA's choice ------------------------------------------------------------------------------


def test_the_best_score_that_is_affordable_wins_and_equals_go_to_the_cheaper():
    chosen, state, menu = begin_method()
    rng, names = np.random.default_rng(0), [s.name for s in menu]
    scored = profile(dict(zip(names, (5.0, 7.0, 6.0), strict=True)))
    assert chosen.assign(state, scored, menu, rng) == menu[1]
    assert chosen.assign(state, scored, [menu[0], menu[2]], rng) == menu[2]
    assert chosen.assign(state, profile(dict.fromkeys(names, 1.0)), menu, rng) == menu[0]


@pytest.mark.parametrize(
    "scores",
    [None, {}, {"other": 1.0}, "nonsense", {"w0.5-d2.2.2": math.nan}, {"w0.25-d2.2.2": "high"}],
)
def test_without_a_score_the_largest_is_taken(scores):
    chosen, state, menu = begin_method()
    assert chosen.assign(state, profile(scores), menu, np.random.default_rng(0)) == menu[-1]


def test_the_largest_is_taken_where_that_is_the_choice_whatever_the_scores():
    chosen, state, menu = begin_method(choice="largest")
    assert (
        chosen.assign(state, profile({menu[0].name: 9.0}), menu, np.random.default_rng(0))
        == menu[-1]
    )


def test_a_budget_of_multiply_adds_bounds_the_choice():
    """Shares of the whole network with all blocks; a budget that allows nothing leaves the
    cheapest.
    """
    shares = [cost(s).macs / cost(full(NET)).macs for s in begin_method()[2]]
    for choice in ("largest", "zico"):
        for budget, expected in (
            (shares[1], 1),
            (shares[1] - 1e-9, 0),
            (shares[0] / 2, 0),
            (0.0, 2),
        ):
            chosen, state, menu = begin_method(choice=choice, mac_budget=budget)
            scored = profile({s.name: float(i) for i, s in enumerate(menu)})
            assert chosen.assign(state, scored, menu, np.random.default_rng(0)) == menu[expected]


def test_a_method_that_only_surveys_requires_no_hook_of_a_trainer():
    chosen, state, menu = begin_method(choice="zico")
    assert chosen.hooks.survey is not None
    assert not any(
        word.startswith("hook:")
        for word in list_required_capabilities(chosen.recipe(state, menu[0]))
    )


@pytest.mark.slow
def test_devices_of_a_run_choose_by_their_own_data(tmp_path):
    """Each agent's submodel is the one of the best score in its profile; the scores differ, since
    their data do.
    """
    fleet = [Member(f"a{i}", digits(i, 9, "dirichlet:0.3")) for i in range(3)]
    given = {
        "method.name": "fedfa",
        "method.choice": "zico",
        "method.mac_budget": 0.05,
        "rounds": 2,
        "evaluate.every": 2,
        "train.epochs": 1,
    }
    done = federate(
        tmp_path, fleet, {**given, "method.widths": [0.125, 0.25, 0.5], "method.depths": [2]}
    )
    scores = {name: agent.profile.survey["zico"] for name, agent in done.fleet.agents.items()}
    assert len({tuple(found.values()) for found in scores.values()}) == 3
    for name, found in scores.items():
        within = {s: value for s, value in found.items() if s != "w0.5-d2.2.2"}
        assert len(within) == len(found) - 1 == 2
        assert done.result.history.assigned[name].name == max(within, key=within.__getitem__)
    assert all(np.isfinite(s.loss) for s in done.result.scores)
