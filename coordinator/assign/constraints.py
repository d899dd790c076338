"""Which agents a run selects, as a person writes it: `memory>=2GB and (label=eu or not kind=pi)`.

    any   := all ("or" all)*
    all   := one ("and" one)*
    one   := "not" one | "(" any ")" | KEY ("=" | "!=" | "<" | "<=" | ">" | ">=") VALUE

A value is a word or in quotes. Words are compared without regard to case, and may be patterns as a
shell has them; amounts may have units (512MB, 2GiB, 5MB/s).
"""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from types import MappingProxyType
from typing import TypeAlias

from federated.errors import ConfigError, Unknown
from federated.task import Profile

__all__ = [
    "AMOUNTS",
    "WORDS",
    "Both",
    "Comparison",
    "Constraint",
    "Either",
    "Not",
    "parse",
    "spelled",
    "unmet",
]

AMOUNTS: Mapping[str, Callable[[Profile], float]] = MappingProxyType(
    {
        "cpus": lambda profile: profile.cpus,
        "examples": lambda profile: profile.data.examples,
        "memory": lambda profile: profile.memory,
        "uplink": lambda profile: profile.uplink,
    }
)
"""What is compared as a number: memory in bytes, uplink in bytes per second."""

WORDS: Mapping[str, Callable[[Profile], tuple[str, ...]]] = MappingProxyType(
    {
        "gpu": lambda profile: (profile.board.gpu or "none",),
        "host": lambda profile: (profile.host,),
        "kind": lambda profile: (profile.board.kind,),
        "label": lambda profile: profile.labels,
        "model": lambda profile: (profile.board.model,),
        "name": lambda profile: (profile.agent,),
        "power": lambda profile: (profile.board.power or "unknown",),
        "runtime": lambda profile: (profile.runtime,),
        "system": lambda profile: (profile.system,),
    }
)
"""What is compared as text; of several labels one is enough."""

COMPARISONS = {
    "=": operator.eq,
    "!=": operator.ne,
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}
UNITS = {"b": 1, "kb": 10**3, "mb": 10**6, "gb": 10**9, "kib": 2**10, "mib": 2**20, "gib": 2**30}
# of amounts, as a person writes them
EXAMPLES = MappingProxyType({"cpus": "4", "examples": "100", "memory": "512MB", "uplink": "5MB/s"})
TOKEN = re.compile(
    r"""\s*(?:(?P<sign><=|>=|!=|=|<|>|\(|\))|"(?P<double>[^"]*)"|'(?P<single>[^']*)'|(?P<word>[^\s()<>=!"']+))"""
)
DEEPEST = 50  # brackets and nots within each other


@dataclass(frozen=True)
class Comparison:
    """key, sign, value: as written. amount: the value as a number, of an amount."""

    key: str
    sign: str
    value: str
    amount: float = 0.0


@dataclass(frozen=True)
class Not:
    one: Constraint


@dataclass(frozen=True)
class Both:
    left: Constraint
    right: Constraint


@dataclass(frozen=True)
class Either:
    left: Constraint
    right: Constraint


Constraint: TypeAlias = Comparison | Not | Both | Either


def unmet(constraint: Constraint, profile: Profile) -> str:
    """Why an agent does not meet a constraint, in words; empty where it does."""
    match constraint:
        case Both(left, right):
            return unmet(left, profile) or unmet(right, profile)
        case Either(left, right):
            reasons = [unmet(left, profile), unmet(right, profile)]
            return " and ".join(reasons) if all(reasons) else ""
        case Not(one):
            return "" if unmet(one, profile) else f"{spelled(constraint)} not met"
        case Comparison(key, sign, value, amount):
            if key in AMOUNTS:
                found = AMOUNTS[key](profile)
                return (
                    ""
                    if COMPARISONS[sign](found, amount)
                    else f"{key}{sign}{value} not met: it has {told(key, found)}"
                )
            words = WORDS[key](profile)
            there = any(fnmatchcase(word.lower(), value.lower()) for word in words)
            return (
                ""
                if there == (sign == "=")
                else f"{key}{sign}{value} not met: it has {', '.join(words) or 'none'}"
            )


def told(key: str, found: float) -> str:
    return (
        f"{found / 1e6:,.0f} MB{'/s' if key == 'uplink' else ''}"
        if key in ("memory", "uplink")
        else f"{found:g}"
    )


def spelled(constraint: Constraint) -> str:
    """As one may write it."""
    match constraint:
        case Comparison(key, sign, value):
            return (
                f"{key}{sign}{value}"
                if re.fullmatch(r"[^\s()<>=!\"']+", value)
                else f'{key}{sign}"{value}"'
            )
        case Not(one):
            return (
                f"not {spelled(one)}"
                if isinstance(one, Comparison | Not)
                else f"not ({spelled(one)})"
            )
        case Both(left, right):
            return f"({spelled(left)} and {spelled(right)})"
        case Either(left, right):
            return f"({spelled(left)} or {spelled(right)})"


