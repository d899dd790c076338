"""Drawing from seeds while other threads draw."""

from __future__ import annotations

import threading

import pytest
import torch

from models.families.catalogue import FAMILIES
from models.named_network import network
from models.random_state import isolate_random_state
from models.submodel_building import build, example, full, initial
from tests.support.smallest_networks import small


def test_initial_weights_depend_only_on_the_seed_while_another_thread_builds() -> None:
    made = network("mlp", (1, 8, 8), 10)
    expected, ended = initial(made, 7), threading.Event()

    def disturb() -> None:
        while not ended.is_set():
            build(full(made), seed=1)

    others = [threading.Thread(target=disturb) for _ in range(2)]
    for thread in others:
        thread.start()
    try:
        found = [initial(made, 7) for _ in range(300)]
    finally:
        ended.set()
        for thread in others:
            thread.join()
    assert all(torch.equal(one[name], expected[name]) for one in found for name in expected)


def test_the_state_outside_is_restored() -> None:
    torch.manual_seed(3)
    expected = torch.rand(4)
    torch.manual_seed(3)
    with isolate_random_state(5):
        torch.rand(9)
    assert torch.equal(torch.rand(4), expected)


@pytest.mark.parametrize("name", FAMILIES)
def test_a_family_that_draws_nothing_leaves_the_random_state(name: str) -> None:
    submodel = full(small(name))
    net, before = build(submodel).train(), torch.get_rng_state()
    net(example(submodel.network, 2))
    if not FAMILIES[name].draws:
        assert torch.equal(before, torch.get_rng_state())
