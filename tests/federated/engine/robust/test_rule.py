"""Robust rules in whole methods: against malicious updates, and with every method that supports
them.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from federated.engine.aggregate import Total, fold
from federated.engine.robust.catalogue import RULES
from federated.engine.robust.rule import combine
from federated.engine.update_norms import add_missing_homes
from federated.engine.update_part_files import PartStore
from federated.errors import ConfigError
from federated.method import configure
from federated.methods.catalogue import METHODS, find_method
from federated.task import Update
from models.named_network import network
from models.submodel_building import initial

NET = network("mlp-small", (1, 8, 8), 10)
# the first that can do what a method asks of a network
NETS = (NET, network("resnet-small", (1, 8, 8), 10), network("resnet-tiny", (1, 16, 16), 3))
# one of each kind; test_catalogue checks every rule
KINDS = {rule.compares: rule for rule in RULES.values()}
LIES = {
    "large": lambda old, new: old + 100 * (new - old),
    "backwards": lambda old, new: old - 5 * (new - old),
    "noise": lambda old, new: old + 50.0,
}


@pytest.mark.parametrize("lie", LIES)
@pytest.mark.parametrize("rule", RULES)
def test_two_liars_of_sixteen_do_not_move_nested_submodels_away_from_the_honest_mean(
    tmp_path, rule, lie
):
    """Two widths, two devices of the smaller one lie, one of them of its examples too: the mean
    follows them, every rule stays with the others.
    """
    fedavg = find_method("fedavg")
    given = configure(fedavg, {"widths": [0.5, 1.0], "weighting": "uniform", "norm": "static"})
    menu = fedavg.menu(NET, given)
    state = fedavg.start(initial(NET, 0), menu, given)
    rng = torch.Generator().manual_seed(0)
    common = {
        name: 0.1 * torch.randn(value.shape, generator=rng) for name, value in state.tensors.items()
    }
    all_, honest = Total(), Total()
    kept = PartStore(tmp_path)
    for index in range(16):
        submodel = menu[index % 2]
        plan = fedavg.place(state, submodel)
        sent = fedavg.dispatch(state, plan)
        steps = fedavg.dispatch(type(state)(0, common, given), plan)
        new = {
            name: value + steps[name] + 0.02 * torch.randn(value.shape, generator=rng)
            for name, value in sent.items()
        }
        if index in (0, 4):
            new = {name: LIES[lie](sent[name], value) for name, value in new.items()}
        else:
            made = Update("r", 1, 1, f"a{index}", "train", submodel, "0", 5, 1, new)
            fold(honest, fedavg.parts(state, plan, made), (index,))
        made = Update(
            "r", 1, 1, f"a{index}", "train", submodel, "0", 2**39 if index == 0 else 5, 1, new
        )
        kept.fold(fedavg.parts(state, plan, made), (f"a{index}", 1))
        fold(all_, fedavg.parts(state, plan, made), (index,))

    wanted = fedavg.finish(state, honest, np.random.default_rng(0)).tensors

    def off(total):
        after = fedavg.finish(state, total, np.random.default_rng(0)).tensors
        return float(
            torch.cat([(after[name] - wanted[name]).flatten() for name in after]).norm()
            / torch.cat([v.flatten() for v in common.values()]).norm()
        )

    assert off(all_) > 0.3
    assert off(combine(RULES[rule], kept, state.tensors, 2)) < 0.2


def find_menu(chosen, given):
    for net in NETS:
        try:
            return net, chosen.menu(net, given)
        except ConfigError:
            continue
    raise AssertionError(f"{chosen.name} serves no network of this test")


@pytest.mark.parametrize("name", [name for name in METHODS if "robust" in find_method(name).allows])
def test_every_method_that_supports_robust_rules_finishes_their_result(tmp_path, name):
    """Five devices with the largest submodel agree: each kind of rule gives what they sent, and a
    home of a group is written in its own dtype.
    """
    chosen = find_method(name)
    given = configure(chosen, {}, rounds=10)
    net, menu = find_menu(chosen, given)
    state = chosen.start(initial(net, 0, chosen.features), menu, given)
    state = replace(state, fleet={menu[-1]: 5})
    plan = chosen.place(state, menu[-1])
    rng = torch.Generator().manual_seed(0)
    new = {
        name: value + 0.01 * torch.rand(value.shape, generator=rng)
        for name, value in chosen.dispatch(state, plan).items()
    }
    for rule in KINDS.values():
        kept = PartStore(tmp_path / rule.name)
        plain = Total()
        for index in range(5):
            made = Update(
                "r", 1, 1, f"a{index}", "train", menu[-1], "0", 5, 1, new, {"labels": [0, 1]}
            )
            kept.fold(chosen.parts(state, plan, made), (f"a{index}", 1))
            fold(plain, chosen.parts(state, plan, made), (index,))
        total = combine(rule, kept, state.tensors, 1)
        found = chosen.finish(
            add_missing_homes(state, total.sums), total, np.random.default_rng(0)
        ).tensors
        wanted = chosen.finish(state, plain, np.random.default_rng(0)).tensors
        assert found.keys() == wanted.keys()
        for home, value in wanted.items():
            assert found[home].dtype == value.dtype, home
            torch.testing.assert_close(found[home], value, rtol=1e-4, atol=1e-5)
