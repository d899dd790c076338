"""Rules are found by name, and each stays within the honest updates, however large the malicious
ones are.

TRY_RULE=module:attribute tries a rule of your own instead of the built-in ones.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from federated.engine.aggregate import mean
from federated.engine.robust.arithmetic import least_for_krum, per_submodel
from federated.engine.robust.catalogue import RULES, find_rule
from federated.engine.robust.rule import Rule, combine
from federated.engine.update_norms import change_norm
from federated.errors import ConfigError, Unknown
from tests.support.member_names import list_tried
from tests.support.plugins import install
from tests.support.stored_updates import part, store_parts

Squares: TypeAlias = np.ndarray[Any, np.dtype[np.float64]]
TRIED = {name: found for name in list_tried("rule", RULES) if (found := find_rule(name))}
SHAPES = {"w": (3, 4), "b": (3,)}
CORNERS = [{"w": (1, 2), "b": (1,)}, {"w": (2, 3), "b": (2,)}, {"w": (3, 4), "b": (3,)}]
ALONE = {"w": (3, 3), "b": (3,)}  # of a single device


def values(rng: np.random.Generator, shapes: dict) -> dict[str, np.ndarray]:
    return {
        home: rng.uniform(-1, 1, shape).astype(np.float32) for home, shape in sorted(shapes.items())
    }


def parts(update: dict[str, np.ndarray]) -> list:
    return [
        part(torch.from_numpy(value), shape=SHAPES[home], home=home)
        for home, value in update.items()
    ]


@pytest.mark.parametrize("name", TRIED)
@settings(max_examples=12, deadline=None)
@given(seed=st.integers(0, 2**31), f=st.integers(0, 3))
def test_malicious_updates_of_any_size_keep_the_result_within_the_honest_updates(
    tmp_path_factory: pytest.TempPathFactory, name: str, seed: int, f: int
) -> None:
    check(TRIED[name], tmp_path_factory.mktemp("kept"), seed, f)


def lie(value: np.ndarray, scale: float, *, everywhere: bool) -> np.ndarray:
    """Return a value as an attacker sends it: far away in every coordinate, or in a single one."""
    far = (np.sign(value) * (2 + value) * scale).astype(np.float32)
    return far if everywhere else np.where(np.arange(value.size).reshape(value.shape), value, far)


def check(
    chosen: Rule,
    folder: Path,
    seed: int,
    f: int,
    limit: float = 0.0,
    scales: tuple[float, ...] = (1e2, 1e4, 1e10, 1e20, 1e30),
) -> None:
    """Combine updates of three nested sizes, each of as many devices as any rule needs, and of a
    fourth size that one device has alone. f devices lie; with every third seed it is one of them.
    Check what the rule promises.

    limit: for a rule that leaves the range of the honest updates: how far it may move a weight
    scales: factors by which the lies grow
    """
    rng = np.random.default_rng(seed)
    devices = max(one.needed(f) for one in (chosen, *RULES.values()))
    sizes = [ALONE, *(corner for corner in CORNERS for _ in range(devices))]
    old = {home: torch.from_numpy(value) for home, value in values(rng, SHAPES).items()}
    sent = [values(rng, size) for size in sizes]
    others = rng.permutation(np.arange(1, len(sizes))).tolist()
    liars = set([0, *others][:f] if seed % 3 == 0 else others[:f])
    honest = [update for index, update in enumerate(sent) if index not in liars]
    longest = max(change_norm(parts(update), old) for update in honest) * (1 + 1e-5)
    truths = [sent[index] for index in liars]
    for scale in scales:
        for index, truth in zip(liars, truths, strict=True):
            sent[index] = {h: lie(v, scale, everywhere=seed % 2 == 0) for h, v in truth.items()}
        kept = store_parts(folder / f"{scale:.0e}", *map(parts, sent))
        total = combine(chosen, kept, old, f)
        for home, before in old.items():
            found = mean(total.sums[home], before).numpy()
            why = f"rule {chosen.name} promises '{chosen.promises}', lies of {scale:.0e}, {home}"
            if limit or chosen.promises == "near":
                farthest = np.abs(found - before.numpy()).max()
                assert farthest <= (limit or longest), f"{why}: moved by {farthest}"
                continue
            for place in np.ndindex(*found.shape):
                here = [u[home][place] for u in honest if holds(u[home], place)]
                inside = min(here) - 1e-6 <= found[place] <= max(here) + 1e-6
                assert inside, f"{why}{list(place)}: {found[place]} is not between {here}"


def weigh_by_distance(smooth: Callable[[Squares], float]) -> Callable[[Squares, int], Squares]:
    """Return the weights of a geometric median (Weiszfeld, Tohoku Math. J. 43, 1937).

    smooth: returns the least distance to divide by, from the squared distances between updates
    """

    def weigh(squares: Squares, f: int) -> Squares:
        n, least = len(squares), smooth(squares)
        weights = np.full(n, 1 / n)
        for _ in range(50):
            # squared distances of the updates to their weighted mean, from those between them
            scale = max(squares.max(), 1.0)
            inner = squares / scale
            away = inner @ weights - weights @ inner @ weights / 2
            weights = 1 / np.maximum(np.sqrt(np.maximum(away, 0.0) * scale), least)
            weights /= weights.sum()
        return weights * n

    return weigh


def geometric_median(smooth: Callable[[Squares], float]) -> Rule:
    weigh = weigh_by_distance(smooth)
    return Rule(
        name="geometric median",
        help="the point with the least sum of distances to the updates of a submodel",
        compares="submodel",
        needed=least_for_krum,
        promises="near",
        combine=lambda kept, old, f: per_submodel(kept, old, f, least_for_krum, weigh),
    )


@pytest.mark.parametrize("seed", [1, 2, 4])  # the device that is alone is honest
def test_the_check_finds_a_geometric_median_whose_smoothing_grows_with_the_lie(
    tmp_path: Path, seed: int
) -> None:
    limit = 20.0  # an honest update is at most 2 * sqrt(15) from the old weights
    # far larger lies leave no digit of a float64 for the distances between honest updates
    scales = (1e2, 1e4, 1e10)
    check(geometric_median(lambda squares: 1e-3), tmp_path / "right", seed, 1, limit, scales)
    wrong = geometric_median(lambda squares: 0.1 * float(np.sqrt(squares.max())))
    with pytest.raises(AssertionError):
        check(wrong, tmp_path / "wrong", seed, 1, limit, scales)


def holds(value: np.ndarray, place: tuple[int, ...]) -> bool:
    return all(i < n for i, n in zip(place, value.shape, strict=True))


def test_each_rule_has_the_name_that_it_is_found_by() -> None:
    assert {name: known.name for name, known in RULES.items()} == {name: name for name in RULES}
    assert find_rule("none") is None
    assert find_rule("krum") is RULES["krum"]


def test_an_unknown_rule_suggests_the_nearest() -> None:
    with pytest.raises(Unknown, match=r"unknown robust rule 'kurm'; did you mean krum"):
        find_rule("kurm")


TOY = """
from dataclasses import replace
from federated.engine.robust.catalogue import RULES
TWICE = replace(RULES["median"], name="twice")
"""


def test_a_rule_of_a_module_and_of_an_installed_package(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "toy_twice.py").write_text(TOY)
    install(tmp_path, "toy-twice", {"espalier.rules": {"twice": "toy_twice:TWICE"}})
    monkeypatch.syspath_prepend(str(tmp_path))
    assert find_rule("toy_twice:TWICE") is find_rule("twice")
    with pytest.raises(ConfigError, match=r"robust rule 'math:pi' is .*float; expected a Rule"):
        find_rule("math:pi")
