"""A printed token can be parsed, and a mistyped one is rejected before anything is sent."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from federated.errors import UsageError
from federated.wire.enrolment_token import Token, parse_token

TOKEN = Token("pi-kitchen", "192.168.1.5", 8884, bytes(range(16)), bytes(range(100, 132)))


def test_a_token_shows_its_device_and_its_coordinator() -> None:
    assert str(TOKEN).startswith("pi-kitchen@192.168.1.5:8884/1-aaaqeayeaudaocajbifqydiob4-")


@pytest.mark.parametrize(
    "token",
    [
        TOKEN,
        Token("a", "fd00::2", 1, b"s" * 16, b"f" * 32),
        Token("a.b_c-d", "host.example", 65535, b"\xff" * 16, bytes(32)),
        replace(TOKEN, claim=True),
    ],
)
def test_a_token_is_parsed_in_any_case_and_with_blanks(token: Token) -> None:
    assert parse_token(f" {token}\n") == token
    name, rest = str(token).split("/")
    assert parse_token(f"{name}/{rest.upper()}") == token


def test_the_secret_is_not_in_the_repr() -> None:
    assert str(list(TOKEN.secret)) not in repr(TOKEN)
    assert "secret" not in repr(TOKEN)


@given(st.integers(0, len(str(TOKEN)) - 1), st.sampled_from("abcxyz234567"))
def test_one_wrong_character_is_detected(place: int, character: str) -> None:
    wrong = str(TOKEN)[:place] + character + str(TOKEN)[place + 1 :]
    if wrong != str(TOKEN):
        with pytest.raises(UsageError, match="token"):
            parse_token(wrong)


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "expected NAME@HOST:PORT/1-"),
        ("a@h:1/1-é-é-é", "letters and the digits 2 to 7"),
        # another letter for the same bits
        (str(TOKEN)[:108] + "x" + str(TOKEN)[109:], "missing or mistyped"),
        ("hello", "found 5 characters in another form"),
        (str(TOKEN)[:-3], "missing or mistyped"),
        (str(TOKEN).replace("/1-", "/2-"), "expected version 1, found 2"),
        (
            str(TOKEN).replace("aaaqeayeaudaocajbifqydiob4", "1" * 26),
            "letters and the digits 2 to 7",
        ),
        ("all@h:1/1-" + str(TOKEN).split("1-", 1)[1], "missing or mistyped"),
    ],
)
def test_the_error_of_an_invalid_token_does_not_contain_the_secret(text: str, why: str) -> None:
    with pytest.raises(UsageError, match=why) as caught:
        parse_token(text)
    assert "aaaqeayeaudaocajbifqydiob4" not in str(caught.value)


def test_a_claim_may_name_the_device_that_uses_it() -> None:
    claim = replace(TOKEN, claim=True)
    assert str(claim).startswith("pi-kitchen@192.168.1.5:8884/1c-aaaq")
    assert parse_token(str(claim)) == claim
    assert parse_token(f"{claim}#1000a") == replace(claim, serial="1000a")
    for wrong, why in (
        (f"{claim}#a/b", "serial number: expected"),
        (f"{TOKEN}#1000a", "needs no serial"),
        (str(claim).replace("/1c-", "/1-"), "missing or mistyped"),
    ):
        with pytest.raises(UsageError, match=why):
            parse_token(wrong)
