"""Laws of each method for arbitrary updates, on two families, and a counterexample for each
exception.

TRY_METHOD=module:function tries a method of your own instead of the built-in ones.
"""

from __future__ import annotations

from dataclasses import replace
from functools import cache, partial

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from federated.engine.aggregate import Total, fold
from federated.errors import ConfigError
from federated.method import LAWS, configure
from federated.methods.catalogue import METHODS, find_method
from federated.task import Card, Profile, Update
from federated.training.state_between_rounds import PREFIX
from models.menu import menu
from models.named_network import network
from models.slicing import as_slices, corners, is_statistic
from models.submodel_building import initial
from tests.support.member_names import list_tried

TRIED = list_tried("method", METHODS)
NETS = {
    "resnet": partial(network, "resnet-small", (1, 4, 4), 3),
    "mlp": partial(network, "mlp", (6,), 3),
    "preresnet": partial(network, "preresnet", (1, 4, 4), 3),
    "vit": partial(network, "vit-micro", (1, 16, 16), 3),
    "lenet": partial(network, "lenet", (1, 16, 16), 3),
}
# A hypernetwork computes one tensor after another, so it gets networks of few tensors. FedFA grafts
# blocks, so it gets networks of several depths.
SUITED = {
    "recipfl": ("lenet", "mlp"),
    "fedfa": ("preresnet", "mlp"),
    "fedfa-d": ("preresnet", "mlp"),
}
COMMON = settings(max_examples=3, deadline=None)
# under which whole networks combine as in FedAvg
SAME_WEIGHTS = {"norm": "static", "weighting": "samples"}
# Yogi's mean square jumps where it equals the square of the change, so the last bit of a sum may
# decide. It begins here at a value that no change of these tests reaches.
NO_JUMP = {"fedyogi": {"tau": 0.99}}


@cache
def families(name):
    """Return the first two families that a method serves, the one with more tensors first."""
    able = []
    for family in SUITED.get(name, NETS):
        try:
            find_method(name).menu(NETS[family](), configure(find_method(name), {}))
        except ConfigError:
            continue
        able.append(family)
    return sorted(able[:2], key=lambda family: family in ("lenet", "mlp"))


TRACKING = [
    name
    for name in TRIED
    if "norm" in (known := find_method(name).settings) and "tracked" in known["norm"].choices
]
FEDFA = [name for name in ("fedfa", "fedfa-w", "fedfa-d") if name in TRIED]
EACH = [(name, index) for name in TRIED for index in range(2)]
each = pytest.mark.parametrize(
    ("name", "index"), EACH, ids=[f"{name}-{index}" for name, index in EACH]
)