# ---- reading -------------------------------------------------------------------------------------


def parse(text: str) -> Constraint:
    """Raises ConfigError that says where, what was expected, and what was found."""
    return Reader(text).whole()


@dataclass(frozen=True)
class Token:
    """at: the place of its first character, from 1. plain: whether it is a word without quotes,
    which may mean something.
    """

    text: str
    at: int
    plain: bool


class Reader:
    """The tokens of a text, and how far they have been read."""

    def __init__(self, text: str) -> None:
        self.text, self.tokens, self.next = text, tokens(text), 0

    def whole(self) -> Constraint:
        made = self.any(0)
        if self.next < len(self.tokens):
            raise self.wrong("'and', 'or' or the end")
        return made

    def any(self, depth: int) -> Constraint:
        made = self.all(depth)
        while self.took("or"):
            made = Either(made, self.all(depth))
        return made

    def all(self, depth: int) -> Constraint:
        made = self.one(depth)
        while self.took("and"):
            made = Both(made, self.one(depth))
        return made

    def one(self, depth: int) -> Constraint:
        if depth > DEEPEST:
            raise self.wrong(f"at most {DEEPEST} brackets and nots within each other")
        if self.took("not"):
            return Not(self.one(depth + 1))
        if self.took("("):
            made = self.any(depth + 1)
            if not self.took(")"):
                raise self.wrong("')'")
            return made
        return self.test()

    def test(self) -> Comparison:
        key = self.word("a key such as memory, 'not' or '('")
        if key.text not in {**AMOUNTS, **WORDS}:
            raise ConfigError(
                f"{self.where(key.at)}: {Unknown('key', key.text, [*AMOUNTS, *WORDS])}"
            )
        signs = list(COMPARISONS) if key.text in AMOUNTS else ["=", "!="]
        if (
            self.next >= len(self.tokens)
            or self.tokens[self.next].text not in signs
            or not self.tokens[self.next].plain
        ):
            raise self.wrong(f"one of {' '.join(signs)} after {key.text}")
        sign = self.tokens[self.next].text
        self.next += 1
        value = self.word("a value", quoted=True)
        return Comparison(
            key.text, sign, value.text, self.amount(key.text, value) if key.text in AMOUNTS else 0.0
        )

    def word(self, wanted: str, *, quoted: bool = False) -> Token:
        there = self.tokens[self.next] if self.next < len(self.tokens) else None
        if (
            there is None
            or (there.plain and there.text in {*COMPARISONS, "(", ")", "and", "or", "not"})
            or not (there.plain or quoted)
        ):
            raise self.wrong(wanted)
        self.next += 1
        return there

    def amount(self, key: str, value: Token) -> float:
        match = re.fullmatch(r"(\d+\.?\d*|\.\d+)([a-z]*)(/s)?", value.text.lower())
        units = {"": 1, **UNITS} if key in ("memory", "uplink") else {"": 1}
        if (
            match is None
            or match[2] not in units
            or (match[3] and (key != "uplink" or not match[2]))
        ):
            raise ConfigError(
                f"{self.where(value.at)}: expected an amount such as {EXAMPLES[key]}, "
                f"found '{value.text}'"
            )
        return float(match[1]) * units[match[2]]

    def took(self, text: str) -> bool:
        """Reads a word that means something, if it comes now."""
        there = self.tokens[self.next] if self.next < len(self.tokens) else None
        if there is None or not there.plain or there.text != text:
            return False
        self.next += 1
        return True

    def wrong(self, wanted: str) -> ConfigError:
        there = self.tokens[self.next] if self.next < len(self.tokens) else None
        at = there.at if there is not None else len(self.text) + 1
        return ConfigError(
            f"{self.where(at)}: expected {wanted}, found "
            f"{'the end' if there is None else repr(there.text)}"
        )

    def where(self, at: int) -> str:
        return f"select '{self.text}', character {at}"


def tokens(text: str) -> list[Token]:
    """Raises ConfigError where a quote is not closed."""
    found, place = list[Token](), 0
    while text[place:].strip():
        match = TOKEN.match(text, place)
        if match is None:
            at = place + len(text[place:]) - len(text[place:].lstrip()) + 1
            raise ConfigError(
                f"select '{text}', character {at}: expected a word or a quote that is "
                f"closed, found '{text[at - 1 :][:20]}'"
            )
        kind = match.lastgroup or "word"
        found.append(
            Token(
                match[kind],
                match.start(kind) + (1 if kind in ("sign", "word") else 0),
                kind in ("sign", "word"),
            )
        )
        place = match.end()
    return found
