"""What holds for a method whatever the updates are: identities, order, coverage. Each method lists those that hold for it."""

from __future__ import annotations

from functools import cache

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from federated.aggregate import Total, fold, merge
from federated.method import configure
from federated.methods.catalogue import METHODS, method
from federated.task import Update
from models.families import full, initial, menu, network
from models.slicing import corners, extract

NET = network("preresnet", (1, 4, 4), 3)
MENU = menu(NET, (0.2, 0.5, 1), (2, 3, 4))
EVERY = {"labels": [0, 1, 2]}
COMMON = settings(max_examples=12, deadline=None)


@cache
def start(name, **given):
    chosen = method(name)
    return chosen, chosen.start(initial(NET, 0), MENU, configure(chosen, given))


def learned(chosen, state, submodel, seed):
    """What a device might send: what it received, moved by noise; variances stay positive."""
    generator = torch.Generator().manual_seed(seed)
    received = chosen.dispatch(state, chosen.place(state, submodel))
    return {name: (value + 0.1 * torch.randn(value.shape, generator=generator)).abs() + 0.01 for name, value in received.items()}


def update(submodel, tensors, agent="a", samples=1, notes=EVERY):
    return Update("r", 0, 0, agent, "train", submodel, "0", samples, 1, tensors, notes)


def total_of(chosen, state, updates):
    total = Total()
    for one in updates:
        assert fold(total, chosen.parts(state, chosen.place(state, one.submodel), one), (one.agent,))
    return total


def combined(chosen, state, updates):
    return chosen.finish(state, total_of(chosen, state, updates), np.random.default_rng(0)).tensors


fleets = st.lists(st.tuples(st.sampled_from(MENU), st.integers(1, 50), st.integers(0, 2**20)), min_size=1, max_size=4)


def updates_of(chosen, state, fleet):
    return [update(s, learned(chosen, state, s, seed), f"a{i}", n) for i, (s, n, seed) in enumerate(fleet)]


