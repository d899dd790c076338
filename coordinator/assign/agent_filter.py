"""Parse and check conditions that select agents: `memory>=2GB and (label=eu or not kind=pi)`.

    any   := all ("or" all)*
    all   := one ("and" one)*
    one   := "not" one | "(" any ")" | KEY ("=" | "!=" | "<" | "<=" | ">" | ">=") VALUE

A value is a word or quoted text. Text is compared without regard to case, and a value may be a
shell pattern such as `cam-*`; amounts may have units (512MB, 2GiB, 5MB/s). All keys but `group` are
what the device states; the coordinator keeps the groups.
"""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Mapping, Sequence
from fnmatch import fnmatchcase
from typing import TypeAlias

from federated.errors import ConfigError, Unknown
from federated.task import Profile

__all__ = ["AMOUNTS", "WORDS", "Groups", "parse"]

Constraint: TypeAlias = Callable[[Profile], str]
"""Returns why an agent does not meet the condition; empty if it does."""

Groups: TypeAlias = Callable[[str], Sequence[str]]
"""Returns the groups of a device, by its name."""

GROUP = "group"  # the key that is compared with the groups, as text
NO_GROUPS = (
    "the certificate authority keeps the groups, and this run has none: set broker.tls = true "
    "(--tls), or select by another key"
)

AMOUNTS: Mapping[str, Callable[[Profile], float]] = {
    "cpus": lambda profile: profile.cpus,
    "examples": lambda profile: profile.data.examples,
    "memory": lambda profile: profile.memory,
    "uplink": lambda profile: profile.uplink,
}
"""Keys that are compared as numbers: memory in bytes, uplink in bytes per second."""

WORDS: Mapping[str, Callable[[Profile], tuple[str, ...]]] = {
    "gpu": lambda profile: (profile.board.gpu or "none",),
    "host": lambda profile: (profile.host,),
    "kind": lambda profile: (profile.board.kind,),
    "label": lambda profile: profile.labels,
    "model": lambda profile: (profile.board.model,),
    "name": lambda profile: (profile.agent,),
    "power": lambda profile: (profile.board.power or "unknown",),
    "runtime": lambda profile: (profile.runtime,),
    "software": lambda profile: (profile.software or "unknown",),
    "system": lambda profile: (profile.system,),
}
"""Keys that are compared as text; one matching label is enough."""

COMPARISONS = {  # a longer sign first: the pattern of signs tries them in this order
    "<=": operator.le,
    ">=": operator.ge,
    "!=": operator.ne,
    "=": operator.eq,
    "<": operator.lt,
    ">": operator.gt,
}
UNITS = {"b": 1, "kb": 10**3, "mb": 10**6, "gb": 10**9, "kib": 2**10, "mib": 2**20, "gib": 2**30}
EXAMPLES = {"cpus": "4", "examples": "100", "memory": "512MB", "uplink": "5MB/s"}
MAX_DEPTH = 50  # nested brackets and nots

LETTER = r"""[^\s()<>=!"']"""
AND, OR, NOT = (f"{word}(?!{LETTER})" for word in ("and", "or", "not"))
WORD = f"(?!{AND}|{OR}|{NOT}){LETTER}+"
VALUE = f"""{WORD}|"[^"]*"|'[^']*'"""
ANYTHING = f"{LETTER}+|[<>!]?=|[()]|\\S.{{0,19}}"  # what an error shows of an unexpected text


def parse(text: str, groups: Groups | None = None) -> Constraint:
    """Return the condition of a text. Raises ConfigError that says where the text is wrong, what
    was expected, and what was found.

    groups: of devices; None if no authority keeps them, which refuses the key `group`.
    """
    parser = Parser(text, groups)
    constraint = parser.parse_any(0)
    if text[parser.place :].strip():
        raise parser.unexpected("'and', 'or' or the end")
    return constraint


