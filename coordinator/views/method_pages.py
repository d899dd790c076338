"""Prepare the output of `coordinator methods`: a list of methods, or one method with its settings
and the properties that tests check.
"""

from __future__ import annotations

import textwrap
from collections.abc import Mapping, Sequence
from typing import Any

from federated.method import LAWS, MODES, SCHEDULE, Setting
from federated.methods.catalogue import METHODS, find_method, list_loaded_methods
from federated.training.hooks import Hooks

__all__ = ["describe_method", "list_methods", "render_list", "render_method"]

WIDTH = 110
TEST = "TRY_METHOD={} pytest CLONE/tests/federated/test_properties.py"


def list_methods() -> list[dict[str, str]]:
    """Return name, summary and paper of every method, including those of installed packages."""
    return [
        {"name": name, "summary": made.summary, "paper": made.paper}
        for name, made in sorted(list_loaded_methods().items())
    ]


def describe_method(name: str) -> dict[str, Any]:
    """Return one method as plain values. name: as for `--method`. Raises Unknown, ConfigError.

    test: command that tests the laws of a method of one's own; empty for a built-in method, whose
        laws this project's tests check.
    """
    made = find_method(name)
    return {
        "name": made.name,
        "summary": made.summary,
        "paper": made.paper,
        "network": list(made.features),
        "trains": describe_training(made.hooks),
        "settings": {key: describe_setting(known) for key, known in made.settings.items()},
        "laws": {law: made.breaks.get(law, "") for law in LAWS},
        "test": "" if name in METHODS else TEST.format(name),
        "modes": {mode: made.forbids.get(mode, "") for mode in MODES},
    }


def describe_training(hooks: Hooks | None) -> str:
    """Return which trainers can train with a method's hooks."""
    if hooks is None or not hooks.train:
        return "any trainer"
    return "PyTorch, or training graphs" if hooks.plain else "requires PyTorch"


def describe_setting(known: Setting) -> dict[str, Any]:
    """Return one setting: its default, help, bounds, and the format of a schedule."""
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


def render_list(methods: Sequence[Mapping[str, str]]) -> str:
    """Return the methods as text: name and summary, then the paper."""
    wide = max(len(one["name"]) for one in methods)
    lines = []
    for one in methods:
        lines += [
            f"{one['name']:<{wide}}  {one['summary']}",
            *(f"{'':<{wide}}  {line}" for line in textwrap.wrap(one["paper"], WIDTH)),
        ]
    return "\n".join(lines)


def render_method(one: Mapping[str, Any]) -> str:
    """Return one method as text."""
    lines = [
        f"{one['name']}: {one['summary']}",
        *textwrap.wrap(one["paper"], WIDTH),
        "",
        f"Training on devices: {one['trains']}",
    ]
    if one["network"]:
        lines.append(f"Network features: {', '.join(one['network'])}")
    lines += ["", "Settings (--set method.KEY=VALUE):"]
    for key, known in one["settings"].items():
        choices = f" [{', '.join(map(str, known['choices']))}]" if "choices" in known else ""
        limits = [known[bound] for bound in ("range", "schedule") if bound in known]
        bounds = f" [{'; '.join(limits)}]" if limits else ""
        lines += wrap(f"{key} = {spell(known['default'])}", known["help"] + choices + bounds, 30)
    untried = "not tested: " if one["test"] else ""
    lines += ["", "Laws of the aggregation:"]
    for law, why in one["laws"].items():
        lines += wrap(law, f"does not hold: {why}" if why else untried + LAWS[law], 13)
    if one["test"]:
        lines.append(f"Test them, with the path of a clone of the repository: {one['test']}")
    lines += ["", "Modes of the aggregation (fleet.mode, robust.rule, private.noise):"]
    for mode, why in one["modes"].items():
        lines += wrap(mode, untried + MODES[mode] if not why else f"not supported: {why}", 13)
    return "\n".join(lines)


def spell(value: Any) -> str:
    """Return a value as `--set` takes it."""
    match value:
        case bool():
            return str(value).lower()
        case tuple() | list():
            return f"[{', '.join(map(spell, value))}]"
        case _:
            return str(value) if value != "" else '""'


def wrap(head: str, text: str, column: int) -> list[str]:
    """Return the lines of a term and its explanation, wrapped beside it."""
    start = f"  {head:<{column - 4}}  "
    return textwrap.wrap(text, WIDTH, initial_indent=start, subsequent_indent=" " * column) or [
        start.rstrip()
    ]
