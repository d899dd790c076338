"""Late updates on nested rectangles: an age per band, a discount by age, and no change of
coordinates outside the update.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from math import sqrt

import numpy as np
import pytest
import torch
from torch import Tensor

from federated.engine.aggregate import Total, fold
from federated.engine.late_updates import (
    Base,
    Touched,
    ages,
    discount,
    find_touched,
    make_buffered,
    rebase_update,
)
from federated.engine.update_contributions import Part
from federated.errors import ConfigError
from federated.method import Method, Settings, State, configure
from federated.methods.catalogue import METHODS, find_method
from federated.task import Update
from models.named_network import network
from models.slicing import Plan, Row, Where, as_slices, read_home
from models.submodel import Submodel
from models.submodel_building import initial

ABLE = sorted(name for name in METHODS if "buffered" in find_method(name).allows)
UNABLE = sorted(METHODS.keys() - set(ABLE))
FAMILIES = {"inclusivefl": "preresnet", "scalefl": "preresnet"}
SMALL = Submodel(network("mlp", (6,), 3), 0.5, ())


def home(length: int, upto: int) -> Row:
    """Return a leading corner of a vector w."""
    return Row("w", ((0, upto),), "w", ((0, upto),), (length,))


def late(
    row: Row,
    sent: list[float],
    came: list[float],
    now: list[float],
    since: list[dict[Where, float | Tensor]],
) -> list[float]:
    """Return the rebased update of a vector. sent: the weights that the device received; came: the
    weights that it returned; now: the present weights; since: rectangles touched by each
    aggregation since.
    """
    then, state = (
        State(number, {"w": torch.tensor(values)}, Settings())
        for number, values in ((0, sent), (len(since), now))
    )
    update = Update("r", 1, 1, "a", "train", SMALL, "r0", 1, 1, {"w": torch.tensor(came)})
    return (
        rebase_update(
            state, Base(then, tuple({"w": one} for one in since)), Plan(SMALL, (row,)), update
        )
        .tensors["w"]
        .tolist()
    )  # type: ignore[no-any-return]


def test_the_inner_corner_ages_every_round_and_the_rest_only_with_large_devices() -> None:
    """After two small rounds and a large one, the inner corner has age 3: 3 + 8/2 = 7. The rest has
    age 1: 1 + 8/sqrt 2.
    """
    core, whole = ((0, 2),), ((0, 4),)
    found = late(
        home(4, 4),
        [0.0] * 4,
        [8.0] * 4,
        [3.0, 3.0, 1.0, 1.0],
        [{core: 1.0}, {core: 1.0}, {core: 1.0, whole: 1.0}],
    )
    assert found == pytest.approx([7, 7, 1 + 8 / sqrt(2), 1 + 8 / sqrt(2)])


def test_coordinates_that_no_later_update_touched_take_the_late_value() -> None:
    found = late(home(4, 4), [1.0] * 4, [0.1] * 4, [5.0, 5.0, 1.0, 1.0], [{((0, 2),): 1.0}])
    assert found[2:] == torch.tensor([0.1, 0.1]).tolist()
    assert found[:2] == pytest.approx([5 - 0.9 / sqrt(2)] * 2)


def test_rows_of_a_class_age_only_in_rounds_with_that_class() -> None:
    """Two rounds: the first with classes 0 and 1, the second with class 1. The discounts are 1/sqrt
    2, 1/sqrt 3 and 1.
    """
    rows = [torch.tensor([1.0, 1.0, 0.0]), torch.tensor([0.0, 1.0, 0.0])]
    found = late(
        home(3, 3), [0.0] * 3, [6.0] * 3, [1.0, 2.0, 0.0], [{((0, 3),): one} for one in rows]
    )
    assert found == pytest.approx([1 + 6 / sqrt(2), 2 + 6 / sqrt(3), 6])


def test_late_statistics_are_averaged_not_added_as_differences() -> None:
    """The variance is 1 now and was 16 at the start of the late device, which measured 9: 1 + (9 -
    1)/sqrt 2. Adding a difference would give less than 0.
    """
    row = replace(home(1, 1), local="norm.running_var", home="norm.running_var")
    then, now = (
        State(number, {"norm.running_var": torch.tensor([value])}, Settings())
        for number, value in ((0, 16.0), (1, 1.0))
    )
    update = Update(
        "r", 1, 1, "a", "train", SMALL, "r0", 1, 1, {"norm.running_var": torch.tensor([9.0])}
    )
    base = Base(then, ({"norm.running_var": {((0, 1),): 1.0}},))
    assert rebase_update(now, base, Plan(SMALL, (row,)), update).tensors[
        "norm.running_var"
    ].item() == pytest.approx(1 + 8 / sqrt(2))


def test_nested_corners_of_a_matrix_are_cut_into_bands_of_one_age() -> None:
    """One round touched a 2 x 2 corner and another a 3 x 1 corner of a 3 x 3 matrix."""
    found = ages([{((0, 2), (0, 2)): 1.0}, {((0, 3), (0, 1)): 1.0}], ((0, 3), (0, 3)))
    dense = torch.full((3, 3), -1.0)
    for band, age in found:
        assert bool((dense[as_slices(band)] == -1).all()), "bands never overlap"
        dense[as_slices(band)] = age
    assert dense.tolist() == [[2, 1, 0], [2, 1, 0], [1, 0, 0]]


def test_several_rectangles_of_one_aggregation_count_once() -> None:
    assert ages([{((0, 2),): 1.0, ((0, 4),): 1.0, ((1, 4),): 1.0}], ((0, 4),)) == [
        (((0, 1),), 1.0),
        (((1, 2),), 1.0),
        (((2, 4),), 1.0),
    ]
    assert ages([{(): 1.0}, {(): 1.0}], ()) == [((), 2.0)], "a scalar has no axis"
    assert ages([], ((0, 4),)) == ages([{((4, 5),): 1.0}], ((0, 4),)) == [(((0, 4),), 0.0)]


def test_the_discount_is_that_of_fedbuff() -> None:
    assert [discount(age) for age in (0.0, 3.0, 8.0)] == [1.0, 0.5, pytest.approx(1 / 3)]


def test_find_touched_returns_the_rectangles_of_a_total() -> None:
    """Additional sums of a tensor count as that tensor; rows without weight do not count, and
    unknown tensors are left out.
    """
    total = Total()
    rows = torch.tensor([0.0, 2.0])
    parts = [
        Part("w", ((0, 2),), (3,), torch.ones(2), rows),
        Part("w#zero", ((0, 1),), (3,), torch.ones(1), 5.0),
        Part("v@small/small", (), (), torch.tensor(1.0), 1.0),
        Part("m/v@small", (), (), torch.tensor(1.0), 1.0),
    ]
    fold(total, parts, ("a",))
    found = find_touched(total, {"w": torch.ones(3), "v@small": torch.tensor(1.0)})
    assert found.keys() == {"w", "v@small"}
    assert found["w"][(0, 2),].tolist() == [0, 1]  # type: ignore[union-attr]
    assert found["w"][(0, 1),] == found["v@small"][()] == 1.0


# ---- every method --------------------------------------------------------------------------------


class Past:
    """Three rounds of a method: its states, and the rectangles that each aggregation touched. The
    first round has updates of all sizes, the others of the smallest.
    """

    def __init__(self, name: str) -> None:
        self.plain = find_method(name)
        self.net = network(
            FAMILIES.get(
                name, "preresnet" if name.startswith(("nefl", "inco", "fedfa")) else "mlp"
            ),
            *self.shape(name),
        )
        given = configure(self.plain, {}, rounds=10)
        self.menu = self.plain.menu(self.net, given)
        self.states = [
            self.plain.start(initial(self.net, 0, self.plain.features), self.menu, given)
        ]
        self.since: list[Touched] = []
        for sizes in (self.menu, self.menu[:1], self.menu[:1]):
            self.advance(
                [
                    self.update(submodel, self.states[-1], seed)
                    for seed, submodel in enumerate(sizes)
                ]
            )

    def shape(self, name: str) -> tuple[tuple[int, ...], int]:
        return (
            ((6,), 3)
            if not name.startswith(("nefl", "inco", "fedfa")) and name not in FAMILIES
            else ((1, 8, 8), 3)
        )

    @property
    def method(self) -> Method:
        return make_buffered(
            self.plain, lambda number, now: Base(self.states[number], tuple(self.since[number:now]))
        )

    def update(
        self,
        submodel: Submodel,
        state: State,
        seed: int,
        change: Callable[[Tensor, torch.Generator], Tensor] | None = None,
    ) -> Update:
        """Return an update of a device that started from a state."""
        generator = torch.Generator().manual_seed(seed)
        make = change or (
            lambda value, noise: (
                (value + 0.1 * torch.randn(value.shape, generator=noise)).abs() + 0.01
            )
        )
        sent = self.plain.dispatch(state, self.plain.place(state, submodel))
        values = {name: make(value, generator) for name, value in sent.items()}
        return Update(
            "r",
            state.round + 1,
            1,
            f"a{seed}",
            "train",
            submodel,
            "0",
            3,
            4,
            values,
            {"labels": [0, 1]},
        )

    def parts(self, update: Update) -> list[Part]:
        return list(
            self.method.parts(
                self.states[-1], self.plain.place(self.states[-1], update.submodel), update
            )
        )

    def advance(self, updates: list[Update]) -> None:
        total = Total()
        for one in updates:
            fold(total, self.parts(one), (one.agent, one.round))
        after = self.plain.finish(self.states[-1], total, np.random.default_rng(0))
        self.since.append(find_touched(total, after.tensors))
        self.states.append(after)


def dense(past: Past, update: Update, row: Row) -> Tensor:
    """Rebase a whole tensor by the formula of a row, with ages counted entry by entry."""
    age = torch.zeros(row.shape)
    for one in past.since[update.round - 1 :]:
        mark = torch.zeros(row.shape)
        for where, weight in one.get(row.home, {}).items():
            rows = (
                torch.as_tensor(weight).float().reshape(-1, *[1] * (age.dim() - 1))
                if age.dim()
                else torch.as_tensor(weight)
            )
            mark[as_slices(where)] = torch.maximum(
                mark[as_slices(where)], rows.expand(mark[as_slices(where)].shape).to(mark)
            )
        age += mark
    then, now = (
        read_home(state.tensors, row.home, row.shape)[as_slices(row.there)]
        for state in (past.states[update.round - 1], past.states[-1])
    )
    share = (1 + age[as_slices(row.there)]) ** -0.5
    old = now if row.local.endswith(("running_mean", "running_var")) else then
    return now + share * (update.tensors[row.local][as_slices(row.here)] - old)


@pytest.mark.parametrize("name", ABLE)
def test_a_late_update_follows_the_formula_in_every_entry(name: str) -> None:
    """Updates of every size, from devices that started from the first and from the second state."""
    past = Past(name)
    for submodel in past.menu:
        for number in (0, 1):
            update = past.update(submodel, past.states[number], 7)
            plan = past.plain.place(past.states[number], submodel)
            found = rebase_update(
                past.states[-1], Base(past.states[number], tuple(past.since[number:])), plan, update
            )
            for row in plan.rows:
                torch.testing.assert_close(
                    found.tensors[row.local][as_slices(row.here)],
                    dense(past, update, row),
                    rtol=1e-5,
                    atol=1e-6,
                )


@pytest.mark.parametrize("name", ABLE)
def test_at_age_0_the_parts_equal_those_of_the_plain_method(name: str) -> None:
    """Updates of the present round, and of an older one without later updates, give the
    same bits.
    """
    past = Past(name)
    fresh = past.update(past.menu[-1], past.states[-1], 7)
    plain = list(
        past.plain.parts(past.states[-1], past.plain.place(past.states[-1], fresh.submodel), fresh)
    )
    past.since.append({})
    past.states.append(replace(past.states[-1], round=past.states[-1].round + 1))
    for found in (
        past.parts(fresh),
        past.parts(replace(fresh, round=fresh.round + 1)) if name != "fedrolex" else plain,
    ):
        assert len(found) == len(plain)
        assert all(same(one, other) for one, other in zip(found, plain, strict=True))


def same(one: Part, other: Part) -> bool:
    weights = torch.equal(torch.as_tensor(one.weight), torch.as_tensor(other.weight))
    return (
        weights
        and torch.equal(one.value, other.value)
        and replace(one, value=other.value, weight=other.weight) == other
    )


@pytest.mark.parametrize(
    "name", [name for name in ABLE if "identity" not in find_method(name).breaks]
)
def test_a_late_untrained_update_changes_nothing(name: str) -> None:
    """An untrained update leaves the state unchanged, although others moved it meanwhile."""
    past = Past(name)
    before = past.states[-1].tensors
    past.advance([past.update(past.menu[-1], past.states[0], 0, lambda value, _: value)])
    after = past.states[-1].tensors
    assert all(
        torch.allclose(after[home], value, atol=1e-6)
        for home, value in before.items()
        if home in after and settled(home, past)
    )


def settled(name: str, past: Past) -> bool:
    """Return True if a late update can be recognised in a tensor; statistics are measurements."""
    return (
        not name.partition("@")[0].endswith(("running_mean", "running_var"))
        and name in past.states[0].tensors
    )


def test_a_late_update_is_folded_into_the_window_of_its_round() -> None:
    """FedRolex moves its window by one channel each round."""
    past = Past("fedrolex")
    update = past.update(past.menu[0], past.states[0], 7)
    assert {(part.home, part.where) for part in past.parts(update)} == {
        (row.home, row.there) for row in past.plain.place(past.states[0], past.menu[0]).rows
    }


@pytest.mark.parametrize("name", UNABLE)
def test_a_method_without_support_for_late_updates_gives_the_reason(name: str) -> None:
    with pytest.raises(ConfigError, match=f"{name} does not support late updates: "):
        make_buffered(
            find_method(name), lambda number, now: Base(State(number, {}, Settings()), ())
        )


def test_most_methods_support_late_updates() -> None:
    assert {*UNABLE} == {"depthfl", "flexifed", "inco-scaffold", "recipfl", "scaffold"}
