"""A person's constraint on agents: parsed strictly, met or not, and told why not."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from coordinator.assign.constraints import (
    AMOUNTS,
    WORDS,
    Both,
    Comparison,
    Constraint,
    Either,
    Not,
    parse,
    spelled,
    unmet,
)
from federated.errors import ConfigError
from federated.task import Board, Card, Profile

DATA = Card("digits", (1, 8, 8), "uint8", 10, 100, 20, (5.0,), (6.0,))
PI = Profile(
    "cam-3",
    "berry",
    "Linux aarch64",
    4.0,
    2 * 10**9,
    5e6,
    2**18,
    "torch 2.13 cpu",
    DATA,
    (),
    board=Board("pi", "Pi 5"),
    labels=("eu", "roof"),
)


@pytest.mark.parametrize(
    "text",
    [
        "memory>=2GB",
        "memory >= 1.5GiB and cpus=4",
        "cpus>.5",
        "label=eu and label=roof",
        "label!=us",
        "not label=us",
        "kind=pi or kind=jetson",
        "name=cam-*",
        "name=CAM-?",
        "uplink>=5MB/s",
        "uplink<6000000",
        "examples<=100",
        "gpu=none and power=unknown",
        "system='linux *'",
        'model="Pi 5"',
        "label=us and label=cn or cpus>2",
        "label=eu or label=us and label=cn",
        "not (label=us or cpus<1)",
        "not not label=eu",
    ],
)
def test_what_is_met(text: str) -> None:
    assert unmet(parse(text), PI) == ""


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("label=us", "label=us not met: it has eu, roof"),
        ("memory>2GB", "memory>2GB not met: it has 2,000 MB"),
        ("uplink>1GB/s", "uplink>1GB/s not met: it has 5 MB/s"),
        ("cpus<4 and label=us", "cpus<4 not met: it has 4"),
        ("cpus<4 or label=us", "cpus<4 not met: it has 4 and label=us not met: it has eu, roof"),
        ("not (cpus=4 and label=eu)", "not ((cpus=4 and label=eu)) not met"),
        ("(label=eu or cpus=4) and kind=jetson", "kind=jetson not met: it has pi"),
    ],
)
def test_what_is_not_met_is_told(text: str, reason: str) -> None:
    assert unmet(parse(text), PI) == reason


def test_an_agent_without_labels() -> None:
    assert unmet(parse("label=eu"), replace(PI, labels=())) == "label=eu not met: it has none"
    assert unmet(parse("label!=eu"), replace(PI, labels=())) == ""


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", r"character 1: expected a key such as memory, 'not' or '\(', found the end"),
        ("memry>=2GB", r"character 1: unknown key 'memry'; known: memory, "),
        ("memory>=2 GB", r"character 11: expected 'and', 'or' or the end, found 'GB'"),
        ("memory>=lots", r"character 9: expected an amount such as 512MB, found 'lots'"),
        ("cpus>=4GB", r"character 7: expected an amount such as 4, found '4GB'"),
        ("examples>100/s", r"character 10: expected an amount such as 100, found '100/s'"),
        ("memory>=2GB/s", r"character 9: expected an amount such as 512MB, found '2GB/s'"),
        ("memory=-2", r"character 8: expected an amount"),
        ("memory", r"character 7: expected one of = != < <= > >= after memory, found the end"),
        ("label>=eu", r"character 6: expected one of = != after label, found '>='"),
        ("label=", r"character 7: expected a value, found the end"),
        (
            "label=eu and",
            r"character 13: expected a key such as memory, 'not' or '\(', found the end",
        ),
        ("(label=eu", r"character 10: expected '\)', found the end"),
        ("label=eu)", r"character 9: expected 'and', 'or' or the end, found '\)'"),
        ("label=eu label=us", r"character 10: expected 'and', 'or' or the end, found 'label'"),
        ("label='eu", r"character 7: expected a word or a quote that is closed, found ''eu'"),
        ("label=and", r"character 7: expected a value, found 'and'"),
        ("'label'=eu", r"character 1: expected a key"),
        ("label==eu", r"character 7: expected a value, found '='"),
        ("__import__('os')=1", r"unknown key '__import__'"),
        ("not " * 60 + "cpus=1", "at most 50 brackets and nots"),
    ],
)
def test_what_is_wrong_is_told_with_its_place(text: str, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        parse(text)


values = st.text(
    st.characters(codec="ascii", exclude_characters="\"'", exclude_categories=["Cc"]), max_size=12
)
tests = st.one_of(
    st.builds(
        Comparison,
        st.sampled_from(sorted(WORDS)),
        st.sampled_from(["=", "!="]),
        values.filter(lambda v: v not in ("and", "or", "not")),
    ),
    st.builds(
        lambda key, sign, n: Comparison(key, sign, str(n), float(n)),
        st.sampled_from(sorted(AMOUNTS)),
        st.sampled_from(["=", "!=", "<", "<=", ">", ">="]),
        st.integers(0, 10**9),
    ),
)
trees = st.recursive(
    tests,
    lambda inner: st.one_of(
        st.builds(Not, inner), st.builds(Both, inner, inner), st.builds(Either, inner, inner)
    ),
    max_leaves=8,
)


@given(trees)
def test_what_is_written_is_read_as_it_was_meant(tree: Constraint) -> None:
    assert parse(spelled(tree)) == tree


def truth(tree: Constraint) -> bool:
    match tree:
        case Both(left, right):
            return truth(left) and truth(right)
        case Either(left, right):
            return truth(left) or truth(right)
        case Not(one):
            return not truth(one)
        case _:
            return unmet(tree, PI) == ""


@given(trees)
def test_and_or_and_not_mean_what_they_mean_in_logic(tree: Constraint) -> None:
    assert (unmet(tree, PI) == "") == truth(tree)


@given(st.text(max_size=60))
def test_no_text_does_anything_but_parse_or_be_refused(text: str) -> None:
    with suppress(ConfigError):
        unmet(parse(text), PI)
