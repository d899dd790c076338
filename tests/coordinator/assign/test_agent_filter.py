"""Constraints are parsed strictly, and give the reason why an agent does not meet them."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from coordinator.assign.agent_filter import AMOUNTS, WORDS, parse
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
        "software=unknown",
    ],
)
def test_met_conditions_give_no_reason(text: str) -> None:
    assert parse(text)(PI) == ""


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("label=us", "label=us not met: it has eu, roof"),
        ("memory>2GB", "memory>2GB not met: it has 2,000 MB"),
        ("uplink>1GB/s", "uplink>1GB/s not met: it has 5 MB/s"),
        ("cpus<4 and label=us", "cpus<4 not met: it has 4"),
        ("cpus<4 or label=us", "cpus<4 not met: it has 4 and label=us not met: it has eu, roof"),
        ("not (cpus=4 and label=eu)", "not (cpus=4 and label=eu) not met"),
        ("(label=eu or cpus=4) and kind=jetson", "kind=jetson not met: it has pi"),
    ],
)
def test_unmet_conditions_say_why(text: str, reason: str) -> None:
    assert parse(text)(PI) == reason


def test_groups_are_those_that_the_coordinator_keeps() -> None:
    """A label of the same name changes nothing."""
    groups = {"cam-3": ("canary", "roof")}.__getitem__
    assert parse("group=canary and group!=eu and group='ROO*'", groups)(PI) == ""
    assert parse("group=eu", groups)(PI) == "group=eu not met: it has canary, roof"
    assert parse("not group=eu", lambda name: ())(PI) == ""
    assert parse("group=eu", lambda name: ())(PI) == "group=eu not met: it has none"


def test_without_an_authority_there_are_no_groups() -> None:
    with pytest.raises(ConfigError, match=r"character 11: .*keeps the groups.*set broker.tls"):
        parse("cpus=4 or group=eu")


def test_agent_without_labels() -> None:
    assert parse("label=eu")(replace(PI, labels=())) == "label=eu not met: it has none"
    assert parse("label!=eu")(replace(PI, labels=())) == ""


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", r"character 1: expected a key such as memory, 'not' or '\(', found the end"),
        ("memry>=2GB", r"character 1: unknown key 'memry'; did you mean memory"),
        ("memory>=2 GB", r"character 11: expected 'and', 'or' or the end, found 'GB'"),
        ("memory>=lots", r"character 9: expected an amount such as 512MB, found 'lots'"),
        ("cpus>=4GB", r"character 7: expected an amount such as 4, found '4GB'"),
        ("examples>100/s", r"character 10: expected an amount such as 100, found '100/s'"),
        ("memory>=2GB/s", r"character 9: expected an amount such as 512MB, found '2GB/s'"),
        ("memory=-2", r"character 8: expected an amount"),
        ("memory", r"character 7: expected one of <= >= != = < > after memory, found the end"),
        ("label>=eu", r"character 6: expected one of = != after label, found '>='"),
        ("label=", r"character 7: expected a value .*, found the end"),
        (
            "label=eu and",
            r"character 13: expected a key such as memory, 'not' or '\(', found the end",
        ),
        ("(label=eu", r"character 10: expected '\)', found the end"),
        ("label=eu)", r"character 9: expected 'and', 'or' or the end, found '\)'"),
        ("label=eu label=us", r"character 10: expected 'and', 'or' or the end, found 'label'"),
        ("label='eu", r"character 7: expected a value .*, found \"'eu\""),
        ("label=and", r"character 7: expected a value .*, found 'and'"),
        ("'label'=eu", r"character 1: expected a key"),
        ("label==eu", r"character 7: expected a value .*, found '='"),
        ("__import__('os')=1", r"unknown key '__import__'"),
        ("not " * 60 + "cpus=1", "at most 50 nested brackets and nots"),
    ],
)
def test_errors_name_the_place(text: str, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        parse(text)


values = st.text(
    st.characters(codec="ascii", exclude_characters="\"'", exclude_categories=["Cc"]), max_size=12
)
comparisons = st.one_of(
    st.builds(
        '{}{}"{}"'.format, st.sampled_from(sorted(WORDS)), st.sampled_from(["=", "!="]), values
    ),
    st.builds(
        "{}{}{}".format,
        st.sampled_from(sorted(AMOUNTS)),
        st.sampled_from(["=", "!=", "<", "<=", ">", ">="]),
        st.integers(0, 10**9),
    ),
)
Tree = str | tuple[str, "Tree"] | tuple[str, "Tree", "Tree"]
trees = st.recursive(
    comparisons,
    lambda inner: st.one_of(
        st.tuples(st.just("not"), inner), st.tuples(st.sampled_from(["and", "or"]), inner, inner)
    ),
    max_leaves=8,
)


def write(tree: Tree) -> str:
    match tree:
        case ("not", inner):
            return f"not ({write(inner)})"
        case (word, left, right):
            text = f"{write(left)} {word} {write(right)}"
            return f"({text})"
        case _:
            return str(tree)


def truth(tree: Tree) -> bool:
    match tree:
        case ("not", inner):
            return not truth(inner)
        case ("and", left, right):
            return truth(left) and truth(right)
        case ("or", left, right):
            return truth(left) or truth(right)
        case _:
            return parse(str(tree))(PI) == ""


@given(trees)
def test_and_or_and_not_mean_what_they_mean_in_logic(tree: Tree) -> None:
    assert (parse(write(tree))(PI) == "") == truth(tree)


@given(st.lists(st.tuples(comparisons, st.sampled_from(["and", "or"])), min_size=1))
def test_and_binds_tighter_than_or(parts: list[tuple[str, str]]) -> None:
    text = " ".join(f"{comparison} {word}" for comparison, word in parts) + " cpus=4"
    terms, group = [], True
    for comparison, word in [*parts, ("cpus=4", "or")]:
        group = group and truth(comparison)
        if word == "or":
            terms.append(group)
            group = True
    assert (parse(text)(PI) == "") == any(terms)


@given(st.text(max_size=60))
def test_any_text_is_parsed_or_rejected(text: str) -> None:
    with suppress(ConfigError):
        parse(text)(PI)