class Trial:
    """A method on a family after one round in which everything moved, and the updates that its
    agents might send.
    """

    def __init__(self, name, index, **changed):
        self.method, net = find_method(name), NETS[families(name)[index]]()
        chosen = NO_JUMP.get(name, {}) | {
            key: value for key, value in changed.items() if key in self.method.settings
        }
        given = configure(self.method, chosen, rounds=10)
        self.menu = self.method.menu(net, given)
        if len(self.menu) == 1 and "widths" in self.method.settings:
            # with one size each update covers everything, and the laws say little
            given = configure(self.method, chosen | {"widths": (0.5, 1.0)}, rounds=10)
            self.menu = self.method.menu(net, given)
        self.state = self.method.start(initial(net, 0, self.method.features), self.menu, given)
        self.state = self.fleet_of([(s, 3, i) for i, s in enumerate(self.menu)], self.state)
        self.state = self.combined(self.updates([(s, 3, i) for i, s in enumerate(self.menu)]))

    def fleet_of(self, fleet, state):
        counts = {s: sum(other == s for other, *_ in fleet) for s, *_ in fleet}
        return replace(state, fleet=counts, agents={f"a{i}": {} for i in range(len(fleet))})

    def submodel(self, submodel, agent):
        card = Card("d", submodel.network.inputs, "float32", 3, 9, 0, (0.0,), (1.0,))
        return self.method.assign(
            self.state,
            Profile(agent, "h", "s", 1.0, 1, 1.0, 1, "torch", card, ()),
            [submodel],
            np.random.default_rng(0),
        )

    def update(self, submodel, tensors, agent="a0", samples=1):
        return Update(
            "r",
            self.state.round + 1,
            0,
            agent,
            "train",
            submodel,
            "0",
            samples,
            3 + int(agent[1:]),
            tensors,
            {"labels": [0, 1, 2], "loss": 1.0 + int(agent[1:])},
        )

    def received(self, submodel):
        return self.method.dispatch(self.state, self.method.place(self.state, submodel))

    def learned(self, submodel, seed):
        """Return an update: the received weights moved by noise; variances stay positive."""
        generator = torch.Generator().manual_seed(seed)
        return {
            name: (v + 0.1 * torch.randn(v.shape, generator=generator)).abs() + 0.01
            for name, v in self.received(submodel).items()
        }

    def untrained(self, submodel):
        """Return the update of a device that took no step: variates do not change."""
        return {
            name: torch.zeros_like(v) if name.startswith(PREFIX) else v
            for name, v in self.received(submodel).items()
        }

    def updates(self, fleet, make=None):
        self.state = self.fleet_of(fleet, self.state)
        chosen = [(self.submodel(s, f"a{i}"), n, seed) for i, (s, n, seed) in enumerate(fleet)]
        return [
            self.update(s, make(s) if make else self.learned(s, seed), f"a{i}", n)
            for i, (s, n, seed) in enumerate(chosen)
        ]

    def total(self, updates):
        total = Total()
        for one in updates:
            assert fold(
                total,
                self.method.parts(self.state, self.method.place(self.state, one.submodel), one),
                (one.agent,),
            )
        return total

    def finished(self, total):
        return self.method.finish(self.state, total, np.random.default_rng(0))

    def combined(self, updates):
        return self.finished(self.total(updates))


trial = cache(Trial)


def fleets(trial):
    """Return a strategy for some agents: submodel, examples, seed of their update."""
    one = st.tuples(st.sampled_from(trial.menu), st.integers(1, 50), st.integers(0, 2**20))
    return st.lists(one, min_size=1, max_size=4)


