"""Clipping is exact, the noise has its specified deviation, and only covered coordinates
get noise.
"""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
import torch

from federated.engine.aggregate import Total, fold
from federated.engine.differential_privacy import add_noise, draw_normal, make_private
from federated.engine.update_contributions import Part
from federated.engine.update_norms import change_norm
from federated.errors import ConfigError
from federated.method import configure
from federated.methods.catalogue import METHODS, find_method
from federated.task import Update
from models.named_network import network
from models.submodel_building import initial

NET = network("mlp", (40,), 3)


def steady(seed: int = 0):
    """Return a source of repeating bytes; only tests may have one."""
    return np.random.default_rng(seed).bytes


def silent(count: int) -> bytes:
    """Return bytes for which the noise is exactly 0: the radius of the largest uniform number."""
    return b"\xff" * count


class Round:
    """A round of FedAvg with two widths, made private."""

    def __init__(self, name="fedavg", random=silent, clip=1.0, noise=1.0, **settings):
        self.plain = find_method(name)
        self.method = make_private(self.plain, noise, clip, random)
        given = configure(self.method, {"widths": [0.5, 1.0], **settings})
        self.menu = self.method.menu(NET, given)
        self.state = self.method.start(initial(NET, 0, self.method.features), self.menu, given)

    def update(self, submodel, change, agent="a", samples=5):
        sent = self.method.dispatch(self.state, self.method.place(self.state, submodel))
        new = {name: value + change for name, value in sent.items()}
        return Update("r", 1, 1, agent, "train", submodel, "0", samples, 1, new)

    def parts(self, update):
        return list(
            self.method.parts(self.state, self.method.place(self.state, update.submodel), update)
        )

    def finished(self, *updates):
        total = Total()
        for update in updates:
            fold(total, self.parts(update), (update.agent, 1))
        return self.method.finish(self.state, total, np.random.default_rng(0)).tensors


@pytest.mark.parametrize("change", [100.0, 1.0, -3.0])
def test_a_change_is_shortened_to_the_clip_over_all_tensors(change):
    played = Round(clip=0.5)
    parts = played.parts(played.update(played.menu[-1], change))
    assert change_norm(parts, played.state.tensors) == pytest.approx(0.5, abs=1e-12)
    moved = torch.cat([(part.value - played.state.tensors[part.home]).flatten() for part in parts])
    assert moved.numpy() == pytest.approx(
        np.full(len(moved), math.copysign(0.5 / len(moved) ** 0.5, change)), rel=1e-6
    )


def test_a_change_that_is_short_enough_stays():
    played = Round(clip=5.0)
    update = played.update(played.menu[0], 1e-3)
    for part in played.parts(update):
        assert part.value.dtype == torch.float64
        assert torch.equal(part.value.float(), update.tensors[part.home])


def test_claims_of_examples_weigh_nothing():
    played = Round(clip=100.0)
    small = played.menu[0]
    new = played.finished(
        played.update(small, 0.1, "a", samples=2**39), played.update(small, 0.3, "b", samples=1)
    )
    where = tuple(slice(0, n) for n in next(iter(played.update(small, 0).tensors.values())).shape)
    home = next(iter(new))
    torch.testing.assert_close(new[home][where], played.state.tensors[home][where] + 0.2)
    with pytest.raises(ConfigError, match="weighting"):
        configure(played.method, {"weighting": "samples"})


def test_without_noise_the_result_is_the_coverage_mean_of_clipped_changes():
    """The core moves by the mean of two steps, the ring by the large device's own: each step is 1 /
    sqrt(size) long.
    """
    played = Round(clip=1.0)
    small, large = played.menu
    new = played.finished(played.update(small, 9.0, "a"), played.update(large, 9.0, "b"))
    sizes = [
        sum(v.numel() for v in played.update(s, 0).tensors.values()) ** -0.5 for s in (small, large)
    ]
    for home, value in new.items():
        change = value - played.state.tensors[home]
        corner = tuple(slice(0, n) for n in played.update(small, 0).tensors[home].shape)
        torch.testing.assert_close(
            change[corner], torch.full_like(change[corner], sum(sizes) / 2), rtol=1e-4, atol=1e-6
        )
        change[corner] = sizes[1]
        torch.testing.assert_close(change, torch.full_like(change, sizes[1]), rtol=1e-4, atol=1e-6)