class Parser:
    """A recursive descent parser, with one method per rule of the grammar.

    groups: see `parse`.
    place: index in the text up to which it was parsed.
    start: index at which the last token starts.
    """

    def __init__(self, text: str, groups: Groups | None) -> None:
        self.text, self.groups, self.place, self.start = text, groups, 0, 0

    def parse_any(self, depth: int) -> Constraint:
        parts = [self.parse_all(depth)]
        while self.take(OR):
            parts.append(self.parse_all(depth))
        return lambda profile: check_any(parts, profile)

    def parse_all(self, depth: int) -> Constraint:
        parts = [self.parse_one(depth)]
        while self.take(AND):
            parts.append(self.parse_one(depth))
        return lambda profile: next((why for part in parts if (why := part(profile))), "")

    def parse_one(self, depth: int) -> Constraint:
        if depth > MAX_DEPTH:
            raise self.unexpected(f"at most {MAX_DEPTH} nested brackets and nots")
        if self.take(NOT):
            start = self.start
            inner = self.parse_one(depth + 1)
            reason = f"{self.text[start : self.place]} not met"
            return lambda profile: "" if inner(profile) else reason
        if self.take(r"\("):
            inner = self.parse_any(depth + 1)
            if not self.take(r"\)"):
                raise self.unexpected("')'")
            return inner
        return self.parse_comparison()

    def parse_comparison(self) -> Constraint:
        key = self.take(WORD)
        if not key:
            raise self.unexpected("a key such as memory, 'not' or '('")
        if key not in (known := [*AMOUNTS, GROUP, *WORDS]):
            raise self.error(self.start, str(Unknown("key", key, known)))
        if key == GROUP and self.groups is None:
            raise self.error(self.start, NO_GROUPS)
        signs = list(COMPARISONS) if key in AMOUNTS else ["=", "!="]
        sign = self.take("|".join(signs))
        if not sign:
            raise self.unexpected(f"one of {' '.join(signs)} after {key}")
        value = self.take(VALUE)
        if not value:
            raise self.unexpected(f"a value (a word or quoted text) after {key}{sign}")
        if value[0] in "\"'":
            value = value[1:-1]
        reason = f"{key}{sign}{value} not met: it has "
        if key == GROUP and (groups := self.groups) is not None:
            return lambda profile: check_words(groups(profile.agent), sign, value, reason)
        if key in WORDS:
            return lambda profile: check_words(WORDS[key](profile), sign, value, reason)
        amount = self.parse_amount(key, value)
        return lambda profile: check_amount(key, sign, amount, reason, profile)

    def parse_amount(self, key: str, value: str) -> float:
        found = re.fullmatch(r"(\d+\.?\d*|\.\d+)([a-z]*)(/s)?", value.lower())
        units = {"": 1, **UNITS} if key in ("memory", "uplink") else {"": 1}
        if (
            found is None
            or found[2] not in units
            or (found[3] and (key != "uplink" or not found[2]))
        ):
            expected = f"expected an amount such as {EXAMPLES[key]}, found '{value}'"
            raise self.error(self.start, expected)
        return float(found[1]) * units[found[2]]

    def take(self, pattern: str) -> str:
        """Return the next token and move past it; empty if the pattern does not match it."""
        found = re.compile(rf"\s*({pattern})").match(self.text, self.place)
        if found is None:
            return ""
        self.start, self.place = found.start(1), found.end()
        return found[1]

    def unexpected(self, expected: str) -> ConfigError:
        found = self.take(ANYTHING)
        start = self.start if found else len(self.text)
        shown = repr(found) if found else "the end of the text"
        return self.error(start, f"expected {expected}, found {shown}")

    def error(self, start: int, problem: str) -> ConfigError:
        return ConfigError(f"select '{self.text}', character {start + 1}: {problem}")


def check_any(parts: Sequence[Constraint], profile: Profile) -> str:
    reasons = [part(profile) for part in parts]
    return " and ".join(reasons) if all(reasons) else ""


def check_words(words: Sequence[str], sign: str, value: str, reason: str) -> str:
    matches = any(fnmatchcase(word.lower(), value.lower()) for word in words)
    return "" if matches == (sign == "=") else reason + (", ".join(words) or "none")


def check_amount(key: str, sign: str, amount: float, reason: str, profile: Profile) -> str:
    found = AMOUNTS[key](profile)
    if COMPARISONS[sign](found, amount):
        return ""
    if key not in ("memory", "uplink"):
        return f"{reason}{found:g}"
    return f"{reason}{found / 1e6:,.0f} MB{'/s' if key == 'uplink' else ''}"
