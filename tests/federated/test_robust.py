"""Robust rules by hand on nested corners, against numpy, and against liars."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from federated import robust
from federated.aggregate import Total, fold, mean
from federated.kept import Kept
from federated.method import Part, configure
from federated.methods.catalogue import METHODS, method
from federated.norms import grounded
from federated.robust import combine, nearest
from federated.task import Update
from models.families import initial, network

OLD = {"w": torch.zeros(2, 2)}


def part(value, where=None, shape=None, weight=1.0, home="w"):
    value = torch.as_tensor(value, dtype=torch.float32)
    return Part(home, tuple((0, n) for n in value.shape) if where is None else where, tuple(value.shape) if shape is None else shape, value, weight)


def kept_of(folder, *updates):
    kept = Kept(folder)
    for index, parts in enumerate(updates):
        kept.fold(parts if isinstance(parts, list) else [parts], (f"a{index}", 1))
    return kept


def result(kept, tensors, rule, f, home="w"):
    total = combine(kept, tensors, rule, f)
    return mean(total.sums[home], tensors[home])


def corner(value):
    return part([[value]], shape=(2, 2))


def whole(*values):
    return part([[values[0], values[1]], [values[2], values[3]]])


def test_a_trimmed_mean_of_nested_corners_by_hand(tmp_path):
    """The core is held by five: of 1, 2, 3, 4 and 900 stay 2, 3 and 4. The ring by three: of (0, 5, 7), (0, 6, 9), (0, 1, 8) the middle ones."""
    kept = kept_of(tmp_path, corner(1.0), corner(900.0), whole(2.0, 0.0, 0.0, 0.0), whole(3.0, 5.0, 6.0, 1.0), whole(4.0, 7.0, 9.0, 8.0))
    assert result(kept, OLD, "trimmed", 1).tolist() == [[3.0, 5.0], [6.0, 1.0]]
    assert combine(kept, OLD, "trimmed", 1).seen == kept.seen


def test_a_median_of_nested_corners_by_hand(tmp_path):
    """Four hold the core: of 1, 2, 3 and 900 the mean of 2 and 3."""
    kept = kept_of(tmp_path, corner(900.0), whole(1.0, 0.0, 0.0, 4.0), whole(2.0, 5.0, -6.0, 1.0), whole(3.0, 7.0, 9.0, 8.0))
    assert result(kept, OLD, "median", 1).tolist() == [[2.5, 5.0], [0.0, 4.0]]


@pytest.mark.parametrize("rule", ["trimmed", "median"])
def test_a_coordinate_that_too_few_hold_keeps_its_old_value_bit_for_bit(tmp_path, rule):
    old = {"w": torch.tensor([[0.1, 0.2], [0.3, 0.7]])}
    kept = kept_of(tmp_path, corner(5.0), whole(5.0, 1.0, 1.0, 1.0), whole(5.0, 1.0, 1.0, 1.0))
    found = result(kept, old, rule, 1)
    assert found[0, 0] == 5.0
    assert torch.equal(found[0, 1], old["w"][0, 1])
    assert torch.equal(found[1], old["w"][1])


def test_a_home_that_too_few_hold_is_left_out(tmp_path):
    assert not combine(kept_of(tmp_path, whole(1.0, 1.0, 1.0, 1.0), whole(1.0, 1.0, 1.0, 1.0)), OLD, "median", 1).sums


def test_a_row_that_a_device_does_not_give_is_not_covered(tmp_path):
    """Row 1 is given by three of four, whose middle value is 3; row 0 by all."""
    rows = torch.tensor([1.0, 0.0])
    kept = kept_of(
        tmp_path,
        part([[1.0], [900.0]], weight=rows),
        part([[2.0], [2.0]], weight=torch.ones(2)),
        part([[3.0], [3.0]]),
        part([[9.0], [7.0]]),
    )
    assert result(kept, {"w": torch.zeros(2, 1)}, "trimmed", 1).tolist() == [[2.5], [3.0]]


def test_a_row_that_too_few_give_keeps_its_old_value(tmp_path):
    rows = torch.tensor([1.0, 0.0])
    kept = kept_of(tmp_path, part([[1.0], [9.0]], weight=rows), part([[2.0], [2.0]]), part([[3.0], [3.0]]))
    assert result(kept, {"w": torch.full((2, 1), 0.7)}, "median", 1).tolist() == [[2.0], [pytest.approx(0.7)]]


@pytest.mark.parametrize("rule", ["trimmed", "median", "krum", "multikrum"])
def test_scalars_without_axes(tmp_path, rule):
    kept = kept_of(tmp_path, *(part(torch.tensor(float(v))) for v in (1, 2, 3, 4, 900)))
    assert float(result(kept, {"w": torch.tensor(0.0)}, rule, 1)) in (2.0, 2.5, 3.0)


@settings(max_examples=20, deadline=None)
@given(seed=st.integers(0, 2**31), n=st.integers(1, 9), f=st.integers(0, 3), cells=st.integers(1, 50))
def test_trimmed_mean_and_median_are_those_of_numpy(tmp_path_factory, seed, n, f, cells):
    """Nested corners of a random tensor against a loop over coordinates, in blocks of any size."""
    rng = np.random.default_rng(seed)
    shape = tuple(rng.integers(1, 5, size=3))
    extents = [tuple(int(rng.integers(1, s + 1)) for s in shape) for _ in range(n)]
    values = [rng.standard_normal(extent).astype(np.float32) for extent in extents]
    old = rng.standard_normal(shape).astype(np.float32)
    kept = kept_of(tmp_path_factory.mktemp("kept"), *(part(torch.from_numpy(v), shape=shape) for v in values))
    expected = {"trimmed": old.copy(), "median": old.copy()}
    for place in np.ndindex(*shape):
        there = sorted(float(v[place]) for v in values if all(i < e for i, e in zip(place, v.shape, strict=True)))
        if len(there) >= 2 * f + 1:
            expected["trimmed"][place] = np.mean(there[f : len(there) - f])
            expected["median"][place] = np.median(there)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(robust, "CELLS", cells)
        for rule, wanted in expected.items():
            total = combine(kept, {"w": torch.from_numpy(old)}, rule, f)
            found = mean(total.sums["w"], torch.from_numpy(old)) if total.sums else torch.from_numpy(old)
            np.testing.assert_allclose(found.numpy(), wanted, rtol=1e-6, atol=1e-7)


@settings(max_examples=20, deadline=None)
@given(seed=st.integers(0, 2**31), n=st.integers(1, 6))
def test_without_liars_a_trimmed_mean_is_the_mean_of_equal_weights(tmp_path_factory, seed, n):
    rng = np.random.default_rng(seed)
    updates = [part(torch.from_numpy(rng.standard_normal(tuple(rng.integers(1, 4, size=2)))), shape=(3, 3)) for _ in range(n)]
    old, total = {"w": torch.zeros(3, 3)}, Total()
    for index, one in enumerate(updates):
        fold(total, [one], (index,))
    found = result(kept_of(tmp_path_factory.mktemp("kept"), *updates), old, "trimmed", 0)
    torch.testing.assert_close(found, mean(total.sums["w"], old["w"]))


# ---- Krum ----------------------------------------------------------------------------------------------------------


def test_krum_by_hand(tmp_path):
    """On a line at 0, 1, 3, 4 and 90, f = 1: each looks at its 2 nearest. Sums of squares: 10, 5, 5, 10 and far more; of equal ones the first."""
    kept = kept_of(tmp_path, *(part([v]) for v in (0.0, 1.0, 3.0, 4.0, 90.0)))
    old = {"w": torch.tensor([7.0])}
    assert result(kept, old, "krum", 1).tolist() == [1.0]
    assert result(kept, old, "multikrum", 1).tolist() == [2.0]


def test_krum_looks_at_whole_updates(tmp_path):
    """The third is in the middle of each tensor, and yet nearest to nobody over both."""
    pairs = [(0.0, 0.0), (0.1, 0.1), (0.2, 0.0), (0.1, 9.0), (9.0, 0.1)]
    kept = kept_of(tmp_path, *([part([a]), part([b], home="b")] for a, b in pairs))
    old = {"w": torch.tensor([0.0]), "b": torch.tensor([0.0])}
    assert result(kept, old, "krum", 1, "b").tolist() == [pytest.approx(0.1)]
    assert result(kept, old, "krum", 1).tolist() == [pytest.approx(0.1)]


def test_krum_compares_equal_submodels_alone_and_leaves_small_groups_out(tmp_path):
    """Five hold the core, of whom Krum chooses 2.0; the two that hold all are too few to outvote one."""
    kept = kept_of(tmp_path, *(corner(v) for v in (1.0, 2.0, 2.0, 3.0, 900.0)), whole(5.0, 5.0, 5.0, 5.0), whole(5.0, 5.0, 5.0, 5.0))
    old = {"w": torch.full((2, 2), 0.5)}
    assert result(kept, old, "krum", 1).tolist() == [[2.0, 0.5], [0.5, 0.5]]
    assert len(combine(kept, old, "krum", 1).seen) == 7


def test_what_two_groups_choose_is_averaged_by_their_devices_where_they_overlap(tmp_path):
    """Three quarters of 2 and a quarter of 6."""
    kept = kept_of(tmp_path, *(corner(2.0) for _ in range(9)), *(whole(6.0, 5.0, 6.0, 7.0) for _ in range(3)))
    assert result(kept, OLD, "krum", 0).tolist() == [[3.0, 5.0], [6.0, 7.0]]


def test_krum_is_that_of_a_plain_loop():
    rng = np.random.default_rng(0)
    points, f = rng.standard_normal((9, 4)), 2
    squares = ((points[:, None] - points[None]) ** 2).sum(-1)
    scores = [sum(sorted(squares[i][j] for j in range(9) if j != i)[: 9 - f - 2]) for i in range(9)]
    assert nearest(squares, f, 3) == sorted(np.argsort(scores)[:3].tolist())


def test_a_first_round_is_shortened_to_the_median_of_its_own_lengths(tmp_path):
    """Lengths 1, 2 and 900: the last becomes 2 long."""
    kept = kept_of(tmp_path, part([1.0, 0.0]), part([0.0, 2.0]), part([900.0, 0.0]))
    assert result(kept, {"w": torch.zeros(2)}, "clip", 1).tolist() == [1.0, pytest.approx(2 / 3)]


# ---- liars ---------------------------------------------------------------------------------------------------------

NET = network("preresnet", (1, 8, 8), 10)
LIES = {"large": lambda old, new: old + 100 * (new - old), "backwards": lambda old, new: old - 5 * (new - old), "noise": lambda old, new: old + 50.0}


@pytest.mark.parametrize("lie", LIES)
@pytest.mark.parametrize("rule", ["clip", "trimmed", "median", "krum", "multikrum"])
def test_two_liars_of_sixteen_do_not_move_nested_submodels_away_from_the_honest_mean(tmp_path, rule, lie):
    """Two widths, two devices of the smaller one lie, one of them of its examples too: the mean follows them, every rule stays with the others."""
    fedavg = method("fedavg")
    given = configure(fedavg, {"widths": [0.5, 1.0], "weighting": "uniform", "norm": "static"})
    menu = fedavg.menu(NET, given)
    state = fedavg.start(initial(NET, 0), menu, given)
    rng = torch.Generator().manual_seed(0)
    common = {name: 0.1 * torch.randn(value.shape, generator=rng) for name, value in state.tensors.items()}
    all_, honest = Total(), Total()
    kept = Kept(tmp_path)
    for index in range(16):
        submodel = menu[index % 2]
        plan = fedavg.place(state, submodel)
        sent = fedavg.dispatch(state, plan)
        steps = fedavg.dispatch(type(state)(0, common, given), plan)
        new = {name: value + steps[name] + 0.02 * torch.randn(value.shape, generator=rng) for name, value in sent.items()}
        if index in (0, 4):
            new = {name: LIES[lie](sent[name], value) for name, value in new.items()}
        else:
            made = Update("r", 1, 1, f"a{index}", "train", submodel, "0", 5, 1, new)
            fold(honest, fedavg.parts(state, plan, made), (index,))
        made = Update("r", 1, 1, f"a{index}", "train", submodel, "0", 2**39 if index == 0 else 5, 1, new)
        kept.fold(fedavg.parts(state, plan, made), (f"a{index}", 1))
        fold(all_, fedavg.parts(state, plan, made), (index,))

    def off(total):
        after = fedavg.finish(state, total, np.random.default_rng(0)).tensors
        wanted = fedavg.finish(state, honest, np.random.default_rng(0)).tensors
        return float(
            torch.cat([(after[name] - wanted[name]).flatten() for name in after]).norm() / torch.cat([v.flatten() for v in common.values()]).norm()
        )

    assert off(all_) > 0.3
    assert off(combine(kept, state.tensors, rule, 2)) < 0.2


@pytest.mark.parametrize("name", [name for name in METHODS if "robust" in method(name).allows])
def test_every_method_that_stands_robust_rules_finishes_what_they_give(tmp_path, name):
    """Five devices with the largest submodel agree: every rule gives what they sent, and a home of a group is written in its own dtype."""
    chosen = method(name)
    net = network("resnet", (1, 16, 16), 3) if name == "scalefl" else NET
    given = configure(chosen, {}, rounds=10)
    menu = chosen.menu(net, given)
    state = chosen.start(initial(net, 0, chosen.features), menu, given)
    state = type(state)(0, state.tensors, state.settings, {menu[-1]: 5}, {})
    plan = chosen.place(state, menu[-1])
    rng = torch.Generator().manual_seed(0)
    new = {name: value + 0.01 * torch.rand(value.shape, generator=rng) for name, value in chosen.dispatch(state, plan).items()}
    for rule in ("clip", "krum", "trimmed"):
        kept = Kept(tmp_path / rule)
        plain = Total()
        for index in range(5):
            made = Update("r", 1, 1, f"a{index}", "train", menu[-1], "0", 5, 1, new, {"labels": [0, 1]})
            kept.fold(chosen.parts(state, plan, made), (f"a{index}", 1))
            fold(plain, chosen.parts(state, plan, made), (index,))
        total = combine(kept, state.tensors, rule, 1)
        found = chosen.finish(grounded(state, total.sums), total, np.random.default_rng(0)).tensors
        wanted = chosen.finish(state, plain, np.random.default_rng(0)).tensors
        assert found.keys() == wanted.keys()
        for home, value in wanted.items():
            assert found[home].dtype == value.dtype, home
            torch.testing.assert_close(found[home], value, rtol=1e-4, atol=1e-5)


MEASURE = """
import resource, sys, tempfile
from pathlib import Path
import torch
from federated.kept import Kept
from federated.method import Part
from federated.robust import combine

