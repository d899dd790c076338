"""FjORD: widths drawn per batch."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from torch.nn import functional as F  # noqa: N812 (PyTorch's own habit)

from federated.method import configure
from federated.methods.catalogue import find_method
from federated.methods.fjord import distillation_loss, list_narrower, loss, open_widths
from federated.task import Task
from federated.training.training_inputs import TrainingSet
from federated.training.training_loop import open_session, train_session
from models.slicing import corners, extract
from models.submodel_building import build, initial, list_normalising, shapes, statistics
from tests.support.memory_federation import Member, digits, federate
from tests.support.small_tasks import perform
from tests.support.smallest_networks import SMALL, small

WIDTHS = [0.25, 0.5, 1.0]
NET = small("resnet")


def start(net=NET, **given):
    chosen = find_method("fjord")
    settings = configure(chosen, {"widths": WIDTHS, **given})
    menu = chosen.menu(net, settings)
    return chosen, menu, chosen.start(initial(net, 0), menu, settings)


def examples(net, count=6):
    generator = np.random.default_rng(0)
    if net.objective in {"next", "masked"}:
        x = generator.integers(0, net.outputs, (count, *net.inputs))
        return x, x
    return generator.random((count, *net.inputs), dtype=np.float32), generator.integers(
        0, net.outputs, count
    )


def open_device(net=NET, index=-1, seed=0, **given):
    """Return a device's session on a submodel of the menu, opened as its training would."""
    chosen, menu, state = start(net, **given)
    submodel = menu[index]
    tensors = chosen.dispatch(state, chosen.place(state, submodel))
    made = build(submodel)
    made.load_state_dict(
        {name: value for name, value in tensors.items() if "/" not in name}, strict=False
    )
    session = open_session(
        made,
        submodel,
        chosen.recipe(state, submodel),
        TrainingSet(*examples(net), range(3)),
        seed=seed,
    )
    session.received = tensors
    made.train()
    open_widths(session)
    return session


def batch(session):
    x, y = torch.from_numpy(session.x), torch.from_numpy(session.y)
    return x, y


# ---- nested networks -----------------------------------------------------------------------------


def test_a_device_draws_from_the_widths_up_to_its_own():
    _, menu, _ = start()
    assert [s.width for s in list_narrower(menu[1], WIDTHS)] == [0.25]
    assert [s.width for s in list_narrower(menu[2], [1.0, 0.5, 0.25, 0.5])] == [0.25, 0.5]
    assert list_narrower(menu[0], WIDTHS) == []


@pytest.mark.parametrize("family", SMALL)
def test_a_nested_network_computes_the_same_as_the_submodel_of_its_width(family):
    """In evaluation mode, with the same statistics and the same corner of the parameters."""
    session = open_device(small(family))
    wide = dict(session.net.named_parameters())
    whole = {name: tuple(p.shape) for name, p in wide.items()}
    x, _ = batch(session)
    for one, submodel in zip(session.own, list_narrower(session.submodel, WIDTHS), strict=True):
        alone = build(submodel).eval()
        alone.load_state_dict(
            extract({name: p.detach() for name, p in wide.items()}, corners(whole, submodel)),
            strict=False,
        )
        one.net.eval()
        torch.testing.assert_close(one.answer(session, x), alone(x), rtol=1e-6, atol=1e-6)


def test_a_drawn_width_changes_only_its_corner():
    """The gradient of the narrowest width falls on the leading corner of each parameter, and on
    nothing else.
    """
    session = open_device()
    x, y = batch(session)
    F.cross_entropy(session.own[0].answer(session, x), y).backward()
    inner = shapes(replace(session.submodel, width=0.25))
    for name, p in session.net.named_parameters():
        outside = p.grad.clone()
        outside[tuple(slice(n) for n in inner[name])] = 0
        assert not outside.any(), name
    assert session.net.stem.weight.grad[:4].any()


def test_widths_are_drawn_evenly():
    session = open_device(widths=[0.25, 0.5, 0.75, 1.0], kd=False)
    x, y = batch(session)
    by_reach = {4: 0, 8: 0, 12: 0, 16: 0}
    for _ in range(80):
        session.net.zero_grad()
        loss(session, x, y).backward()
        touched = session.net.stem.weight.grad.flatten(1).abs().sum(1)
        by_reach[int(touched.nonzero().max()) + 1] += 1
    assert sum(by_reach.values()) == 80
    assert min(by_reach.values()) > 8


