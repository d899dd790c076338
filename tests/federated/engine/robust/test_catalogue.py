"""Rules are found by name, and each stays within the honest updates, however large the malicious
ones are.

TRY_RULE=module:attribute tries a rule of your own instead of the built-in ones.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from federated.engine.aggregate import mean
from federated.engine.robust.catalogue import RULES, rule
from federated.engine.robust.rule import combine
from federated.engine.update_norms import change_norm
from federated.errors import ConfigError, Unknown
from tests.support.kept import part, store_parts
from tests.support.plugins import install
from tests.support.tried import list_tried

TRIED = {name: found for name in list_tried("rule", RULES) if (found := rule(name))}
SHAPES = {"w": (3, 4), "b": (3,)}
CORNERS = [{"w": (1, 2), "b": (1,)}, {"w": (2, 3), "b": (2,)}, {"w": (3, 4), "b": (3,)}]


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
@settings(max_examples=25, deadline=None)
@given(seed=st.integers(0, 2**31), f=st.integers(0, 3))
def test_malicious_updates_of_any_size_keep_the_result_within_the_honest_updates(
    tmp_path_factory: pytest.TempPathFactory, name: str, seed: int, f: int
) -> None:
    """f liars anywhere among three nested sizes, each of as many devices as any rule needs. A rule
    that clips moves a weight by at most the length of the longest honest update. A rule with a
    weaker bound, such as a geometric median, needs its own bound here.
    """
    chosen, rng = TRIED[name], np.random.default_rng(seed)
    devices = max(one.needed(f) for one in (chosen, *RULES.values()))
    sizes = [corner for corner in CORNERS for _ in range(devices)]
    old = {home: torch.from_numpy(value) for home, value in values(rng, SHAPES).items()}
    sent = [values(rng, size) for size in sizes]
    liars = set(rng.permutation(len(sizes))[:f].tolist())
    honest = [update for index, update in enumerate(sent) if index not in liars]
    longest = max(change_norm(parts(update), old) for update in honest)
    directions = [{h: np.sign(v) * (2 + v) for h, v in sent[index].items()} for index in liars]
    for scale in (1e2, 1e4, 1e10, 1e20, 1e30):
        for index, direction in zip(liars, directions, strict=True):
            sent[index] = {h: (v * scale).astype(np.float32) for h, v in direction.items()}
        kept = store_parts(tmp_path_factory.mktemp("kept"), *map(parts, sent))
        total = combine(chosen, kept, old, f)
        for home, before in old.items():
            found = mean(total.sums[home], before).numpy()
            if chosen.clips:
                assert np.abs(found - before.numpy()).max() <= longest * (1 + 1e-5)
                continue
            for place in np.ndindex(*found.shape):
                here = [u[home][place] for u in honest if holds(u[home], place)]
                assert min(here) - 1e-6 <= found[place] <= max(here) + 1e-6, (home, place, scale)


def holds(value: np.ndarray, place: tuple[int, ...]) -> bool:
    return all(i < n for i, n in zip(place, value.shape, strict=True))


def test_each_rule_has_the_name_that_it_is_found_by() -> None:
    assert {name: known.name for name, known in RULES.items()} == {name: name for name in RULES}
    assert rule("none") is None
    assert rule("krum") is RULES["krum"]


def test_an_unknown_rule_suggests_the_nearest() -> None:
    with pytest.raises(Unknown, match=r"unknown robust rule 'kurm'; did you mean krum"):
        rule("kurm")


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
    assert rule("toy_twice:TWICE") is rule("twice")
    with pytest.raises(ConfigError, match="robust rule 'math:pi' is a float; expected a Rule"):
        rule("math:pi")
