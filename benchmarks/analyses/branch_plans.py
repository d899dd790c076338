"""Show DynamicFL's plan over the rounds: how many branches each device trained in each layer.

The plan follows from the scores that the device kept from its last training, as on the device
(`federated.methods.dynamicfl.expand`).
"""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

from benchmarks.analyses.panels import Panel, make_panel
from benchmarks.analyses.round_history import read_history
from coordinator.settings.config import read_tables
from coordinator.store.run_database_reader import open_records
from federated.errors import ConfigError
from federated.methods.dynamicfl import allot_branches
from models.cost import branchable_layers

__all__ = ["analyse"]


def analyse(folder: Path) -> list[Panel]:
    """Return a panel for each device with more than one branch: layers by rounds."""
    history = {line.round: line for line in read_history(folder)}
    with closing(open_records(folder.parent, folder.name)) as records:
        facts = records.read_facts()
        rounds = {number: records.read_entries(number) for number in history}
    config = read_tables(facts.config)
    if config.method_name != "dynamicfl":
        raise ConfigError(f"run '{folder.name}' has no branches: analyse a run of dynamicfl")
    settings, menu = config.settings, {one.name: one for one in facts.menu}
    able = branchable_layers(
        facts.menu[0].plain, settings["branches"] - 1, settings["linear"], settings["rank"]
    )
    known: dict[str, dict[str, float]] = {}  # scores of each device's last training
    found: dict[str, dict[tuple[str, str], float]] = {}
    for number, entries in rounds.items():
        for entry in entries:
            branches = menu[entry.submodel].branches
            if entry.outcome != "folded" or branches == 1:
                continue
            scores = known.get(entry.agent, {})
            order = sorted(able, key=lambda name: -scores.get(name, 0.0))
            plan = allot_branches(able, branches, order)
            for name in able:
                found.setdefault(entry.agent, {})[name, str(number)] = 1.0 + len(plan[name])
        known |= history[number].scores
    if not found:
        raise ConfigError(
            f"run '{folder.name}': no device trained several branches: give some a submodel such "
            f"as {facts.menu[-1].name} (assign.submodels)"
        )
    return [make_panel(agent, numbers) for agent, numbers in sorted(found.items())]