def test_noise_has_the_deviation_of_its_multiplier_on_the_sum_and_falls_on_what_is_covered():
    """noise 3, clip 0.5: 1.5 on the sum of two, 0.75 on their mean; nothing outside the corner that
    both hold.
    """
    played = Round(random=steady(), clip=0.5, noise=3.0)
    small = played.menu[0]
    new = played.finished(played.update(small, 0.0, "a"), played.update(small, 0.0, "b"))
    inside = []
    for home, value in new.items():
        change = value - played.state.tensors[home]
        corner = tuple(slice(0, n) for n in played.update(small, 0).tensors[home].shape)
        inside.append(change[corner].flatten().clone())
        change[corner] = 0
        assert not change.any()
    found = torch.cat(inside)
    assert len(found) > 1000
    assert float(found.std()) == pytest.approx(0.75, rel=4 / (2 * len(found)) ** 0.5)
    assert abs(float(found.mean())) < 4 * 0.75 / len(found) ** 0.5


def test_numbers_are_normal_and_independent():
    found = draw_normal(200_001, steady())
    assert len(found) == 200_001
    assert abs(found.mean()) < 4 / len(found) ** 0.5
    assert found.std() == pytest.approx(1, rel=4 / (2 * len(found)) ** 0.5)
    assert (np.abs(found) > 3).mean() == pytest.approx(0.0027, rel=0.2)
    half = len(found) // 2
    assert abs(np.corrcoef(found[:half], found[half : 2 * half])[0, 1]) < 4 / half**0.5
    assert np.isfinite(draw_normal(10, bytes)).all()


def test_noise_is_another_each_time():
    assert not np.array_equal(draw_normal(8), draw_normal(8))


def test_a_sum_stays_as_it_was_and_empty_rounds_tell_nothing():
    played = Round(random=steady())
    total = Total()
    fold(total, played.parts(played.update(played.menu[0], 0.1)), ("a", 1))
    before = {home: one.value.clone() for home, one in total.sums.items()}
    played.method.finish(played.state, total, np.random.default_rng(0))
    assert all(torch.equal(one.value, before[home]) for home, one in total.sums.items())
    assert played.finished().keys() == played.state.tensors.keys()
    assert all(
        torch.equal(value, played.state.tensors[home]) for home, value in played.finished().items()
    )


def test_rows_that_tell_of_classes_are_no_private_sum():
    total = Total()
    fold(total, [Part("w", ((0, 2),), (2,), torch.ones(2), torch.tensor([1.0, 0.0]))], ("a", 1))
    with pytest.raises(ValueError, match="classes"):
        add_noise(total.sums["w"], 1.0, steady())


def test_variates_are_part_of_the_change():
    """SCAFFOLD sends the change of its variate beside the weights; both together are as long as the
    clip.
    """
    played = Round("scaffold", clip=0.5)
    plan = played.method.place(played.state, played.menu[-1])
    sent = played.method.dispatch(played.state, plan)
    new = {
        name: torch.full_like(value, 2.0) if name.startswith("c/") else value + 1.0
        for name, value in sent.items()
    }
    parts = played.parts(Update("r", 1, 1, "a", "train", played.menu[-1], "0", 5, 1, new))
    assert change_norm(parts, played.state.tensors) == pytest.approx(0.5, abs=1e-12)
    assert any(part.home.startswith("c/") for part in parts)


@pytest.mark.parametrize(
    "name", [name for name in METHODS if "private" not in find_method(name).allows]
)
def test_a_method_without_support_for_differential_privacy_gives_the_reason(name):
    with pytest.raises(ConfigError, match=f"{name} does not support differential privacy: "):
        make_private(find_method(name), 1.0, 1.0)


@pytest.mark.parametrize(
    "name", [name for name in METHODS if "private" in find_method(name).allows]
)
def test_every_method_that_allows_it_makes_a_state_of_the_same_homes_and_types(name):
    chosen = make_private(find_method(name), 0.1, 1.0, steady())
    net = network("resnet" if name == "scalefl" else "preresnet", (1, 16, 16), 3)
    given = configure(chosen, {}, rounds=10)
    menu = chosen.menu(net, given)
    state = chosen.start(initial(net, 0, chosen.features), menu, given)
    state = replace(state, fleet={menu[-1]: 1})
    plan = chosen.place(state, menu[-1])
    total = Total()
    made = Update(
        "r",
        1,
        1,
        "a",
        "train",
        menu[-1],
        "0",
        5,
        1,
        dict(chosen.dispatch(state, plan)),
        {"labels": [0]},
    )
    fold(total, chosen.parts(state, plan, made), ("a", 1))
    after = chosen.finish(state, total, np.random.default_rng(0)).tensors
    assert {value.dtype for value in after.values()} == {torch.float32}
    assert all(value.isfinite().all() for value in after.values())
    assert any(
        not torch.equal(after[row.home], state.tensors.get(row.home, torch.empty(0)))
        for row in plan.rows
    )
