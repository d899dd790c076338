"""What `coordinator methods` prints: every method in a line, or one of them with its settings,
defaults and laws; as plain values or as text.
"""

from __future__ import annotations

import textwrap
from collections.abc import Mapping, Sequence
from typing import Any

from federated.method import LAWS, MODES, SCHEDULE, Method, Setting
from federated.methods.catalogue import loaded_methods, method

__all__ = ["described", "listed", "one_text", "table_text"]

WIDTH = 110


def listed() -> list[dict[str, str]]:
    """Name, summary and paper of every method, those of installed packages too."""
    return [
        {"name": name, "summary": made.summary, "paper": made.paper}
        for name, made in sorted(loaded_methods().items())
    ]


def described(name: str) -> dict[str, Any]:
    """One method as plain values; `name` as `--method` takes it. Raises Unknown, ConfigError."""
    made = method(name)
    return {
        "name": made.name,
        "summary": made.summary,
        "paper": made.paper,
        "network": list(made.features),
        "trains": "with PyTorch alone"
        if made.hooks is not None and made.hooks.train
        else "by a recipe",
        "settings": {key: told(known) for key, known in made.settings.items()},
        "laws": {law: broken(made, law) for law in LAWS},
        "modes": {mode: made.forbids.get(mode, "") for mode in MODES},
    }


def told(known: Setting) -> dict[str, Any]:
    """One setting: its default, its help, what bounds it, and how a schedule is read."""
    bounds = {
        "choices": list(known.choices),
        "range": known.range,
        "schedule": SCHEDULE if known.schedule else "",
    }
    return {
        "default": known.default,
        "help": known.help,
        **{key: value for key, value in bounds.items() if value},
    }


def broken(made: Method, law: str) -> str:
    """Why a law does not hold; empty where it does."""
    return made.breaks.get(law, "")


def table_text(methods: Sequence[Mapping[str, str]]) -> str:
    """A line or two per method, its paper below."""
    wide = max(len(one["name"]) for one in methods)
    lines = []
    for one in methods:
        lines += [
            f"{one['name']:<{wide}}  {one['summary']}",
            *(f"{'':<{wide}}  {line}" for line in textwrap.wrap(one["paper"], WIDTH)),
        ]
    return "\n".join(lines)


def one_text(one: Mapping[str, Any]) -> str:
    """A method explained to a person."""
    lines = [
        f"{one['name']}: {one['summary']}",
        *textwrap.wrap(one["paper"], WIDTH),
        "",
        f"Devices train {one['trains']}.",
    ]
    if one["network"]:
        lines.append(f"The network is asked for: {', '.join(one['network'])}.")
    lines += ["", "Settings (--set method.KEY=VALUE):"]
    for key, known in one["settings"].items():
        choices = f" ({', '.join(map(str, known['choices']))})" if "choices" in known else ""
        bounds = "".join(f" ({known[bound]})" for bound in ("range", "schedule") if bound in known)
        lines += folded(
            f"{key} = {spelled(known['default'])}", known["help"] + choices + bounds, 30
        )
    lines += ["", "Laws of the combination:"]
    for law, why in one["laws"].items():
        lines += folded(law, LAWS[law] if not why else f"does not hold: {why}", 13)
    lines += ["", "Modes of combining (fleet.mode, robust.rule, private.noise):"]
    for mode, why in one["modes"].items():
        lines += folded(mode, MODES[mode] if not why else f"not with this method: {why}", 13)
    return "\n".join(lines)


def spelled(value: Any) -> str:
    """As `--set` takes it."""
    match value:
        case bool():
            return str(value).lower()
        case tuple() | list():
            return f"[{', '.join(map(spelled, value))}]"
        case _:
            return str(value) if value != "" else '""'


def folded(head: str, text: str, column: int) -> list[str]:
    """A term and its explanation, folded beside it."""
    start = f"  {head:<{column - 4}}  "
    return textwrap.wrap(text, WIDTH, initial_indent=start, subsequent_indent=" " * column) or [
        start.rstrip()
    ]
