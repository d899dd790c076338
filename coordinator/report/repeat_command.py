"""The command that repeats a run, with the configuration file that it needs."""

from __future__ import annotations

import json
import shlex
from collections.abc import Collection, Iterator, Mapping
from typing import Any

import msgspec

from coordinator.settings.config import Config, to_json
from coordinator.simulate import demo_fleet
from models.given_objects import describe_name, is_given

__all__ = ["describe_repetition", "render_toml"]

# addresses, certificates and outputs: they change no result, and concern nobody else
PRIVATE = ("broker", "log", "metrics", "observe")
RUNS = "repeated"  # folder of the repeated run, so that it can have the name of this one


def describe_repetition(
    config: Config, agents: Collection[str], *, simulated: bool
) -> tuple[list[str], str]:
    """Return the lines to paste into a shell that repeat a run, and a note for people.

    agents: names of its devices.
    simulated: whether `coordinator simulate` ran them.
    """
    names = (config.method_name, config.model.name, config.data.name)
    if given := [describe_name(name) for name in names if is_given(name)]:
        return [], (
            "A Python program started this run with objects of its own "
            f"({', '.join(given)}), so no command repeats it: run that program again."
        )
    if is_demo(config, agents):
        line = f"coordinator demo --seed {config.seed} --rounds {config.rounds} --keep {RUNS}"
        return [line], "The processes of the demo measure time, so their submodels may differ."
    run = config.name
    if simulated:
        config = undo_seeds(config)
        commands = [f"coordinator simulate {{}} --runs {RUNS} --out {RUNS}/results"]
        note = (
            "The repeated run has the same weights, bit for bit, with the same versions of "
            "the packages on the same kind of processor."
        )
    else:
        commands = [
            f"coordinator start --config {{}} --runs {RUNS}",
            f"edge-agent join --run {shlex.quote(run)} --broker HOST --name NAME --data DATA"
            "  # on each device, with the same name and data",
        ]
        note = (
            "Data never leave the devices, so only these devices can repeat it. Their submodels "
            "depend on measured times; assign.submodels fixes them. Settings of the broker, the "
            "log, metrics and event readers are left out."
        )
    file = shlex.quote(f"{run}.toml")
    text = render_toml(config).splitlines()
    return [f"cat > {file} <<'EOF'", *text, "EOF", *(c.format(file) for c in commands)], note


def is_demo(config: Config, agents: Collection[str]) -> bool:
    known = {device.name for device in demo_fleet.DEVICES}
    return config.name == demo_fleet.RUN and bool(agents) and set(agents) <= known


def undo_seeds(config: Config) -> Config:
    """Return the configuration without what `coordinator simulate` sets for one of its seeds."""
    name = config.name.removesuffix(f"-seed{config.seed}")
    simulate = msgspec.structs.replace(config.simulate, seeds=())
    fleet = msgspec.structs.replace(config.fleet, min_agents=Config().fleet.min_agents)
    return msgspec.structs.replace(config, name=name, simulate=simulate, fleet=fleet)


def render_toml(config: Config) -> str:
    """Return a configuration as TOML: the settings that differ from their defaults, without those
    of the broker and of outputs.
    """
    return "\n".join(list_lines(to_json(config), to_json(Config()))) + "\n"


def list_lines(tree: Mapping[str, Any], defaults: Mapping[str, Any]) -> Iterator[str]:
    """Yield the lines of TOML for values that differ from their defaults, those outside tables
    first.
    """
    for key, value in tree.items():
        if not isinstance(value, dict) and value != defaults[key]:
            yield f"{key} = {render_value(value)}"
    for table, values in tree.items():
        if table in PRIVATE or not isinstance(values, dict):
            continue
        known = defaults[table]
        changed = {k: v for k, v in values.items() if k not in known or v != known[k]}
        if changed:
            yield f"[{table}]"
            yield from (f"{render_key(k)} = {render_value(v)}" for k, v in changed.items())


def render_key(key: str) -> str:
    return key if key.isidentifier() and key.isascii() else render_value(key)


def render_value(value: Any) -> str:
    """Return a value as TOML. That is JSON, except for tables and for one control character."""
    if isinstance(value, dict):
        items = (f"{render_key(k)} = {render_value(v)}" for k, v in value.items())
        return "{ " + ", ".join(items) + " }" if value else "{}"
    if isinstance(value, list | tuple):
        return "[" + ", ".join(map(render_value, value)) + "]"
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