def test_the_smallest_device_trains_as_under_fedavg():
    """It has nothing to draw: the same bits as without the hook."""
    chosen, menu, state = start()
    tensors = chosen.dispatch(state, chosen.place(state, menu[0]))
    found = []
    for hooks in (chosen.hooks, None):
        net = build(menu[0])
        net.load_state_dict(tensors, strict=False)
        train_session(
            open_session(
                net,
                menu[0],
                chosen.recipe(state, menu[0]),
                TrainingSet(*examples(NET), range(10)),
                seed=3,
            ),
            hooks,
        )
        found.append(net.state_dict())
    assert all(torch.equal(found[0][name], found[1][name]) for name in shapes(menu[0]))


# ---- distillation --------------------------------------------------------------------------------


def test_the_drawn_width_is_distilled_from_the_devices_own():
    """Teacher (ln 3, 0): probabilities 3/4 and 1/4; student (0, ln 3): -(3/4 ln 1/4 + 1/4 ln
    3/4).
    """
    teacher, student = torch.tensor([[np.log(3.0), 0.0]]), torch.tensor([[0.0, np.log(3.0)]])
    assert distillation_loss(NET, student, teacher, 1.0).item() == pytest.approx(
        -(0.75 * np.log(0.25) + 0.25 * np.log(0.75))
    )


def test_a_temperature_softens_both_widths_and_keeps_the_size_of_the_gradient():
    """(ln 9, 0) and (0, ln 9) at temperature 2 are (ln 3, 0) and (0, ln 3), times 4."""
    teacher, student = torch.tensor([[np.log(9.0), 0.0]]), torch.tensor([[0.0, np.log(9.0)]])
    assert distillation_loss(NET, student, teacher, 2.0).item() == pytest.approx(
        -4 * (0.75 * np.log(0.25) + 0.25 * np.log(0.75))
    )


def test_alpha_mixes_the_labels_and_the_outputs_of_the_own_width():
    """A quarter of the labels' loss, three quarters of the outputs'; the own width has no outputs
    to learn from but its own.
    """
    session = open_device(kd=True, alpha=0.75, temperature=2.0, widths=[0.25, 1.0])
    x, y = batch(session)
    full, narrow = session.net(x).detach(), session.own[0].answer(session, x)
    labels, own = F.cross_entropy(narrow, y), F.cross_entropy(full, y)
    taught = distillation_loss(NET, narrow, full, 2.0)
    expected = (own + 0.25 * labels + 0.75 * taught).item(), (1.25 * own).item()
    found = {round(loss(session, x, y).item(), 5) for _ in range(12)}
    assert sorted(found) == pytest.approx(sorted(expected), abs=1e-4)


def test_values_are_distilled_by_squared_error():
    made = replace(NET, objective="value")
    assert (
        distillation_loss(
            made, torch.tensor([[1.0], [4.0]]), torch.tensor([[0.0], [2.0]]), 3.0
        ).item()
        == 2.5
    )


@pytest.mark.parametrize("masked", [False, True])
def test_with_distillation_both_losses_count_and_the_teacher_gets_no_gradient_of_it(masked):
    """Drawing the device's own width leaves out the second loss: its gradient is zero."""
    session = open_device(kd=True, masked=masked, widths=[0.25, 1.0])
    x, y = batch(session)
    y = y % 3
    seen = set()
    for _ in range(8):
        session.net.zero_grad()
        found = loss(session, x, y)
        found.backward()
        got = session.net.linear.weight.grad.clone()
        session.net.zero_grad()
        full = session.net(x)
        if masked:
            full = torch.cat([full[:, :3], torch.zeros(6, 7)], 1)
        own = F.cross_entropy(full, y)
        for index, narrow in enumerate((session.own[0].answer(session, x), session.net(x))):
            narrow = torch.cat([narrow[:, :3], torch.zeros(6, 7)], 1) if masked else narrow
            soft = -(full.detach().softmax(1) * narrow.log_softmax(1)).sum(1).mean()
            if torch.isclose(found, own if index else own + soft, rtol=1e-6):
                seen.add(index)
                session.net.zero_grad()
                (own + soft).backward(retain_graph=True)
                torch.testing.assert_close(
                    session.net.linear.weight.grad, got, rtol=1e-4, atol=1e-6
                )
    assert seen == {0, 1}