@pytest.mark.parametrize("name", METHODS)
@COMMON
@given(fleet=fleets, order=st.randoms(use_true_random=False))
def test_the_order_of_agents_changes_nothing_but_rounding(name, fleet, order):
    chosen, state = start(name)
    updates = updates_of(chosen, state, fleet)
    first = combined(chosen, state, updates)
    order.shuffle(updates)
    second = combined(chosen, state, updates)
    for home, value in first.items():
        torch.testing.assert_close(second[home], value, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("name", METHODS)
@COMMON
@given(fleet=fleets, cut=st.integers(0, 4))
def test_merged_totals_equal_one(name, fleet, cut):
    chosen, state = start(name)
    updates = updates_of(chosen, state, fleet)
    halves = merge(total_of(chosen, state, updates[:cut]), total_of(chosen, state, updates[cut:]))
    merged, straight = chosen.finish(state, halves, np.random.default_rng(0)).tensors, combined(chosen, state, updates)
    for home, value in straight.items():
        torch.testing.assert_close(merged[home], value, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("name", METHODS)
@COMMON
@given(fleet=fleets)
def test_a_duplicate_changes_no_bit(name, fleet):
    chosen, state = start(name)
    updates = updates_of(chosen, state, fleet)
    once, twice = total_of(chosen, state, updates), total_of(chosen, state, updates)
    again = updates[0]
    assert not fold(twice, chosen.parts(state, chosen.place(state, again.submodel), again), (again.agent,))
    first, second = (chosen.finish(state, total, np.random.default_rng(0)).tensors for total in (once, twice))
    assert all(torch.equal(first[home], second[home]) for home in first)


@pytest.mark.parametrize("name", ["fedavg", "heterofl"])
@COMMON
@given(fleet=fleets)
def test_the_uncovered_stays_bit_for_bit(name, fleet):
    """Outside the union of the corners nothing moves (FedFA covers blocks by grafting: see its own test)."""
    chosen, state = start(name)
    after = combined(chosen, state, updates_of(chosen, state, fleet))
    covered = {home: torch.zeros(value.shape, dtype=torch.bool) for home, value in state.tensors.items()}
    for submodel, _, _ in fleet:
        for row in chosen.place(state, submodel).rows:
            covered[row.home][tuple(slice(a, b) for a, b in row.there)] = True
    for home, value in state.tensors.items():
        assert torch.equal(after[home][~covered[home]], value[~covered[home]]), home
        assert not torch.equal(after[home], value) or not bool(covered[home].any()), "what is covered moved"


@pytest.mark.parametrize("name", ["fedfa", "fedfa-w", "fedfa-d"])
@COMMON
@given(fleet=fleets)
def test_fedfa_leaves_the_channels_that_nobody_has(name, fleet):
    """Beyond the widest device's channels nothing moves, in any block."""
    chosen, state = start(name)
    after = combined(chosen, state, updates_of(chosen, state, fleet))
    widest = max(s.width for s, _, _ in fleet)
    (reach,) = menu(NET, (widest,), (4,))
    for row in corners({home: tuple(value.shape) for home, value in state.tensors.items()}, reach).rows:
        outside = torch.ones(row.shape, dtype=torch.bool)
        outside[tuple(slice(a, b) for a, b in row.there)] = False
        assert torch.equal(after[row.home][outside], state.tensors[row.home][outside])


@pytest.mark.parametrize("name", METHODS)
@pytest.mark.parametrize("submodel", MENU, ids=lambda s: s.name)
def test_one_agent_alone_decides_its_coordinates(name, submodel):
    """FedFA as well: a single norm is its own mean."""
    chosen, state = start(name)
    sent = learned(chosen, state, submodel, 3)
    after = combined(chosen, state, [update(submodel, sent, samples=17)])
    for local, value in extract(after, chosen.place(state, submodel)).items():
        torch.testing.assert_close(value, sent[local], rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize("name", ["fedavg", "heterofl"])
@COMMON
@given(fleet=fleets)
def test_without_training_nothing_changes(name, fleet):
    """Extract, then fold what was received: the identity, to rounding."""
    chosen, state = start(name)
    updates = [update(s, chosen.dispatch(state, chosen.place(state, s)), f"a{i}", n) for i, (s, n, _) in enumerate(fleet)]
    for home, value in combined(chosen, state, updates).items():
        torch.testing.assert_close(value, state.tensors[home], rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize("name", ["fedfa", "fedfa-w", "fedfa-d"])
def test_without_training_fedfa_keeps_the_whole_network(name):
    """Agents with the whole network have equal norms and nothing to graft."""
    chosen, state = start(name)
    updates = [update(full(NET), chosen.dispatch(state, chosen.place(state, full(NET))), f"a{i}", n) for i, n in enumerate((3, 8))]
    for home, value in combined(chosen, state, updates).items():
        torch.testing.assert_close(value, state.tensors[home], rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize("name", METHODS)
@COMMON
@given(seeds=st.lists(st.tuples(st.integers(1, 50), st.integers(0, 2**20)), min_size=1, max_size=3))
def test_whole_networks_combine_as_in_fedavg(name, seeds):
    """Full width and depth, every class, scaling off: each method is FedAvg."""
    extra = {"scaling": "none"} if name.startswith("fedfa") else {}
    chosen, state = start(name, weighting="samples", norm="static", **extra)
    plain, base = start("fedavg", norm="static")
    updates = updates_of(plain, base, [(full(NET), n, seed) for n, seed in seeds])
    expected = {h: sum(u.samples * u.tensors[h].double() for u in updates) / sum(u.samples for u in updates) for h in base.tensors}
    for found in (combined(chosen, state, updates), combined(plain, base, updates)):
        for home, value in expected.items():
            torch.testing.assert_close(found[home].double(), value, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("name", METHODS)
def test_an_empty_round_only_counts(name):
    chosen, state = start(name)
    after = chosen.finish(state, Total(), np.random.default_rng(0))
    assert after.round == state.round + 1
    assert after.tensors.keys() == state.tensors.keys()
    assert all(torch.equal(after.tensors[home], value) for home, value in state.tensors.items())


@pytest.mark.parametrize("name", METHODS)
def test_the_state_that_went_in_stays_as_it_was(name):
    chosen, state = start(name)
    before = {home: value.clone() for home, value in state.tensors.items()}
    combined(chosen, state, [update(MENU[0], learned(chosen, state, MENU[0], 1))])
    assert all(torch.equal(state.tensors[home], value) for home, value in before.items())
