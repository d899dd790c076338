"""An error of settings names the key, the expected values in words, and what was found."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import pytest
from msgspec import Meta, field

from federated.errors import ConfigError
from federated.settings_validation import Record, Settings, list_changed, validate

Share = Annotated[float, Meta(gt=0, le=1)]


class Inner(Record, frozen=True):
    on: bool = False
    names: dict[str, str] = field(default_factory=dict)


class Outer(Record, frozen=True):
    count: Annotated[int, Meta(ge=1, description="A number.")] = 1
    most: Annotated[int, Meta(ge=0, lt=2**62)] = 0
    accuracy: Annotated[float, Meta(ge=0, le=1)] = 0.0
    shares: tuple[Share, ...] = ()
    depths: tuple[int | tuple[Annotated[int, Meta(le=5)], ...], ...] = ()
    root: str | None = None
    rule: Literal["mean", "median"] = "mean"
    inner: Inner = Inner()


@pytest.mark.parametrize(
    ("tree", "words"),
    [
        ({"count": "ten"}, "count: expected a whole number of at least 1, found 'ten'"),
        ({"count": 0}, "count: expected a whole number of at least 1, found 0"),
        ({"count": True}, "count: expected a whole number of at least 1, found true"),
        (
            {"most": -1},
            "most: expected a whole number of at least 0 and below 4611686018427387904, found -1",
        ),
        (
            {"inner": {"names": {"a": -(2**63)}}},
            "inner.names.a: expected a whole number below 2^63 in size, found -9223372036854775808",
        ),
        ({"accuracy": 3}, "accuracy: expected a number between 0 and 1, found 3"),
        ({"shares": 1}, "shares: expected a list, found 1"),
        ({"shares": [0.5, 0]}, "shares[1]: expected a number above 0 and at most 1, found 0"),
        ({"depths": ["a"]}, "depths[0]: expected a whole number or a list, found 'a'"),
        ({"depths": [1, [2, 6]]}, "depths[1][1]: expected a whole number of at most 5, found 6"),
        ({"root": 3}, "root: expected text, found 3"),
        ({"rule": "krum"}, "rule: expected one of mean, median, found 'krum'"),
        ({"inner": []}, "inner: expected a table, found []"),
        ({"inner": {"on": 1}}, "inner.on: expected true or false, found 1"),
        ({"inner": {"names": {"a": "b", "c": 4}}}, "inner.names.c: expected text, found 4"),
    ],
)
def test_a_wrong_value_is_explained_in_words(tree: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError) as found:
        validate(Outer, tree, "run.toml")
    assert str(found.value) == f"run.toml: {words}"


def test_an_unknown_key_is_answered_with_the_nearest_key() -> None:
    with pytest.raises(
        ConfigError, match=r"run.toml: inner: unknown key 'nams'; did you mean name"
    ):
        validate(Outer, {"inner": {"nams": {}}}, "run.toml")


class Added(Settings, frozen=True):
    lr: float = 0.1
    new: bool = False


def test_only_settings_that_differ_from_their_defaults_are_listed() -> None:
    """So a device whose version lacks the setting `new` accepts those of a run without it."""
    assert list_changed(Added()) == {}
    given = Added(seed=3, lr=0.2)
    assert list_changed(given) == {"seed": 3, "lr": 0.2}
    assert validate(Added, list_changed(given), "card") == given