torch.set_num_threads(1)
rule, rows = sys.argv[1], 2048
old = {"w": torch.zeros(rows, 1024)}
combine_small = Kept(Path(tempfile.mkdtemp(dir=sys.argv[2])))
for i in range(9):
    combine_small.fold([Part("w", ((0, 9), (0, 9)), (rows, 1024), torch.ones(9, 9))], (i,))
combine(combine_small, old, rule, 3)
kept = Kept(Path(tempfile.mkdtemp(dir=sys.argv[2])))
for i in range(40):
    wide = 1024 if i % 2 else 512
    kept.fold([Part("w", ((0, rows), (0, wide)), (rows, 1024), torch.full((rows, wide), float(i)))], (i,))
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
total = combine(kept, old, rule, 3)
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before, total.sums["w"].value.nbytes // 1024)
"""


@pytest.mark.parametrize("rule", ["trimmed", "multikrum"])
def test_memory_holds_the_result_and_not_the_updates(tmp_path, rule):
    """40 updates of 4 and 8 MB, 240 in all: beyond the total there is room for one update and a few pieces."""
    ran = subprocess.run(
        [sys.executable, "-c", MEASURE, rule, str(tmp_path)], capture_output=True, text=True, check=True, cwd=Path(__file__).parents[2]
    )
    grown, total = map(int, ran.stdout.split())
    assert grown < total + 40 * 1024, f"{grown} kB for a total of {total} kB"


def test_a_device_whose_late_update_came_into_the_same_round_counts_once(tmp_path):
    """One liar of four devices, twice: beside 1, 2 and 3 its two 900s would be more than a trimmed mean of f = 1 outlives. Its last one counts."""
    kept = Kept(tmp_path)
    for name, round, value in (("liar", 1, 900.0), ("a", 2, 1.0), ("b", 2, 2.0), ("c", 2, 3.0), ("liar", 2, 900.0)):
        kept.fold([whole(value, value, value, value)], (name, round))
    keys = list(kept.seen)
    total = combine(kept, OLD, "trimmed", 1)
    assert mean(total.sums["w"], OLD["w"]).tolist() == [[2.5, 2.5], [2.5, 2.5]]
    assert list(total.seen) == list(kept.seen) == keys


def test_a_device_cannot_outvote_its_group_under_krum_by_answering_twice(tmp_path):
    """Five honest ones far from each other; two equal lies of one device would be each other's nearest."""
    kept = Kept(tmp_path)
    for name, round, value in (("liar", 1, 100.0), *((f"a{i}", 2, 10.0 * i) for i in range(4)), ("liar", 2, 100.0)):
        kept.fold([corner(value)], (name, round))
    kept.newest()
    assert [key[0] for key in kept.counting] == ["a0", "a1", "a2", "a3", "liar"]


def test_of_two_first_updates_a_lie_is_as_short_as_the_other(tmp_path):
    kept = kept_of(tmp_path, part([1.0, 0.0]), part([0.0, 1e6]))
    assert result(kept, {"w": torch.zeros(2)}, "clip", 1).tolist() == pytest.approx([0.5, 0.5])
