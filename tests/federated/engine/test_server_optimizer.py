"""The coordinator's optimiser: two steps of each rule on a vector of three, by hand."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from federated.engine.aggregate import Total, fold
from federated.engine.server_optimizer import ServerOptimizer, adamw, coverage_mask, step
from federated.engine.update_contributions import Part

OLD = torch.tensor([1.0, 2.0, 3.0])
HELD = torch.tensor([True, True, False])  # in the second round


def two_steps(
    optimizer: ServerOptimizer, first: list[float], second: list[float]
) -> tuple[Tensor, dict[str, Tensor]]:
    """Take two steps. All coordinates are held in the first round, two in the second; the third
    then claims a change, which must not count.
    """
    once, moments = step(optimizer, {}, "w", OLD, torch.tensor(first))
    return step(optimizer, moments, "w", once, torch.tensor([*second, 9.0]), HELD)


def test_sgd_with_momentum_adds_half_of_the_last_step() -> None:
    """m = (1, 0, -1), then (0.5 + 1, 0 + 2); each step is 2 m."""
    new, moments = two_steps(ServerOptimizer("sgd", 2.0, beta1=0.5), [1, 0, -1], [1, 2])
    assert new.tolist() == [1 + 2 + 3, 2 + 0 + 4, 3 - 2]
    assert {home: value.tolist() for home, value in moments.items()} == {
        "server/m/w": [1.5, 2.0, -1.0]
    }


def test_sgd_without_momentum_at_rate_1_goes_to_the_mean_and_keeps_nothing() -> None:
    new, moments = step(
        ServerOptimizer("sgd", 1.0, beta1=0.0), {}, "w", OLD, torch.tensor([0.5, 0.0, -2.0])
    )
    assert new.tolist() == [1.5, 2.0, 1.0]
    assert moments == {}


def test_adam_divides_the_momentum_by_the_root_of_the_mean_square_and_tau() -> None:
    """With v = 1 at first: v = 0.75 + 0.25 (1, 0, 2.75^2) = (1, 0.75, 1.625^2) and
    m = (0.5, 0, -1.375). Then v = (0.75 + 0.25, 0.75^2 + 0.25 * 4 = 1.25^2), m = (0.25 + 0.5, 1).
    """
    optimizer = ServerOptimizer("adam", 2.0, beta1=0.5, beta2=0.75, tau=1.0)
    new, moments = two_steps(optimizer, [1, 0, -2.75], [1, 2])
    expected = [1 + 1 / 2 + 1.5 / 2, 2 + 2 / 2.25, 3 - 2.75 / 2.625]
    torch.testing.assert_close(new, torch.tensor(expected))
    assert moments["server/m/w"].tolist() == [0.75, 1.0, -1.375]
    assert moments["server/v/w"].tolist() == [1.0, 1.5625, 2.640625]
    assert len(moments) == 2


def test_adagrad_adds_up_squares() -> None:
    """v = 1 + (0.75^2, 0, 0.75^2) = (1.25^2, 1, 1.25^2), then (1.25^2 + 9 = 3.25^2, 1.25^2)."""
    optimizer = ServerOptimizer("adagrad", 1.0, beta1=0.0, tau=1.0)
    new, moments = two_steps(optimizer, [0.75, 0, -0.75], [3, 0.75])
    torch.testing.assert_close(
        new, torch.tensor([1 + 0.75 / 2.25 + 3 / 4.25, 2 + 0.75 / 2.25, 3 - 0.75 / 2.25])
    )
    assert {home: value.tolist() for home, value in moments.items()} == {
        "server/v/w": [10.5625, 1.5625, 1.5625]
    }


def test_yogi_moves_the_mean_square_by_a_share_of_the_square_up_or_down() -> None:
    """v = 1 + 0.25 * 1.5^2 = 1.25^2; 1 - 0.25 * 0.56^2 = 0.96^2; 1, where the square is v itself.
    Then 1.25^2 - 0.25 * 0.7^2 = 1.2^2, and 0.96^2, where nothing changes.
    """
    optimizer = ServerOptimizer("yogi", 1.0, beta1=0.5, beta2=0.75, tau=1.0)
    new, moments = two_steps(optimizer, [1.5, 0.56, 1], [0.7, 0])
    expected = [
        1 + 0.75 / 2.25 + (0.375 + 0.35) / 2.2,
        2 + 0.28 / 1.96 + 0.14 / 1.96,
        3 + 0.5 / 2,
    ]
    torch.testing.assert_close(new, torch.tensor(expected))
    torch.testing.assert_close(moments["server/v/w"].sqrt(), torch.tensor([1.2, 0.96, 1.0]))


def test_three_steps_of_adamw_are_those_of_pytorch() -> None:
    generator = torch.Generator().manual_seed(0)
    theirs = torch.nn.Parameter(OLD.clone())
    optimiser = torch.optim.AdamW([theirs], lr=0.1, weight_decay=0.5)
    new, moments = OLD, dict[str, Tensor]()
    for _ in range(3):
        theirs.grad = torch.randn(3, generator=generator)
        optimiser.step()
        new, moments = step(adamw(0.1, 0.5), moments, "w", new, -theirs.grad)
    torch.testing.assert_close(new, theirs.detach())
    assert moments["server/t/w"].tolist() == [3.0]


@pytest.mark.parametrize("rule", ["adagrad", "adam", "yogi"])
def test_the_mean_square_begins_at_the_square_of_tau(rule: str) -> None:
    """Without a change: tau^2 stays, except with adam, which keeps 0.75 of it."""
    optimizer = ServerOptimizer(rule, 1.0, beta1=0.5, beta2=0.75, tau=0.5)  # type: ignore[arg-type]
    new, moments = step(optimizer, {}, "w", OLD, torch.zeros(3))
    assert new.tolist() == OLD.tolist()
    assert moments["server/v/w"].tolist() == [0.1875 if rule == "adam" else 0.25] * 3


def test_the_state_that_went_in_stays_as_it_was() -> None:
    known = {"server/m/w": torch.ones(3), "server/v/w": torch.ones(3)}
    step(ServerOptimizer("adam", 1.0), known, "w", OLD, torch.ones(3), HELD)
    assert OLD.tolist() == [1.0, 2.0, 3.0]
    assert all(value.tolist() == [1.0] * 3 for value in known.values())


def test_covered_are_the_rectangles_that_have_weight() -> None:
    """A corner of two rows of which a device gives the second, and one that weighs nothing."""
    total = Total()
    rows = torch.tensor([0.0, 2.0])
    fold(total, [Part("w", ((0, 2), (0, 1)), (3, 2), torch.ones(2, 1), rows)], ("a",))
    fold(total, [Part("w", ((2, 3), (0, 2)), (3, 2), torch.ones(1, 2), 0.0)], ("b",))
    assert coverage_mask(total.sums["w"]).tolist() == [
        [False, False],
        [True, False],
        [False, False],
    ]
    fold(total, [Part("one", (), (), torch.tensor(1.0), 1.0)], ("c",))
    assert coverage_mask(total.sums["one"]).tolist() is True