# ---- what belongs to a width ---------------------------------------------------------------------


def test_by_default_all_is_shared():
    chosen, menu, state = start()
    plan = chosen.place(state, menu[-1])
    assert {row.home for row in plan.rows} == set(shapes(menu[-1]))


@pytest.mark.parametrize(
    ("given", "own"),
    [
        ({"affine": "separate"}, lambda s: list_normalising(s) & shapes(s).keys()),
        ({"norm": "tracked"}, lambda s: set(statistics(s))),
        ({"affine": "separate", "norm": "tracked"}, list_normalising),
    ],
)
def test_tensors_of_one_width_are_stored_per_width(given, own):
    chosen, menu, state = start(**given)
    plan = chosen.place(state, menu[1])
    names = own(menu[1])
    apart = {row.local: row.home for row in plan.rows if "@" in row.home}
    assert apart == {
        **{name: f"{name}@w0.5" for name in names},
        **{f"w0.25/{name}": f"{name}@w0.25" for name in names},
    }
    sent = chosen.dispatch(state, plan)
    assert sent["w0.25/norm.weight" if "affine" in given else "w0.25/norm.running_var"].shape == (
        4,
    )
    assert sent["norm.weight"].shape == (8,)


def test_norms_of_a_width_start_as_a_corner_and_move_when_it_is_drawn():
    """With separate, tracked norms: the device sends the changed norms of every width that it drew,
    and of its own.
    """
    chosen, menu, state = start(affine="separate", norm="tracked")
    submodel, data = menu[-1], digits(0, 3)
    tensors = {
        name: value.numpy()
        for name, value in chosen.dispatch(state, chosen.place(state, submodel)).items()
    }
    recipe = replace(chosen.recipe(state, submodel), steps=12, batch=8)
    update, _ = perform(
        Task("r", 1, 0, "a", "train", submodel, "0", "", 0, recipe, 9.0), tensors, data
    )
    assert update.tensors.keys() == tensors.keys()
    for name in (
        "w0.25/norm.weight",
        "w0.5/norm.bias",
        "norm.weight",
        "w0.25/norm.running_mean",
        "w0.5/norm.running_var",
        "norm.running_var",
    ):
        assert not np.array_equal(update.tensors[name], tensors[name]), name
    assert (
        len({update.tensors[f"{at}norm.running_mean"][0].item() for at in ("w0.25/", "w0.5/", "")})
        == 3
    )


def test_the_same_seed_draws_the_same_widths():
    chosen, menu, state = start(affine="separate")
    tensors = {
        name: value.numpy()
        for name, value in chosen.dispatch(state, chosen.place(state, menu[-1])).items()
    }
    task = Task(
        "r",
        1,
        0,
        "a",
        "train",
        menu[-1],
        "0",
        "",
        0,
        replace(chosen.recipe(state, menu[-1]), steps=4),
        9.0,
    )
    first, second = (perform(task, tensors, digits(0, 3))[0].tensors for _ in range(2))
    assert all(np.array_equal(first[name], second[name]) for name in first)


# ---- whole runs ----------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize(
    "given",
    [{"method.kd": False}, {"method.affine": "separate", "method.norm": "tracked"}],
    ids=["shared", "separate, tracked, kd"],
)
def test_three_sizes_learn_digits(tmp_path: Path, given: dict[str, object]) -> None:
    fleet = [Member(f"a{i}", digits(i, 3)) for i in range(3)]
    pins = {"a0": "w0.25-d1.1.1", "a1": "w0.5-d1.1.1", "a2": "w1-d1.1.1"}
    shape = {
        "method.name": "fjord",
        "model.name": "resnet-small",
        "method.widths": WIDTHS,
        "method.depths": [1],
        "assign.submodels": pins,
    }
    done = federate(tmp_path, fleet, {**shape, "rounds": 3, "evaluate.every": 3, **given})
    assert all(np.isfinite(s.loss) for s in done.result.scores)
    central = {s.submodel: s.accuracy for s in done.result.scores if s.view == "central"}
    assert set(central) == set(pins.values())
    assert min(central.values()) > 0.3
