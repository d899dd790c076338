"""What `coordinator assign` answers without any agent: what devices that measured themselves
(`edge-agent profile --out`) would get, and why.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
from rich.console import Console
from rich.table import Table

from coordinator.assign.data_cards import AGENTS, network_for
from coordinator.assign.decision_record import Decision
from coordinator.assign.decisions import Candidate, Verdict, decide
from coordinator.assign.eligibility import Eligibility
from coordinator.assign.offers import Bounds, pinned
from coordinator.assign.selection import generator
from coordinator.run.preparation import propose_menu
from coordinator.settings.config import Config, load, parse_setting
from federated.data import catalogue
from federated.device import profile_file
from federated.device.profile_file import Sheet
from federated.errors import ConfigError
from federated.method import Method, State
from federated.methods.catalogue import method as method_named
from federated.runtime.units import human_seconds, megabytes
from federated.task import Card, Profile
from models.cost import cost
from models.families.catalogue import initial
from models.submodel import Network, Submodel, Target

__all__ = ["assign_offline", "text"]

WIDTH = 110
EXAMPLES = 1000  # of a device that was measured without data


def assign_offline(
    files: Sequence[Path],
    config_file: Path | None,
    environment: Mapping[str, str],
    settings: Sequence[str],
    flags: Sequence[tuple[str, Any]],
    examples: int | None,
) -> dict[str, Any]:
    """What each sheet's device would get in a round in which all of them take part, as plain
    values.

    examples: how many each device has, in place of what its sheet says; `EXAMPLES` where that was
    measured without data. The network is for the data that the configuration names, else for those
    that the devices were measured with.
    Raises ConfigError, for a family that was not timed as well, and Unknown.
    """
    given = [*map(parse_setting, settings), *flags]
    config = load(config_file, environment, given)
    sheets = [
        profile_file.read(path, config.model.name if ":" in config.model.name else "")
        for path in files
    ]
    named = config.data.name != AGENTS and (
        config_file is not None or any(key == "data.name" for key, _ in given)
    )
    cards = (
        [catalogue.central(config.data.name, config.data.root).card()]
        if named
        else [card_of(one, config.model.name) for one in sheets]
    )
    method = method_named(config.method_name)
    network = network_for(config, cards)
    profiles = profiles_of(sheets, network, examples)
    menu = propose_menu(method, network, config.settings)
    verdicts = judged(config, method, network, menu, profiles)
    return {
        "model": config.model.name,
        "method": method.name,
        "network": msgspec.to_builtins(network),
        "deadline": config.fleet.deadline or None,
        "agents": [plain(one, profiles[one.decision.agent]) for one in verdicts],
    }


def profiles_of(
    sheets: Sequence[Sheet], network: Network, examples: int | None
) -> dict[str, Profile]:
    """Each device's profile by name, with the timings of the network's family."""
    made: dict[str, Profile] = {}
    for one in sheets:
        profile = profile_file.profile_of(one, network.family)
        if profile.agent in made:
            raise ConfigError(
                f"two of the profiles are of a device called '{profile.agent}': give "
                "each a name of its own"
            )
        count = examples or profile.data.examples or EXAMPLES
        made[profile.agent] = replace(profile, data=replace(profile.data, examples=count))
    return made


def card_of(one: Sheet, model: str) -> Card:
    """The data that a device was measured with; where it had none, those that the timed networks of
    the model's family are for.
    """
    if one.profile.data.examples:
        return one.profile.data
    family = model if ":" in model else model.partition("-")[0]
    network = profile_file.profile_of(one, family).timings[0].submodel.network
    target: Target = (
        "token"
        if network.objective == "next" or network.objective == "masked"
        else network.objective
    )
    return Card(
        "measured",
        network.inputs,
        "uint8",
        network.outputs,
        1,
        0,
        network.mean,
        network.std,
        target,
        network.shift,
        network.scale,
    )


def judged(
    config: Config,
    method: Method,
    network: Network,
    menu: Sequence[Submodel],
    profiles: Mapping[str, Profile],
) -> list[Verdict]:
    """A verdict for each device, in the order of names, as the first round of a run would have
    it.
    """
    drawn = initial(network, config.seed, method.features)
    state: State = method.start(drawn, menu, config.settings)
    fixed, eligibility = pinned(menu, config.assign.submodels), Eligibility(config)
    against = {name: eligibility.exclusion(profile) for name, profile in profiles.items()}
    candidates = [
        Candidate(name, profiles[name], pinned=fixed(name))
        for name in sorted(profiles)
        if not against[name]
    ]

    def choice(index: int, candidate: Candidate, can: Sequence[Submodel]) -> Submodel:
        return method.assign(state, candidate.profile, can, generator(config.seed, 2, 1, index))

    made = decide(
        menu,
        method.recipe(state, menu[-1]),
        candidates,
        config,
        choice,
    )
    out = [
        Verdict(None, Decision(name, reason=f"not selected: {why}"), (), Bounds())
        for name, why in against.items()
        if why
    ]
    return sorted([*made, *out], key=lambda one: one.decision.agent)


def plain(one: Verdict, profile: Profile) -> dict[str, Any]:
    offers = [
        {
            "submodel": offer.submodel.name,
            "parameters": cost(offer.submodel).parameters,
            "step": offer.step,
            "seconds": offer.seconds,
            "memory": offer.memory,
            "fits": offer.fits,
            "in_time": offer.step <= one.bounds.step and offer.seconds <= one.bounds.seconds,
        }
        for offer in one.offers
    ]
    found = {
        "id": one.decision.agent,
        "submodel": one.decision.submodel or None,
        "reason": one.decision.reason,
    }
    return {
        **found,
        "cpus": profile.cpus,
        "memory": profile.memory,
        "uplink": profile.uplink,
        "examples": profile.data.examples,
        "offers": offers,
    }


def text(made: Mapping[str, Any]) -> str:
    """The same for a person: each device with the table of all that it was offered."""
    console = Console(width=WIDTH)
    with console.capture() as capture:
        for one in made["agents"]:
            uplink = (
                f"uplink {one['uplink'] / 1e6:.3g} MB/s"
                if one["uplink"]
                else "uplink not measured, so transfers count nothing"
            )
            console.print(
                f"{one['id']}: {one['cpus']:g} cpus, {megabytes(one['memory'])}, "
                f"{uplink}, {one['examples']} examples",
                markup=False,
                soft_wrap=True,
            )
            console.print(
                f"  gets {one['submodel'] or 'nothing'}: {one['reason']}",
                markup=False,
                soft_wrap=True,
            )
            if one["offers"]:
                console.print(table(one))
            console.print()
    return capture.get().rstrip()


def table(one: Mapping[str, Any]) -> Table:
    made = Table(
        "",
        "submodel",
        "parameters",
        "a step",
        "a round",
        "memory",
        "",
        box=None,
        pad_edge=False,
        header_style="dim",
    )
    for offer in one["offers"]:
        against = [
            word
            for word, holds in (("too large", offer["fits"]), ("too slow", offer["in_time"]))
            if not holds
        ]
        numbers = (
            f"{offer['parameters']:,}",
            human_seconds(offer["step"]),
            human_seconds(offer["seconds"]),
            megabytes(offer["memory"]),
        )
        made.add_row(
            "*" if offer["submodel"] == one["submodel"] else "",
            offer["submodel"],
            *numbers,
            ", ".join(against),
        )
    return made