def mixed(trial, *, whole=True):
    """Return agents with a submodel in the middle, the smallest, and, if wanted, the largest."""
    middle = trial.menu[(len(trial.menu) - 1) // 2]
    fleet = [(middle, 8, 1), (trial.menu[0], 1, 0), (trial.menu[-1], 15, 2)]
    return fleet if whole else fleet[:-1]


def on_fleets(trial, index, check, *, whole=True):
    """Check one fleet of unequal agents on the first family, whose many tensors take long, and
    drawn fleets on the second, unless a hypernetwork computes its tensors.
    """
    if index == 0 or trial.method.name == "recipfl":
        check(mixed(trial, whole=whole))
    else:
        COMMON(given(fleet=fleets(trial))(lambda fleet: check(fleet)))()


def held(trial, after, submodel):
    """Return a submodel's own tensors as a device would receive them, from the places of the last
    round.
    """
    plan = trial.method.place(trial.state, submodel)
    return {
        name: value for name, value in trial.method.dispatch(after, plan).items() if "/" not in name
    }


# ---- the laws ------------------------------------------------------------------------------------


def order(trial, fleet):
    updates = trial.updates(fleet)
    first, second = trial.combined(updates).tensors, trial.combined(updates[::-1]).tensors
    assert first.keys() == second.keys()
    for home, value in first.items():
        torch.testing.assert_close(second[home], value, rtol=1e-5, atol=1e-6)


def uncovered(trial, fleet):
    """Check that nothing changes outside the agents' submodels, and everything inside."""
    updates = trial.updates(fleet)
    after = trial.combined(updates).tensors
    covered = {
        home: torch.zeros(value.shape, dtype=torch.bool)
        for home, value in trial.state.tensors.items()
        if "/" not in home
    }
    for one in updates:
        for row in trial.method.place(trial.state, one.submodel).rows:
            if row.home in covered:
                covered[row.home][as_slices(row.there)] = True
    for home, where in covered.items():
        value = trial.state.tensors[home]
        assert torch.equal(after[home][~where], value[~where]), home
        assert not torch.equal(after[home], value) or not bool(where.any()), "what is covered moved"


def alone(trial, fleet):
    submodel = trial.submodel(fleet[0][0], "a0")
    trial.state = trial.fleet_of(fleet[:1], trial.state)
    sent = trial.learned(submodel, fleet[0][2])
    found = held(trial, trial.combined([trial.update(submodel, sent, samples=17)]), submodel)
    assert found
    for local, value in found.items():
        torch.testing.assert_close(value, sent[local], rtol=1e-5, atol=1e-6)


def identity(trial, fleet):
    """Extract, then fold what was received: the identity, to rounding."""
    after = trial.combined(trial.updates(fleet, trial.untrained)).tensors
    for home, value in trial.state.tensors.items():
        torch.testing.assert_close(after[home], value, rtol=1e-5, atol=1e-6)


def fedavg(trial, fleet):
    """Check that agents with the largest submodel give the mean by examples."""
    updates = trial.updates([(trial.menu[-1], n, seed) for _, n, seed in fleet])
    after, every = trial.combined(updates), sum(u.samples for u in updates)
    for local, value in held(trial, after, updates[0].submodel).items():
        expected = sum(u.samples * u.tensors[local].double() for u in updates) / every
        torch.testing.assert_close(value.double(), expected, rtol=1e-5, atol=1e-6)


CHECKS = {
    "alone": alone,
    "fedavg": fedavg,
    "identity": identity,
    "order": order,
    "uncovered": uncovered,
}


def under(name, index, law):
    """Return the trial for a law."""
    return trial(name, index, **(SAME_WEIGHTS if law == "fedavg" else {}))


KEPT = [
    (name, index, law)
    for name, index in EACH
    for law in LAWS
    if law not in find_method(name).breaks
]
BROKEN = [(name, law) for name in TRIED for law in find_method(name).breaks]


def test_there_is_a_check_of_every_law():
    assert CHECKS.keys() == LAWS.keys()
    assert all(
        law in LAWS and reason for name in TRIED for law, reason in find_method(name).breaks.items()
    )


@pytest.mark.parametrize("name", TRIED)
def test_every_method_serves_two_families(name):
    assert len(families(name)) == 2


@pytest.mark.parametrize(
    ("name", "index", "law"), KEPT, ids=[f"{name}-{index}-{law}" for name, index, law in KEPT]
)
def test_the_law_holds(name, index, law):
    chosen = under(name, index, law)
    try:
        on_fleets(chosen, index, partial(CHECKS[law], chosen), whole=law != "uncovered")
    except AssertionError as error:
        error.add_note(
            f"method {name} does not obey the law '{law}' ({LAWS[law]}): correct it, or name the "
            "law with a reason in the method's `breaks`"
        )
        raise


@pytest.mark.parametrize(("name", "law"), BROKEN, ids=[f"{name}-{law}" for name, law in BROKEN])
def test_the_exception_is_one(name, law):
    """Agents of all sizes, or two of the largest, with unequal data: enough to see the law fail."""
    chosen = under(name, 0, law)
    mixed = [(s, 1 + 7 * i, i) for i, s in enumerate(chosen.menu)]
    assert any(
        fails(law, chosen, fleet)
        for fleet in (mixed, [mixed[0], mixed[0]], [mixed[-1], mixed[-1]], [mixed[-1]])
    )


def fails(law, chosen, fleet):
    try:
        CHECKS[law](chosen, fleet)
    except AssertionError:
        return True
    return False


# ---- what no method may break --------------------------------------------------------------------


@each
def test_a_duplicate_changes_no_bit(name, index):
    chosen = trial(name, index)
    updates = chosen.updates([(s, 1 + i, i) for i, s in enumerate(chosen.menu[-2:])])
    once, twice = chosen.total(updates), chosen.total(updates)
    again = updates[0]
    assert not fold(
        twice,
        chosen.method.parts(chosen.state, chosen.method.place(chosen.state, again.submodel), again),
        (again.agent,),
    )
    first, second = chosen.finished(once).tensors, chosen.finished(twice).tensors
    assert all(torch.equal(first[home], second[home]) for home in first)


@each
def test_an_empty_round_only_counts(name, index):
    chosen = trial(name, index)
    after = chosen.finished(Total())
    assert after.round == chosen.state.round + 1
    assert after.tensors.keys() == chosen.state.tensors.keys()
    assert all(
        torch.equal(after.tensors[home], value) for home, value in chosen.state.tensors.items()
    )


@pytest.mark.parametrize("name", TRACKING)
def test_equal_statistics_of_batch_norm_are_taken_as_they_are(name):
    """They are measurements, so a method takes their mean, without momentum or another step."""
    chosen = trial(name, 0, norm="tracked")
    if not any(map(is_statistic, chosen.state.tensors)):
        pytest.skip("its networks have no batch norm")

    def measure(submodel):
        return {
            local: torch.full_like(value, 5.0) if is_statistic(local) else value
            for local, value in chosen.learned(submodel, 0).items()
        }

    fleet = mixed(chosen)
    after = chosen.combined(chosen.updates(fleet, measure))
    for submodel, *_ in fleet:
        for local, value in held(chosen, after, submodel).items():
            if is_statistic(local):
                expected = torch.full_like(value, 5.0)
                torch.testing.assert_close(value, expected, msg=f"{local} is not the mean")


@each
def test_the_state_that_went_in_stays_as_it_was(name, index):
    chosen = trial(name, index)
    before = {home: value.clone() for home, value in chosen.state.tensors.items()}
    chosen.combined(chosen.updates([(s, 2, i) for i, s in enumerate(chosen.menu)]))
    assert all(torch.equal(chosen.state.tensors[home], value) for home, value in before.items())


@each
def test_devices_receive_the_tensors_that_they_send(name, index):
    """Names and shapes agree, and are finite: what the coordinator accepts is what it sent."""
    chosen = trial(name, index)
    for i, submodel in enumerate(chosen.menu):
        one = chosen.submodel(submodel, f"a{i}")
        received = chosen.received(one)
        rows = {
            row.local: max(stop for _, stop in row.here[:1]) if row.here else 0
            for row in chosen.method.place(chosen.state, one).rows
        }
        assert rows.keys() == received.keys()
        assert all(bool(value.isfinite().all()) for value in received.values())


@each
def test_error_feedback_is_allowed_only_for_weights_that_stay_the_same(name, index):
    """A submodel whose plan depends on the round has other weights in the next one."""
    chosen = trial(name, index)
    later = replace(chosen.state, round=chosen.state.round + 1)
    for submodel in chosen.menu:
        one = chosen.submodel(submodel, "a0")
        plans = [chosen.method.place(state, one).rows for state in (chosen.state, later)]
        if chosen.method.recipe(chosen.state, one).feedback:
            assert plans[0] == plans[1]
        else:
            assert plans[0] != plans[1], "and it is not forbidden without need"


# ---- FedFA, whose grafting covers missing channels -----------------------------------------------


@pytest.mark.parametrize("name", FEDFA)
def test_fedfa_does_not_change_channels_without_devices(name):
    """Beyond the widest device's channels nothing moves, in any block."""
    chosen = trial(name, 0)
    fleet = mixed(chosen, whole=False)
    after = chosen.combined(chosen.updates(fleet)).tensors
    (reach,) = menu(chosen.menu[0].network, (max(s.width for s, _, _ in fleet),), (4,))
    for row in corners(
        {home: tuple(value.shape) for home, value in chosen.state.tensors.items()}, reach
    ).rows:
        outside = torch.ones(row.shape, dtype=torch.bool)
        outside[as_slices(row.there)] = False
        assert torch.equal(after[row.home][outside], chosen.state.tensors[row.home][outside])


@pytest.mark.parametrize("name", FEDFA)
def test_without_training_fedfa_keeps_the_whole_network(name):
    """Agents with the whole network have equal norms and nothing to graft."""
    chosen = trial(name, 0)
    identity(chosen, [(chosen.menu[-1], 3, 0), (chosen.menu[-1], 8, 1)])


@pytest.mark.parametrize("name", FEDFA)
def test_fedfa_without_scaling_combines_whole_networks_as_fedavg(name):
    chosen = trial(name, 0, **SAME_WEIGHTS, scaling="none")
    fedavg(chosen, mixed(chosen))
