"""Compute what `coordinator assign` shows: the submodels that measured devices would get (see
`edge-agent profile --out`), with the reasons.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
from rich.table import Table

from coordinator.access.configured_authority import get_group_reader
from coordinator.assign.affordable_submodels import Bounds
from coordinator.assign.decision_record import Decision
from coordinator.assign.decisions import Candidate, Verdict, ask_method, decide
from coordinator.assign.eligibility import Eligibility
from coordinator.assign.majority_network import build_network
from coordinator.assign.submodel_pins import match_pins
from coordinator.run.config_sources import ConfigSources
from coordinator.run.run_preparation import propose_menu
from coordinator.settings.config import Config
from coordinator.settings.config_tables import AGENTS
from federated.data import loading
from federated.device import profile_file
from federated.device.profile_file import Sheet
from federated.errors import ConfigError
from federated.method import Method
from federated.methods.catalogue import find_method
from federated.runtime.unit_formatting import human_seconds, megabytes
from federated.safe_terminal_table import make_table, render_table
from federated.safe_text import make_lines_safe
from federated.task import Card, Profile
from models.cost import cost
from models.submodel import Network
from models.submodel_building import initial

__all__ = ["assign_offline", "render"]

WIDTH = 110  # columns
ALONE = (
    "This is a fleet of one device, which is its own fastest: without a deadline, only memory "
    "limits it.\nAdd the profiles of the other devices (--profile FILE), or set --deadline SECONDS."
)
EXAMPLES = 1000  # of a device that was measured without data


def assign_offline(
    files: Sequence[Path], sources: ConfigSources, examples: int | None
) -> dict[str, Any]:
    """Return the submodel of each device in a round with all of them, as plain values.

    examples: number of examples of each device, instead of the one in its profile; `EXAMPLES` for a
        device that was measured without data.
    The network is for the configured data, else for the data of the devices' measurements.
    Raises ConfigError, also for a family that was not measured, and Unknown.
    """
    config = sources.load()
    family = config.model.name if ":" in config.model.name else ""
    sheets = [profile_file.read(path, family) for path in files]
    has_data = config.data.name != AGENTS and (
        sources.file is not None or any(key == "data.name" for key, _ in sources.overrides)
    )
    cards = (
        [loading.load_central(config.data.name, config.data.root).card()]
        if has_data
        else [derive_card(sheet, config.model.name) for sheet in sheets]
    )
    method = find_method(config.method_name)
    network = build_network(config, cards)
    profiles = load_profiles(sheets, network, examples)
    return {
        "model": config.model.name,
        "method": method.name,
        "network": msgspec.to_builtins(network),
        "deadline": config.fleet.deadline or None,
        "agents": [
            describe_agent(verdict, profiles[verdict.decision.agent])
            for verdict in judge(config, method, network, profiles)
        ],
    }


def load_profiles(
    sheets: Sequence[Sheet], network: Network, examples: int | None
) -> dict[str, Profile]:
    """Return each device's profile by name, with timings of the network's family."""
    profiles: dict[str, Profile] = {}
    for sheet in sheets:
        profile = profile_file.select_profile(sheet, network.family)
        if profile.agent in profiles:
            raise ConfigError(
                f"expected profiles of different devices, found two of '{profile.agent}': give "
                "each device a name of its own"
            )
        count = examples or profile.data.examples or EXAMPLES
        profiles[profile.agent] = replace(profile, data=replace(profile.data, examples=count))
    return profiles


def derive_card(sheet: Sheet, model: str) -> Card:
    """Return the data card of a device's measurement. Without data, it fits the measured networks
    of the model's family.
    """
    if sheet.profile.data.examples:
        return sheet.profile.data
    family = model if ":" in model else model.partition("-")[0]
    network = profile_file.select_profile(sheet, family).timings[0].submodel.network
    return Card(
        "measured",
        network.inputs,
        "uint8",
        network.outputs,
        1,
        0,
        network.mean,
        network.std,
        network.target,
        network.shift,
        network.scale,
        network.vocabulary,
        network.tokenizer,
    )


def judge(
    config: Config, method: Method, network: Network, profiles: Mapping[str, Profile]
) -> list[Verdict]:
    """Return a verdict for each device, by name, as in the first round of a run."""
    menu = propose_menu(method, network, config.settings)
    weights = initial(network, config.seed, method.features)
    state = method.start(weights, menu, config.settings)
    pins = match_pins(menu, config.assign.submodels)
    eligibility = Eligibility(config, groups=get_group_reader(config.broker))
    exclusions = {
        name: eligibility.explain_exclusion(profile) for name, profile in profiles.items()
    }
    candidates = [
        Candidate(name, profiles[name], pin=pins.find(name))
        for name in sorted(profiles)
        if not exclusions[name]
    ]
    choose = ask_method(method, state, config.seed)
    verdicts = decide(menu, method.recipe(state, menu[-1]), candidates, config, choose)
    verdicts += [
        Verdict(None, Decision(name, reason=f"not selected: {why}"), (), Bounds())
        for name, why in exclusions.items()
        if why
    ]
    return sorted(verdicts, key=lambda verdict: verdict.decision.agent)


def describe_agent(verdict: Verdict, profile: Profile) -> dict[str, Any]:
    """Return a verdict as plain values."""
    return {
        "id": verdict.decision.agent,
        "submodel": verdict.decision.submodel or None,
        "reason": verdict.decision.reason,
        "cpus": profile.cpus,
        "memory": profile.memory,
        "uplink": profile.uplink,
        "examples": profile.data.examples,
        "offers": [
            {
                "submodel": offer.submodel.name,
                "parameters": cost(offer.submodel).parameters,
                "step": offer.step,
                "seconds": offer.seconds,
                "memory": offer.memory,
                "fits": offer.fits,
                "in_time": offer.step <= verdict.bounds.step
                and offer.seconds <= verdict.bounds.seconds,
            }
            for offer in verdict.offers
        ],
    }


def render(found: Mapping[str, Any]) -> str:
    """Return the result of `assign_offline` as text, with a table of offers for each device."""
    parts = []
    for agent in found["agents"]:
        uplink = (
            f"uplink {agent['uplink'] / 1e6:.3g} MB/s"
            if agent["uplink"]
            else "uplink not measured, so transfers count as 0 s"
        )
        text = make_lines_safe(
            f"{agent['id']}: {agent['cpus']:g} cpus, {megabytes(agent['memory'])}, "
            f"{uplink}, {agent['examples']} examples\n"
            f"  gets {agent['submodel'] or 'nothing'}: {agent['reason']}"
        )
        table = "\n" + render_table(list_offers(agent), WIDTH) if agent["offers"] else ""
        parts.append(text + table)
    if len(found["agents"]) == 1 and not found["deadline"]:
        parts.append(ALONE)
    return "\n\n".join(parts)


def list_offers(agent: Mapping[str, Any]) -> Table:
    """Return a table of an agent's offers, with a star at the chosen one."""
    table = make_table("", "submodel", "parameters", "a step", "a round", "memory", "")
    for offer in agent["offers"]:
        limits = (("too large", offer["fits"]), ("too slow", offer["in_time"]))
        table.add_row(
            "*" if offer["submodel"] == agent["submodel"] else "",
            offer["submodel"],
            f"{offer['parameters']:,}",
            human_seconds(offer["step"]),
            human_seconds(offer["seconds"]),
            megabytes(offer["memory"]),
            ", ".join(word for word, within in limits if not within),
        )
    return table
