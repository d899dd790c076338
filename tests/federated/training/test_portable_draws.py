"""Portable draws give the published words."""

from __future__ import annotations

import numpy as np
import pytest

from federated.training.portable_draws import HIDDEN, MASK, ORDER, Draws, encrypt

# Random123, kat_vectors: counter, key, words of philox4x32-10
KNOWN = [
    (
        "00000000 00000000 00000000 00000000",
        "00000000 00000000",
        "6627e8d5 e169c58d bc57ac4c 9b00dbd8",
    ),
    (
        "ffffffff ffffffff ffffffff ffffffff",
        "ffffffff ffffffff",
        "408f276d 41c83b0e a20bc7c6 6d5451fd",
    ),
    (
        "243f6a88 85a308d3 13198a2e 03707344",
        "a4093822 299f31d0",
        "d16cfe09 94fdcceb 5001e420 24126ea1",
    ),
]


def words(text: str) -> list[int]:
    return [int(word, 16) for word in text.split()]


@pytest.mark.parametrize(("counter", "key", "wanted"), KNOWN)
def test_published_vectors(counter, key, wanted) -> None:
    first, second = words(key)
    found = encrypt(np.array([words(counter)], np.uint32), (first, second))
    assert found.tolist() == [words(wanted)]


def test_an_order_is_the_stable_argsort_of_its_words() -> None:
    draws = Draws(0)
    # block 0 of seed 0 is the first published vector: bc57ac4c is the third smallest
    assert draws.words(4, ORDER, 0).tolist() == words(KNOWN[0][2])
    assert draws.order(4, 0).tolist() == [0, 3, 2, 1]
    assert sorted(draws.order(1000, 7)) == list(range(1000))


def test_draws_differ_by_seed_purpose_index_and_number() -> None:
    found = [
        Draws(5).words(9, ORDER, 0),
        Draws(6).words(9, ORDER, 0),
        Draws(5 + (1 << 40)).words(9, ORDER, 0),
        Draws(5).words(9, HIDDEN, 0),
        Draws(5).words(9, ORDER, 1),
        Draws(5).words(9, MASK, 0, 1),
    ]
    assert len({tuple(one) for one in found}) == len(found)
    assert Draws(5).words(3, ORDER, 0).tolist() == found[0][:3].tolist()


def test_a_probability_is_kept() -> None:
    found = Draws(1).below(0.25, (100, 100), MASK, 3)
    assert found.shape == (100, 100)
    assert 0.23 < found.mean() < 0.27
    assert not Draws(1).below(0.0, (8,), MASK, 0).any()
    assert Draws(1).below(1.0, (8,), MASK, 0).all()
